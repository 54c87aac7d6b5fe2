"""Sums of a batch's gradients into parts of flat vectors, whichever way the products go."""

import pytest
import torch

from tacit.gradients import contributions
from tacit.gradients.contributions import Dense, Outer, Slot

NODES, HEIGHT, WIDTH = 5, 4, 6


def normals(*shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# The numbers of a block: one node after the other, some together (not a divisor), all at once.
@pytest.mark.parametrize("block", [1, 2 * HEIGHT * WIDTH, 3 * HEIGHT * WIDTH, 10**6])
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_every_way_to_add_products_is_that_of_a_loop(
    block, records, positions, beta, dtype, close, monkeypatch
):
    monkeypatch.setattr(contributions, "_BLOCK_NUMBERS", block)
    slot = Slot("weight", (HEIGHT, WIDTH), 3, 3 + HEIGHT * WIDTH)
    inputs = normals(NODES, records, 1, positions, WIDTH, seed=1, dtype=dtype)
    gradients = normals(NODES, records, 1, positions, HEIGHT, seed=2, dtype=dtype)
    factors = normals(NODES, records, seed=3, dtype=dtype)
    start = normals(NODES, slot.stop + 2, seed=4, dtype=dtype)
    outer = Outer(slot, inputs, gradients)
    for part in (outer, outer.materialised()):
        total = start.clone()
        part.add_to(total, factors, beta)
        for node in range(NODES):
            expected = beta * start[node, slot.start : slot.stop].double()
            for record in range(records):
                matrix = gradients[node, record, 0].double().T @ inputs[node, record, 0].double()
                expected = expected + factors[node, record].double() * matrix.flatten()
            found = total[node, slot.start : slot.stop].double()
            torch.testing.assert_close(found, expected, rtol=close, atol=4 * close)
        assert torch.equal(total[:, : slot.start], start[:, : slot.start])
        assert torch.equal(total[:, slot.stop :], start[:, slot.stop :])


def test_a_record_with_factor_zero_adds_nothing():
    values = torch.tensor([[[1.0, 2.0], [5.0, 7.0]]])
    total = torch.full((1, 2), 9.0)
    Dense(Slot("bias", (2,), 0, 2), values).add_to(total, torch.tensor([[1.0, 0.0]]), 0)
    assert total.tolist() == [[1.0, 2.0]]
