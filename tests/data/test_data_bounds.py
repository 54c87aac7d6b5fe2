"""Inputs within a public bound, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import bounded_inputs

TINY, LARGE = 5e-324, 1.7e308


def square(record: torch.Tensor) -> Fraction:
    return sum((Fraction(value) ** 2 for value in record.reshape(-1).tolist()), Fraction())


def numbers(width: int) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 32), (torch.float64, 64)])
@settings(deadline=None)
@given(data=st.data(), bound=st.floats(1e-100, 1e100) | st.sampled_from([1.0, 3.0, 1e-40]))
def test_no_finite_record_is_longer(
    dtype: torch.dtype, width: int, data: st.DataObject, bound: float
) -> None:
    length = data.draw(st.integers(1, 5))
    records = data.draw(
        st.lists(st.lists(numbers(width), min_size=length, max_size=length), min_size=1, max_size=4)
    )
    given_inputs = torch.tensor(records, dtype=dtype)
    found = bounded_inputs(given_inputs, bound)
    assert found.dtype == dtype
    limit = Fraction(bound) ** 2
    for before, after in zip(given_inputs, found, strict=True):
        assert square(after) <= limit
        if square(before) <= limit * Fraction(1 - 1e-13):
            assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_records_keep_their_direction_and_reach_the_bound(dtype: torch.dtype) -> None:
    largest = {torch.float32: 1e38, torch.float64: LARGE}[dtype]
    scales = torch.tensor([2.5, 1e10, 1e30, largest], dtype=torch.float64)
    direction = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (4, 3, 8)))
    inputs = (direction * scales[:, None, None]).to(dtype)
    found = bounded_inputs(inputs, 2.0)
    assert found.shape == inputs.shape
    for before, after in zip(direction, found, strict=True):
        assert square(after) <= 4
        wanted = 2 * before / before.norm()
        torch.testing.assert_close(after.double(), wanted, rtol=1e-6, atol=0)


def test_what_is_short_stays_the_very_tensor() -> None:
    inputs = torch.tensor([[0.0, 0.0], [TINY, -TINY], [0.6, 0.7]], dtype=torch.float64)
    assert bounded_inputs(inputs, 1.0) is inputs
    assert bounded_inputs(torch.zeros(0, 3), 1.0).shape == (0, 3)


def test_each_record_is_bounded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    together = bounded_inputs(inputs, 2.0)
    assert not torch.equal(together, inputs)
    monkeypatch.setattr("tacit.data.bounds._AT_ONCE", 20)
    assert torch.equal(bounded_inputs(inputs, 2.0), together)
    alone = torch.cat([bounded_inputs(record[None], 2.0) for record in inputs])
    torch.testing.assert_close(alone, together, rtol=1e-15, atol=0)
