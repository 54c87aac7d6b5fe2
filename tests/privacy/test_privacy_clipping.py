"""How far a record moves a clipped sum, step by step; measured in `tests/gradients`."""

import pytest

from tacit.errors import InputError
from tacit.privacy import ADD_OR_REMOVE_ONE, REPLACE_ONE
from tacit.privacy.mechanisms.clipping import CLIP_NORMS, Clipping


@pytest.mark.parametrize("norm", CLIP_NORMS)
def test_a_record_moves_a_sum_by_its_bound_and_a_replaced_one_by_twice_that(norm):
    clip = Clipping(norm, (1.0, 0.25))
    assert clip.sensitivity(ADD_OR_REMOVE_ONE) == (1.0, 0.25)
    assert clip.sensitivity(REPLACE_ONE) == (2.0, 0.5)
    assert [clip.bound(k) for k in range(2)] == [1.0, 0.25]


def test_laplace_noise_needs_a_bound_in_l1():
    assert Clipping("l1", (3.0,)).sensitivity(REPLACE_ONE, "l1") == (6.0,)
    for norm in ("l2", "coordinate", "automatic"):
        with pytest.raises(InputError, match=rf"algorithm\.clip_norm = '{norm}': must be 'l1'"):
            Clipping(norm, (3.0,)).sensitivity(REPLACE_ONE, "l1")


def test_what_is_not_clipped_has_no_sensitivity():
    clip = Clipping("l2", None)
    assert clip.bound(7) is None
    with pytest.raises(InputError, match=r"algorithm\.clip = None: without a bound"):
        clip.sensitivity(ADD_OR_REMOVE_ONE)
