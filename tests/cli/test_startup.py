"""What a command loads before it does anything, and that the short ways to start are exact."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as from_scikit_learn
from sklearn.model_selection import train_test_split

from experiments import tacit
from tacit import data
from tacit.config import load_config
from tacit.data import Dataset
from tacit.data.formats import digits as digits_of
from tacit.data.formats.digits import load_digits, stratified_split
from tacit.data.public_coins import TEST_SPLIT, public_generator
from tacit.errors import InputError
from tacit.training.planner import build_plan

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits.toml"

# Each takes a tenth of a second or more to import.
SLOW = (
    "torch",
    "numba",
    "plotly",
    "sklearn",
    "pandas",
    "scipy.stats",
    "dp_accounting",
    "matplotlib",
    "numba",
    "pooch",
    "networkx",
)

MEASURE = """
import json, sys
code, sys.argv = int(sys.argv[2]), ["tacit", *json.loads(sys.argv[1])]
from tacit.cli.main import main
try:
    main()
except SystemExit as done:
    assert (done.code or 0) == code, done.code
print("\\n" + json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def started(*arguments, code=0):
    """The first line on standard error, and the modules that a command has loaded when it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(arguments), str(code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    line, *_, modules = ended.stderr.splitlines()
    return line, set(json.loads(modules))


def loaded(*arguments):
    return started(*arguments)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plan", "--help"),
        ("privacy", "--help"),
        ("site", "--help"),
        ("consortium", "approve", "--help"),
        ("--version",),
    ],
)
def test_help_and_version_load_nothing_slow(arguments):
    assert loaded(*arguments).isdisjoint([*SLOW, "numpy", "scipy", "zenoh", "cryptography"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["plan", "nope.toml"], "nope.toml"),
        (["train", str(DIGITS), "--set", "task.dataset=csv:nope.csv"], "task.dataset"),
        (["launch", str(DIGITS), "--processes", "2", "--set", "task.test=csv:no.csv"], "task.test"),
        (["compare", str(DIGITS), "nope.toml"], "nope.toml"),
    ],
)
def test_a_missing_file_is_said_before_anything_slow_is_loaded(arguments, wanted):
    line, modules = started(*arguments, code=2)
    assert line.startswith("tacit: ")
    assert wanted in line
    assert modules.isdisjoint([*SLOW, "numpy", "scipy"])


def test_a_plan_loads_torch_and_nothing_else_that_is_slow():
    found = loaded("plan", str(DIGITS))
    assert "torch" in found
    assert found.isdisjoint(
        {*SLOW, "tacit.training.loop", "tacit.analysis.audit", "tacit.analysis.compare"} - {"torch"}
    )


def test_training_and_its_report_load_only_what_they_use(tmp_path):
    found = loaded("train", str(DIGITS), "--set", "train.steps=2", "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").is_file()
    assert found.isdisjoint({*SLOW} - {"torch", "numba"})


def test_garbage_is_looked_for_as_usual_after_the_command_line():
    usual = gc.get_threshold()
    seen = []

    def looked():
        seen.append(gc.get_threshold())
        return []

    with patch("tacit.cli.tables.algorithms_blocks", looked):
        assert tacit("algorithms").code == 0
    assert seen[0][0] > usual[0]
    assert gc.get_threshold() == usual


def test_the_digits_are_those_of_scikit_learn():
    pixels, labels = from_scikit_learn(return_X_y=True)
    numbers = np.arange(len(labels))
    loaded_digits = load_digits(7)
    generator = public_generator(7, TEST_SPLIT)
    halves = train_test_split(
        numbers, test_size=0.2, stratify=labels, random_state=int(generator.integers(2**32))
    )
    assert loaded_digits.test is not None
    for half, found in zip(halves, (loaded_digits.train, loaded_digits.test), strict=True):
        right = torch.as_tensor(pixels[half] / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
        assert found.inputs.equal(right)
        assert found.targets.equal(torch.from_numpy(labels[half]).to(torch.int64))


def test_the_digits_are_the_same_where_their_file_is_not_found(monkeypatch, tmp_path):
    usual = load_digits(0)
    monkeypatch.setattr(digits_of, "_package_folders", lambda: [tmp_path])
    other = load_digits(0)
    assert other.train.inputs.equal(usual.train.inputs)
    assert other.train.targets.equal(usual.train.targets)


@pytest.mark.parametrize("seed", range(12))
def test_a_stratified_split_is_that_of_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, draw.integers(2, 7), int(draw.integers(80, 300)))
    share = float(draw.choice([0.1, 0.2, 1 / 3, 0.5]))
    right = train_test_split(
        np.arange(len(labels)), test_size=share, stratify=labels, random_state=seed
    )
    found = stratified_split(labels, share, seed)
    np.testing.assert_array_equal(found[0], right[0])
    np.testing.assert_array_equal(found[1], right[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["integer", "floating"])
def test_parts_are_stacked_as_data_sets_of_their_own_are(dtype, kind):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 2, 3, generator=draw)
    targets = torch.arange(30) if kind == "integer" else torch.randn(30, 2, generator=draw)
    whole = Dataset(inputs, targets)
    order = np.random.default_rng(0).permutation(30)
    parts = [order[:4], order[4:5], order[5:]]
    found = data.stack_parts(whole, parts, dtype, "cpu")
    right = data.stack([Dataset(inputs[part], targets[part]) for part in parts], dtype, "cpu")
    for name in ("inputs", "targets", "offsets", "sizes"):
        assert getattr(found, name).equal(getattr(right, name))
        assert getattr(found, name).dtype == getattr(right, name).dtype
    found.inputs.zero_()
    assert inputs.any()  # a copy of its own


def test_numbers_whose_sum_overflows_are_finite_all_the_same():
    largest = torch.finfo(torch.float32).max
    enough = Dataset(torch.full((8, 3), largest), torch.zeros(8))
    data.check_dataset(enough, "nodes[0]")


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_found_wherever_it_lies(wrong):
    for record in (0, 7, 99):
        inputs = torch.ones(100, 5)
        inputs[record, 3] = wrong
        inputs[(record + 1) % 100, 0] = -wrong  # infinities that would cancel
        with pytest.raises(InputError, match="must be finite") as refused:
            data.check_dataset(Dataset(inputs, torch.zeros(100)), "nodes[2]")
        assert refused.value.value == "2 of 100 records"


def federated(**privacy):
    """FedSPD-DP with 12 clients of two sizes, 3 a round: they take part in 0 to 5 rounds."""
    config = load_config(
        {
            "task": {"model": "logistic", "loss": "logistic"},
            "algorithm": {
                "name": "fedspd-dp",
                "clip": 1.0,
                "penalty": 0.1,
                "inverse_step": 0.3,
                "local_steps": 2,
                "clients_per_round": 3,
                "state": "public",
            },
            "privacy": {"delta": 1e-4, "relation": "replace-one", **privacy},
            "train": {"steps": 8, "batch": 10, "sampling": "fixed"},
        },
        count=12,
        given_model=True,
    )
    return build_plan(config, [300] * 6 + [301] * 6, parameters=20)


def test_clients_that_differ_in_how_often_they_take_part_share_one_search():
    plan = federated(epsilon_per_round=0.5)
    scales = {
        records: {node.noise_scale for node in plan.nodes if node.records == records}
        for records in (300, 301)
    }
    assert [len(found) for found in scales.values()] == [1, 1]
    assert scales[300] != scales[301]
    assert len({node.epsilon for node in plan.nodes}) > 2
    for node in filter(plan.release.active_steps, plan.nodes):
        first = plan.release.active_steps(node)[0]
        cost = plan.release.epsilon(node, [(first, first + 1)])
        assert cost is not None
        assert 0.5 * 0.99 <= cost <= 0.5
