"""The server's mean, over what arrives and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.communication.exchange.rows import Server, mean_of_rows

EVERYONE = np.arange(4)


def rows(first: float) -> torch.Tensor:
    return torch.arange(8, dtype=torch.float64).view(4, 2) + first


def test_the_mean_of_rows() -> None:
    assert torch.equal(mean_of_rows(rows(0)), torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    assert torch.equal(mean_of_rows(rows(0)[:0]), torch.zeros(1, 2, dtype=torch.float64))


def test_a_lost_message_is_left_out_of_the_mean_of_this_step() -> None:
    arrived = np.array([True, False, True, True])
    found = Server(4).mean(0, rows(0), EVERYONE, arrived, latest=False)
    torch.testing.assert_close(found, rows(0)[[0, 2, 3]].mean(0, keepdim=True))


@pytest.mark.parametrize("sparse", [True, False])
def test_of_a_lost_message_the_server_keeps_the_one_before(sparse: bool) -> None:
    """Whether it is given the rows of everyone, or only of those that send."""
    server = Server(4)
    server.mean(0, rows(0), EVERYONE, None, latest=True)
    sending = EVERYONE[[1, 2]] if sparse else EVERYONE
    arrived = np.array([False, True, False, False])
    found = server.mean(0, rows(100)[sending], sending, arrived, latest=True)
    right = rows(0)
    right[1] = rows(100)[1]
    torch.testing.assert_close(found, right.mean(0, keepdim=True))
    found = server.mean(0, rows(200)[[2]], EVERYONE[[2]], None, latest=True)
    right[2] = rows(200)[2]
    torch.testing.assert_close(found, right.mean(0, keepdim=True))


def test_what_it_is_given_is_not_changed() -> None:
    server, given = Server(4), rows(0)
    server.mean(0, given, EVERYONE, np.ones(4, bool), latest=True)
    server.mean(0, rows(9)[[0]], EVERYONE[[0]], np.ones(4, bool), latest=True)
    assert torch.equal(given, rows(0))
