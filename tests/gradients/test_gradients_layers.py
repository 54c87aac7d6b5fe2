"""The forms of a layer's gradient agree with each other, whichever is chosen."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.gradients.contributions import Outer, Slot, materialise

SIZES = st.integers(1, 4)


@settings(max_examples=50, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.integers(0, 1))
def test_outer_and_materialised_agree(nodes, batch, groups, positions, width, height, beta):
    draws = torch.Generator().manual_seed(nodes + 7 * positions)

    def random(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    size = groups * height * width
    slot = Slot("weight", (groups * height, width), 2, 2 + size)
    outer = Outer(
        slot,
        random(nodes, batch, groups, positions, width),
        random(nodes, batch, groups, positions, height),
    )
    dense = outer.materialised()
    torch.testing.assert_close(outer.sizes().bounds, dense.sizes().bounds)
    factors = random(nodes, batch)
    before = random(nodes, size + 3)
    totals = []
    for form in (outer, dense):
        total = before.clone()
        form.add_to(total, factors, beta)
        assert torch.equal(total[:, :2], before[:, :2])
        assert torch.equal(total[:, -1:], before[:, -1:])
        totals.append(total)
    torch.testing.assert_close(totals[0], totals[1])
    expected = beta * before[:, 2:-1] + torch.einsum(
        "nb,nbgto,nbgti->ngoi", factors, outer.gradients, outer.inputs
    ).reshape(nodes, size)
    torch.testing.assert_close(totals[0][:, 2:-1], expected)


def test_gram_matrices_keep_the_norm_where_positions_cancel_in_float32():
    """Positions with nearly the same input and gradients that sum to nearly nothing."""
    draws = torch.Generator().manual_seed(1)
    base = torch.randn(1, 1, 1, 1, 40, generator=draws) * 100
    inputs = base + 1e-3 * torch.randn(1, 1, 1, 6, 40, generator=draws)
    gradients = torch.randn(1, 1, 1, 6, 30, generator=draws)
    gradients = gradients - gradients.mean(dim=3, keepdim=True)
    outer = Outer(Slot("weight", (30, 40), 0, 1200), inputs, gradients)
    exact = (gradients.double().transpose(3, 4) @ inputs.double()).square().sum()
    assert float(exact) <= float(outer.sizes().bounds.sum()) <= 1.01 * float(exact)


def test_one_position_is_never_materialised_and_a_small_kernel_always():
    assert not materialise(1, 784, 128)
    assert materialise(196, 64, 16)
    assert materialise(25, 256, 32)
    assert not materialise(16, 4608, 512)
