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
        (PRIVACY, "b34e717509cc", "30429f9cc33b69fbb0d3d33dc407a5f0"),
        (PRIVACY | LEDGER, "e1a852803abd", "425e052cb67ad88ad4694a571561c598"),
    ],
)
def test_digests_are_what_they_were(privacy, run, search, tmp_path):
    assert run_digest(load_config(experiment(privacy=privacy))) == run
    file = tmp_path / "s.toml"
    sections = experiment(privacy=privacy, nodes={"count": 1})
    file.write_text(tomli_w.dumps({**sections, "tune": {"grid": {"algorithm.clip": [0.5, 1.0]}}}))
    assert load_search(file).digest() == search
