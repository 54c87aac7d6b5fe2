"""One file is an algorithm: that of a published one, as a user's own, does all that it did."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import train

import tacit
from tacit.algorithms import ALGORITHMS, Algorithm
from tacit.analysis.audit import AuditOptions
from tacit.analysis.audit.procedure import audit_job
from tacit.analysis.claims import claims_document
from tacit.cli.tables import plan_document
from tacit.config import load_config
from tacit.training.prepare import prepare

OPTIONS = {
    "privsgp": "momentum = 0.5\nfinal_mixing = 2",
    "do-adp": "activation = 0.6\ncompressor = 'top-k'\nkeep = 0.5",
}
EXPERIMENT = """
[task]
dataset = "digits"
[nodes]
count = 4
[algorithm]
name = "{name}"
learning_rate = 0.2
{options}
[privacy]
epsilon = 3.0
noise_seed = 1
[train]
steps = 4
batch = 64
"""
SHORT = AuditOptions(seconds=0.2, canaries=0, repetitions=200, steps=2)


def own_row(name, folder, monkeypatch):
    """The row of that name in a copy of its file, with another name and from another module."""
    built_in = ALGORITHMS[name].step.__code__.co_filename
    text = Path(built_in).read_text(encoding="utf-8").replace(f'name="{name}"', 'name="mine"')
    module = f"my_{name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
    mine = vars(importlib.import_module(module))
    rows = [row for row in mine.values() if isinstance(row, Algorithm)]
    return next(row for row in rows if row.name == "mine")


def told(document, name):
    """A document without the algorithm's name and the time it took."""
    return json.loads(re.sub(rf"(?<![\w-]){name}(?![\w-])", "NAME", document))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_copied_file_does_all_that_the_built_in_does(name, tmp_path, monkeypatch):
    monkeypatch.setitem(
        cast("dict[str, Any]", ALGORITHMS), "mine", own_row(name, tmp_path, monkeypatch)
    )
    found = {}
    for one in (name, "mine"):
        file = tmp_path / "experiment.toml"
        file.write_text(EXPERIMENT.format(name=one, options=OPTIONS[name]), encoding="utf-8")
        result = tacit.train(load_config(file))
        job = prepare(load_config(file))
        audited = audit_job(job, options=SHORT)
        found[one] = (
            result.parameters.tolist(),
            result.epsilon,
            told(plan_document(job).model_dump_json(), one),
            told(claims_document(file).model_dump_json(), one),
            (audited.defect, audited.verdict, [check.name for check in audited.fidelity]),
        )
    assert found["mine"] == found[name]


def test_gradient_tracking_is_one_file(monkeypatch):
    """The example, against a NumPy loop of the paper's recursion on nodes that differ."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    monkeypatch.syspath_prepend(examples)
    row = importlib.import_module("own_algorithm").GRADIENT_TRACKING
    monkeypatch.setitem(cast("dict[str, Any]", ALGORITHMS), row.name, row)
    task, steps, rate = oracle.problem("mse", 5), 40, 0.05
    options = {"learning_rate": rate}
    result = train(task, row.name, options, topology={"graph": "ring"}, steps=steps)
    w = oracle.metropolis(5, [(i, (i + 1) % 5) for i in range(5)])
    run = oracle.Run(task, lambda k: w, steps)
    x = np.tile(task.start, (5, 1))
    y = before = np.zeros_like(x)
    for k in range(steps):
        gradient = np.stack([run.mean_gradient(node, x[node], k) for node in range(5)])
        y, before = w @ y + gradient - before, gradient
        x = w @ x - rate * y
        np.testing.assert_allclose(y.mean(0), gradient.mean(0), atol=1e-12)
    np.testing.assert_allclose(result.parameters.numpy(), x, rtol=1e-9, atol=1e-9)
    plain = oracle.gossip(oracle.Run(task, lambda k: w, steps, rate))
    assert np.ptp(x, axis=0).max() < 0.5 * np.ptp(plain, axis=0).max()  # they agree on one model
