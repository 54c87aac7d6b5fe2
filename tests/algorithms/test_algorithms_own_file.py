"""One file is an algorithm: that of a published one, as a user's own, does all that it did."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import train

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit import AuditOptions
from tacit.analysis.audit.procedure import audit_job
from tacit.analysis.claims import claims_document
from tacit.cli.tables import plan_document
from tacit.config import load_config
from tacit.training.prepare import prepare

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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
    """`module:ROW` of a copy of an algorithm's file, in a folder that is the current one."""
    built_in = ALGORITHMS[name]
    monkeypatch.chdir(folder)
    module = f"my_{name.replace('-', '_')}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    shutil.copy(built_in.step.__code__.co_filename, folder / f"{module}.py")
    rows = vars(sys.modules[built_in.step.__module__]).items()
    return f"{module}:{next(key for key, row in rows if row is built_in)}"


def told(document, name):
    """A document without the algorithm's name and the time it took."""
    return json.loads(re.sub(rf"(?<![\w-]){name}(?![\w-])", "NAME", document))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_copied_file_does_all_that_the_built_in_does(name, tmp_path, monkeypatch):
    mine = own_row(name, tmp_path, monkeypatch)
    found = {}
    for one in (name, mine):
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
    assert found[mine] == found[name]


@pytest.fixture
def row(monkeypatch):
    """The row of the example, from a folder that is the current one."""
    monkeypatch.delitem(sys.modules, "own_algorithm", raising=False)
    monkeypatch.chdir(EXAMPLES)
    return "own_algorithm:ROW"


def test_the_example_is_its_recursion(row):
    """Against a NumPy loop of the paper's recursion, on nodes that differ and a directed graph."""
    task, steps, rate = oracle.problem("mse", 5), 40, 0.05
    result = train(task, row, {"learning_rate": rate, "final_mixing": 2}, steps=steps)
    run = oracle.Run(task, lambda k: oracle.exponential(5, k), steps, rate)
    x, w = np.tile(task.start, (5, 1)), np.ones(5)
    y = before = np.zeros_like(x)
    for k in range(steps + 2):
        matrix = oracle.exponential(5, k)
        if k < steps:
            gradient = np.stack([run.mean_gradient(i, x[i] / w[i], k) for i in range(5)])
            y, before = y + gradient - before, gradient
            x, y = x - rate * y, matrix @ y
            np.testing.assert_allclose(y.mean(0), gradient.mean(0), atol=1e-12)
        x, w = matrix @ x, matrix @ w
    np.testing.assert_allclose(result.parameters.numpy(), x / w[:, None], rtol=1e-9, atol=1e-9)
    plain = oracle.de_biased(*oracle.push_sum(run, final_mixing=2))
    assert np.ptp(x, axis=0).max() < 0.5 * np.ptp(plain, axis=0).max()  # they agree on one model
