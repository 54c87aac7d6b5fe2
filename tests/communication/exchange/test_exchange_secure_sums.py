"""Secure sums between processes: those of one process, and nothing more for the server."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from communication.cluster.ranks import Hub, ThreadChannel, run_threads
from tacit.communication.colours import Released, Summand
from tacit.communication.exchange import BetweenProcesses, Graphs, InProcessExchange
from tacit.communication.exchange.messages import HEADER_BYTES
from tacit.communication.masks import PairMasks
from tacit.errors import InputError, LeakError
from tacit.privacy.noise.pairwise import fresh_pair_keys
from tacit.topology.mixing import server_averaging

CPU = torch.device("cpu")
D = 1500
Flags = Callable[[int], Any]


def rows(nodes, k):
    """What the nodes hold in round k: numbers of ordinary size, int64 `[nodes, D]`."""
    made = [
        torch.randn(D, generator=torch.Generator().manual_seed(100 * k + node)) for node in nodes
    ]
    return torch.stack([*made, torch.zeros(D)])[:-1].mul(300).round().long()


def taking_part(nodes, flags):
    return [node for node in nodes if flags is None or flags[node]]


def few(k):
    """Three of six in every round; in round 2 nobody."""
    active = np.zeros(6, np.bool_)
    active[[(k + step) % 6 for step in (0, 1, 3)]] = k != 2
    return active


def weights(nodes):
    return server_averaging(nodes).weights


def in_one(nodes, active, rounds):
    exchange = InProcessExchange(weights(nodes), dtype=torch.float32, device=CPU, active=active)
    sums = []
    for k in range(rounds):
        here = taking_part(range(nodes), active(k))
        sums.append(exchange.secure_sum(k, Summand(rows(here, k))))
    return sums, exchange


def between(ranks, active, rounds, channel=ThreadChannel):
    """The same in threads that stand for processes; keys are fresh."""
    first = [ranks.index(rank) for rank in range(max(ranks) + 1)]
    keys = fresh_pair_keys([(min(p), max(p)) for p in itertools.combinations(first, 2)])
    graphs = Graphs(lambda k: weights(len(ranks))[0], 1, "server", active)

    def sit(seat):
        masks = PairMasks(first[seat.rank], keys)
        exchange = BetweenProcesses(
            seat.channel, ranks, graphs, dtype=torch.float32, device=CPU, masks=masks
        )
        own = [node for node, rank in enumerate(ranks) if rank == seat.rank]
        sums = []
        for k in range(rounds):
            here = taking_part(own, active(k))
            sums.append(exchange.secure_sum(k, Summand(rows(here, k))))
        return sums, exchange.bytes_sent.tolist()

    return run_threads(sit, len(first), channel=channel)


@pytest.mark.parametrize("active", [lambda k: None, few], ids=["everybody", "few"])
@pytest.mark.parametrize(
    "ranks", [(0, 1, 2, 3, 4, 5), (0, 0, 1, 1, 2, 2), (1, 0, 2, 0, 1, 1), (1, 2, 2, 1, 1, 0)]
)
def test_every_process_gets_the_integers_of_one_process(ranks, active):
    right, alone = in_one(6, active, 5)
    sent = [0] * 6
    outcomes = between(ranks, active, 5)
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, outcomes
        sums, bytes_sent = outcome.value
        for one, other in zip(sums, right, strict=True):
            assert one.dtype == torch.int64
            assert torch.equal(one, other)
        for node, count in zip(
            [n for n, r in enumerate(ranks) if r == rank], bytes_sent, strict=True
        ):
            sent[node] = count
    for k, found in enumerate(right):
        expected = rows(taking_part(range(6), active(k)), k).sum(0, keepdim=True)
        assert torch.equal(found, expected)
    assert sent == alone.bytes_sent.tolist()
    rounds_of = [sum(active(k) is None or bool(active(k)[n]) for k in range(5)) for n in range(6)]
    assert sent == [8 * D * count for count in rounds_of]


class Listening(ThreadChannel):
    """Keeps every message that leaves a process, by its sender and receiver."""

    heard: list[tuple[int, int, torch.Tensor]]

    def send(self, rank, message):
        self.heard.append((self.rank, rank, message.clone()))
        super().send(rank, message)


def unevenness(words):
    columns = words.numpy().astype("<i8").view(np.uint8).reshape(-1, 8).T
    return 8 * min(stats.chisquare(np.bincount(one, minlength=256)).pvalue for one in columns)


def test_what_leaves_a_process_is_uniform_but_for_the_sum():
    heard = []
    listening = type("ListeningHere", (Listening,), {"heard": heard})
    outcomes = between((0, 1, 2, 2), lambda k: None, 3, listening)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    to_server = [(one, message) for one, other, message in heard if other == 0]
    assert sorted(one for one, _ in to_server) == [1, 1, 1, 2, 2, 2]
    for sender, message in to_server:
        payload = message[HEADER_BYTES:].clone().view(torch.int64)
        assert len(payload) == D  # one row, however many clients
        assert unevenness(payload) > 1e-9
        for k in range(3):
            own = rows([1] if sender == 1 else [2, 3], k).sum(0)
            assert unevenness(payload - own) > 1e-9
            assert unevenness(own) < 1e-100  # this test would see it in the clear
    from_server = [message for one, _, message in heard if one == 0]
    sums = outcomes[0].value[0]
    assert len(from_server) == 6
    for message in from_server:
        told = message[HEADER_BYTES:].clone().view(torch.int64)
        assert any(torch.equal(told, total[0]) for total in sums)


class Losing(ThreadChannel):
    """Rank 2 ends before its second part leaves."""

    def send(self, rank, message):
        self.count = getattr(self, "count", 0) + 1
        if self.rank == 2 and self.count == 2:
            raise RuntimeError("killed")
        super().send(rank, message)


def test_a_participant_that_is_lost_ends_the_run_and_leaves_no_sum():
    outcomes = between((0, 1, 2), lambda k: None, 2, Losing)
    assert "killed" in outcomes[2].value
    for outcome in outcomes[:2]:
        assert outcome.code not in (0, 1)
        assert "was lost" in outcome.value


def test_nothing_else_is_added_and_nothing_is_sent_without_masks():
    alone = InProcessExchange(weights(2), dtype=torch.float32, device=CPU)
    wrong = Released(rows([0, 1], 0))
    with pytest.raises(LeakError, match="only a Summand is noised for a sum"):
        alone.secure_sum(0, wrong)
    summand = Summand(rows([0, 1], 0).float())
    with pytest.raises(LeakError, match=r"value 0 that .* at step 0 is a Summand"):
        alone.average(0, summand)
    for value in (rows([0], 0), rows([0, 1], 0).double(), rows([0, 1, 2], 0)):
        with pytest.raises(LeakError, match="2 clients take part here"):
            alone.secure_sum(0, Summand(value))
    assert alone.bytes_sent.tolist() == [0, 0]
    channel = ThreadChannel(Hub(2), 0, 1.0)
    graphs = Graphs(lambda k: weights(2)[0], 1, "server")
    unmasked = BetweenProcesses(channel, [0, 1], graphs, dtype=torch.float32, device=CPU)
    with pytest.raises(InputError, match="without masks"):
        unmasked.secure_sum(0, Summand(rows([0], 0)))
    assert channel.bytes_sent == 0
