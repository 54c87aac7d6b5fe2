"""DECOR's accountant against figures that its authors printed, and what its noise costs."""

import math
import re
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from few import few
from tacit.errors import InputError
from tacit.privacy.accounting.accounting import epsilon
from tacit.privacy.published import DECOR, DECOR_USER, DecorRun, decor_noise, paper_settings
from tacit.report.wording import epsilon_text, lower_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "claims.md"


# From `result_gridsearch_example-level_grid_epsilon_1.csv` of the paper's repository: 16 nodes on
# the grid, clip 3, batch 64 of 3750; own deviation, pair deviation, what its accountant printed.
@pytest.mark.parametrize(
    ("own", "pair", "printed"),
    [
        (0.008877551020408164, 0.03881763527054108, 1.3563352107904139),
        (0.009183673469387754, 0.03881763527054108, 1.0372394363244022),
        (0.009693877551020408, 0.03034068136272545, 1.220324265239756),
        (0.01, 0.027545090180360724, 1.3251199837400647),
    ],
)
def test_the_accountant_prints_what_its_authors_printed(own, pair, printed):
    """Sigma = own^2 I + pair^2 L on the 4 x 4 torus, whitened, then the published formula."""
    sigma = mp.matrix(16, 16)
    for node in range(16):
        row, column = divmod(node, 4)
        around = ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1))
        sigma[node, node] = mp.mpf(own) ** 2 + 4 * mp.mpf(pair) ** 2
        for other in ((r % 4) * 4 + c % 4 for r, c in around):
            sigma[node, other] -= mp.mpf(pair) ** 2
    multiplier = 64 / (3 * math.sqrt(float((sigma**-1)[0, 0])))
    run = DecorRun(multiplier, 1000, 64, 3750)
    assert DECOR.epsilon(run) == pytest.approx(printed, rel=1e-9)
    # Neither the steps nor delta enter: that is what is wrong with it.
    assert DECOR.epsilon(DecorRun(multiplier, 1, 64, 3750, 1e-9)) == DECOR.epsilon(run)


@pytest.mark.slow
@few(3, 8)
@given(claimed=st.floats(0.001, 10), steps=st.integers(1, 10_000), records=st.integers(65, 100_000))
def test_noise_and_epsilon_are_inverse(claimed, steps, records):
    for formula in (DECOR, DECOR_USER):
        noise = decor_noise(formula, claimed, steps=steps, batch=64, records=records)
        run = DecorRun(noise, steps, 64, records)
        assert formula.epsilon(run) == pytest.approx(claimed, rel=1e-9)


@pytest.mark.slow
def test_one_record_costs_several_times_what_is_printed():
    """At the noise of "1" and of "0.001": add-or-remove-one, then replace-one."""
    costs = {
        claimed: [epsilon(row.mechanism, delta=1e-5) for row in rows_at(claimed) if row.mechanism]
        for claimed in (1.0, 0.001)
    }
    assert costs[1.0][:2] == pytest.approx([7.51, 9.91], abs=0.005)
    assert costs[0.001][:2] == pytest.approx([0.829, 1.665], abs=0.001)
    violated = [c.text for c in rows_at(1.0)[0].conditions if not c.holds]
    assert len(violated) == 2
    assert "here 1000" in violated[0]


def decor():
    return [row for row in paper_settings() if row.paper == "DECOR"]


def rows_at(claimed):
    return [row for row in decor() if row.claimed == claimed and "one record" in row.experiment]


def test_a_user_is_protected_as_printed():
    """With whole users the accountant composes and converts: every figure holds."""
    users = [row for row in decor() if row.experiment.endswith("a user")]
    assert len(users) == 9
    for row in users:
        assert row.mechanism is not None
        assert row.mechanism.unit == "client"
        assert row.claimed is not None
        assert 0.7 * row.claimed < epsilon(row.mechanism, delta=1e-5) < row.claimed


def test_the_page_prints_these_figures():
    """Each DECOR row of docs/concepts/claims.md, and how many rows the whole table has."""
    page = PAGE.read_text(encoding="utf-8")
    printed = re.findall(r"^\| DECOR \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.M)
    assert len(printed) >= 8
    for experiment, reading, claimed, certified, least in printed:
        (row,) = (
            row
            for row in decor()
            if row.experiment.startswith(experiment.split(",")[0])
            and f"eps = {claimed}," in row.experiment
            and reading in SHORT[row.reading]
        )
        assert row.bounds is not None
        assert row.delta is not None
        lower, upper = row.bounds(row.delta)
        assert certified == epsilon_text(upper)
        assert least == lower_text(lower)
    assert f"The whole table has {len(paper_settings())} rows." in page


SHORT = {
    "Poisson sampling, one record left out": ["Poisson, left out"],
    "Poisson sampling, one record replaced": ["Poisson, replaced"],
    "64 of J drawn, one record replaced": ["64 of J, replaced"],
    "all data of one user replaced": ["a user, replaced"],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [("noise_multiplier", 0.0), ("steps", 0), ("batch", -1), ("records", 3), ("delta", 1.0)],
)
def test_numbers_out_of_range_are_refused(field, value):
    good = {"noise_multiplier": 1.0, "steps": 10, "batch": 4, "records": 100}
    with pytest.raises(InputError, match=field):
        DecorRun(**{**good, field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="epsilon"):
        decor_noise(DECOR, 0.0, steps=10)
