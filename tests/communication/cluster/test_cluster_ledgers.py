"""What others learn of a node's ledger: nothing but that its budget forbids the run."""

import re
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import tacit
from communication.cluster.crew import train
from experiments import experiment
from tacit.analysis.statement import write_statement
from tacit.data import load
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import account_files

pytestmark = pytest.mark.process

DIGITS = load("digits", data_dir=Path("data"), seed=0).train
EPSILON, BUDGET = 0.8, 1.0


def settings(folder, **privacy):
    """Two sites of a hundred records each, whose data have a budget."""
    return experiment(
        task={"dataset": None, "model": "logistic", "outputs": 10},
        nodes={"count": 2, "data": "by-rank", "source": str(folder / "own-{node}.npz")},
        privacy={
            "noise_std": None,
            "noise_seed": None,
            "epsilon": EPSILON,
            "ledger": str(folder / "ledgers"),
            "ledger_epsilon": BUDGET,
            **privacy,
        },
        train={"steps": 2},
    )


def spend(folder, source, records, **privacy):
    """An earlier run on some records of a source."""
    config = settings(folder, ledger_source=source, **privacy)
    config["nodes"] = {"count": 1}
    config["topology"] = {"graph": "complete"}
    tacit.train(config, nodes=[(DIGITS.inputs[list(records)], DIGITS.targets[list(records)])])


def ended(folder, own, **privacy):
    """How both sites ended, of which the second holds these records."""
    folder.mkdir(exist_ok=True)
    for node, records in enumerate((list(range(200, 300)), own)):
        arrays = {"inputs": DIGITS.inputs[records], "targets": DIGITS.targets[records]}
        values = {name: value.numpy() for name, value in arrays.items()}
        np.savez(folder / f"own-{node}.npz", **values)
    config = settings(folder, **privacy)
    file = folder / "sites.toml"
    file.write_text(tomli_w.dumps(config), encoding="utf-8")
    return train(folder, file, folder / "run", 2)


def test_another_site_reads_the_same_bytes_whatever_the_overlap(tmp_path):
    """One record, all records, or a budget that is used up; the site itself reads which."""
    told, own = [], []
    for shared in (1, 100, 0):
        folder = tmp_path / str(shared)
        folder.mkdir()
        # Of the last, no record is another source's: its own has spent too much.
        spend(folder, "trial" if shared else "node 1", range(100))
        first, second = ended(folder, list(range(100 - shared, 200 - shared)))
        told.append(first)
        own.append(second)
        (only,) = account_files(folder / "ledgers")
        assert len(read_ledger(only).runs) == 1
    assert told[0] == told[1] == told[2]
    assert (told[0].code, told[0].out) == (3, "")
    assert told[0].err == ("tacit: rank 1: a budget of its nodes forbids it; see its own screen\n")
    assert [answer.code for answer in own] == [3] * 3
    assert "1 of its 100 different records are of a source" in own[0].err
    assert "100 of its 100 different records are of a source" in own[1].err
    assert "0.8 is spent, and this run would bring it to 1.1" in own[2].err


def test_all_that_a_run_hands_on_is_the_same_for_neighbours_under_one_ledger(tmp_path):
    """Screens and codes of another site, and its documents, but for what is random or a clock."""
    read = []
    for name, first in (("same", 0), ("one", 1), ("all", 100)):
        folder = tmp_path / name
        folder.mkdir()
        spend(folder, "node 1", range(100), ledger_epsilon=4.0)
        answers = ended(folder, list(range(first, first + 100)), ledger_epsilon=4.0)
        assert [answer.code for answer in answers] == [0, 0], answers
        run = folder / "run"
        write_statement(run)
        common = sorted(path for path in run.iterdir() if path.suffix in DOCUMENTS)
        texts = [answers[0].out, answers[0].err, *(path.read_text() for path in common)]
        read.append([masked(text, folder) for text in texts])
    assert len(common) == 6
    assert read[0] == read[1] == read[2]


DOCUMENTS = (".toml", ".json", ".jsonl", ".html")
# Random names, dates and clocks.
_MASKED = (
    r"[0-9a-f]{8,}",
    r"\d{4}-\d\d-\d\d[T \d:+]*",
    r'"(seconds|steps_per_second)": [^,\n]+',
    r"[\d.]+\s*(ms|s|steps/s|s left|steps a second)\b",
)


def masked(text, folder):
    for pattern in (re.escape(str(folder)), *_MASKED):
        text = re.sub(pattern, "?", text)
    return text


def test_a_site_without_such_records_takes_part(tmp_path):
    spend(tmp_path, "trial", range(100))
    assert [answer.code for answer in ended(tmp_path, list(range(100, 200)))] == [0, 0]
