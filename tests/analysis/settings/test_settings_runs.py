"""Comparisons and searches of earlier versions are found again: by the same digests."""

import pytest
import tomli_w

from experiments import experiment
from tacit.analysis.settings.runs import run_digest
from tacit.analysis.tune.search import load_search
from tacit.config import load_config

PRIVACY = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5}
LEDGER = {"ledger": "/x/y", "ledger_epsilon": 3.0}


@pytest.mark.parametrize(
    ("privacy", "run", "search"),
    [
        (PRIVACY, "a37e87ec7192", "b58b312bc0482faf5dfbe499d32d5192"),
        (PRIVACY | LEDGER, "cd8cd070e281", "0adcc3811b71c688b9fe867e87258e2b"),
    ],
)
def test_digests_are_what_they_were(privacy, run, search, tmp_path):
    assert run_digest(load_config(experiment(privacy=privacy))) == run
    file = tmp_path / "s.toml"
    sections = experiment(privacy=privacy, nodes={"count": 1})
    file.write_text(tomli_w.dumps({**sections, "tune": {"grid": {"algorithm.clip": [0.5, 1.0]}}}))
    assert load_search(file).digest() == search
