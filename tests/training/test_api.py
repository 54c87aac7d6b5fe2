"""Forty and more wrong calls of `tacit.train`: each is refused by name, in one plain line."""

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nested import nested_tensor
from torch.utils.data import Dataset as TorchDataset

import tacit
from tacit.errors import BudgetError, DivergenceError, TacitError
from tacit.training.api import check_arguments

SECRET = 31337.0  # stands in private records, and in no message
BASE = {
    "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "train": {"steps": 2, "batch": "all"},
}


def records(count=12):
    """Records whose inputs hold the secret."""
    return torch.full((count, 3), SECRET), torch.arange(count) % 2


def config(**changes):
    """The base experiment with some keys changed."""
    sections = {**BASE, **changes}
    return {name: {**BASE.get(name, {}), **changes.get(name, {})} for name in sections}


def nodes(change):
    """Two nodes, the second of which is changed."""
    return {"nodes": [records(), change(*records())]}


def setting(section, **values):
    """One section changed."""
    return {"config": config(**{section: values})}


class Exits(TorchDataset[Any]):
    """A user's data set that ends the program."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        sys.exit(0)


def meta():
    """A module without numbers."""
    return nn.Linear(3, 2, device="meta")


# What is called otherwise than it should be, and words that the message must have.
WRONG = {
    "config None": ({"config": None}, ("config", "mapping", "tacit.Config")),
    "config number": ({"config": 3}, ("config = 'int'", "path")),
    "config list": ({"config": []}, ("config = 'list'", "path")),
    "config bytes": ({"config": b"x.toml"}, ("config = 'bytes'", "path")),
    "config missing": ({"config": "nope.toml"}, ("nope.toml", "TOML")),
    "config folder": ({"config": "."}, ("Is a directory", "TOML")),
    "config flat": ({"config": {"steps": 3}}, ("steps = 3", "section")),
    "config section": ({"config": {"trian": {}}}, ("[trian]", "'train'")),
    "nodes mapping": ({"nodes": {1: records(), "1": records()}}, ("nodes", "a name of its own")),
    "nodes by no name": ({"nodes": {None: 1, "b": 2}}, ("nodes", "a name of its own")),
    "nodes mapping of none": ({"nodes": {}}, ("nodes", "one data set a node")),
    "nodes generator": ({"nodes": (records() for _ in "ab")}, ("'generator'", "list")),
    "nodes number": ({"nodes": 4}, ("nodes = 'int'", "list")),
    "nodes words": ({"nodes": "digits"}, ("nodes = 'digits'", "list")),
    "nodes tensor": ({"nodes": records()[0]}, ("nodes = 'Tensor'", "list")),
    "nodes pair": ({"nodes": records()}, ("nodes", "single node, [nodes]")),
    "nodes none of them": ({"nodes": []}, ("nodes", "one data set a node")),
    "node None": ({"nodes": [records(), None]}, ("nodes[1]", "Dataset")),
    "node sparse": (nodes(lambda x, y: (x.to_sparse(), y)), ("nodes[1]", "sparse coo", "to_dense")),
    "node csr": (nodes(lambda x, y: (x.to_sparse_csr(), y)), ("nodes[1]", "csr", "to_dense")),
    "node csc": (nodes(lambda x, y: (x.to_sparse_csc(), y)), ("nodes[1]", "csc", "to_dense")),
    "node meta": (nodes(lambda x, y: (x.to("meta"), y)), ("nodes[1]", "meta", "'cpu'")),
    "node targets meta": (nodes(lambda x, y: (x, y.to("meta"))), ("nodes[1]", "meta")),
    "node targets sparse": (nodes(lambda x, y: (x, y.to_sparse())), ("nodes[1]", "to_dense")),
    "node complex": (nodes(lambda x, y: (x.to(torch.complex64), y)), ("nodes[1]", "real")),
    "node quantised": (
        nodes(lambda x, y: (torch.quantize_per_tensor(x, 1.0, 0, torch.qint32), y)),
        ("nodes[1]", "dequantize"),
    ),
    "node nested": (
        # Made when it is asked for: PyTorch loads for seconds what nested tensors need.
        lambda: nodes(lambda x, y: (nested_tensor(list(x), layout=torch.jagged), y)),
        ("nodes[1]", "to_padded_tensor"),
    ),
    "node scipy": (
        nodes(lambda x, y: (scipy.sparse.csr_matrix(x.numpy()), y)),
        ("nodes[1]", "array of numbers"),
    ),
    "node masked": (
        nodes(lambda x, y: (np.ma.masked_array(x.numpy(), x.numpy() > 0), y)),
        ("nodes[1]", "mask"),
    ),
    "node words": (nodes(lambda x, y: (x.numpy().astype(str), y)), ("nodes[1]", "numbers")),
    "node not finite": (nodes(lambda x, y: (x / 0, y)), ("nodes[1]", "finite", "12 of 12")),
    "node empty": (nodes(lambda x, y: (x[:0], y[:0])), ("'node 1'", "has none: name it")),
    "node uneven": (nodes(lambda x, y: (x, y[:5])), ("nodes[1]", "as many targets")),
    "node wider": (nodes(lambda x, y: (x[:, :2], y)), ("nodes[1]", "as node 0")),
    "node classes": (nodes(lambda x, y: (x, y + 31337)), ("nodes[1]", "0..1", "12 of 12")),
    "node exits": (nodes(lambda x, y: Exits()), ("nodes[1]", "SystemExit", "readable")),
    "test meta": ({"test": (records()[0].to("meta"), records()[1])}, ("test", "meta")),
    "test sparse": ({"test": (records()[0].to_sparse(), records()[1])}, ("test", "to_dense")),
    "test wider": ({"test": (torch.zeros(4, 9), torch.zeros(4).long())}, ("test", "[3]")),
    "test classes": ({"test": (torch.zeros(4, 3), torch.arange(4))}, ("test = ", "0..1")),
    "test undeclared": (
        {"test": (torch.zeros(4, 3), torch.arange(4)), **setting("task", outputs=2)},
        ("test", "2 of 4", "0 to 1"),
    ),
    "outputs of another model": (setting("task", outputs=5), ("task.outputs", "2 numbers")),
    "model class": ({"model": nn.Linear}, ("model", "instance", "Linear(...)")),
    "model function": ({"model": torch.relu}, ("model", "torch.nn.Module")),
    "model meta": ({"model": meta()}, ("model", "weight", "to_empty")),
    "model complex": ({"model": nn.Linear(3, 2, dtype=torch.complex64)}, ("model", "real")),
    "out number": ({"out": 5}, ("out = 5", "path")),
    "out taken": ({"out": "."}, ("out", "exists already")),
    "resume nothing": ({"resume": True}, ("out", "name the run folder")),
    "resume nowhere": ({"resume": True, "out": "nope"}, ("nope", "no run to resume")),
    "epsilon array": (setting("privacy", epsilon=np.ones(3)), ("privacy.epsilon", "2 nodes")),
    "epsilon negative": (setting("privacy", epsilon=np.float32(-1)), ("privacy.epsilon", "posit")),
    "epsilon matrix": (setting("privacy", epsilon=np.ones((2, 2))), ("privacy.epsilon", "list")),
    "epsilon meta": (
        setting("privacy", epsilon=torch.ones(2, device="meta")),
        ("privacy.epsilon", "positive"),
    ),
    "delta": (setting("privacy", delta=np.float64(1e-300)), ("privacy.delta", "1e-100")),
    "steps": (setting("train", steps=2.5), ("train.steps = 2.5", "whole number")),
    "momentum": (setting("algorithm", momentum=0.9), ("algorithm.momentum", "privsgp")),
    "dataset beside nodes": (setting("task", dataset="digits"), ("task.dataset", "nodes=")),
}


def refused(**changes):
    """The message of a call that is refused."""
    given = {"config": config(), "model": nn.Linear(3, 2), "nodes": [records(), records()]}
    with pytest.raises(tacit.InputError) as caught:
        tacit.train(**{**given, **changes})
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_by_name_in_one_line(name, tmp_path, monkeypatch):
    """What would be right is said, nothing of a record, and nothing is left behind."""
    assert len(WRONG) >= 40
    monkeypatch.chdir(tmp_path)
    changes, words = WRONG[name]
    message = refused(**(changes() if callable(changes) else changes))
    assert "\n" not in message
    for word in words:
        assert word in message
    assert "31337" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config None", "nodes mapping", "model class", "out number"])
def test_arguments_of_a_wrong_kind_are_refused_before_anything_is_read(name):
    changes, words = WRONG[name]
    given = {"config": {}, "model": None, "nodes": None, "out": None, **changes}
    with pytest.raises(tacit.InputError) as caught:
        check_arguments(**given)
    assert all(word in str(caught.value) for word in words)


def test_a_budget_that_arithmetic_alone_exceeds_names_one_that_fits():
    given = {"model": nn.Linear(3, 2), "nodes": [records(), records()]}
    with pytest.raises(BudgetError) as caught:
        tacit.train(config(privacy={"epsilon": 1e-9}), **given)
    message = str(caught.value)
    assert message.startswith("nodes 0, 1: privacy.epsilon = 1e-09")
    fits = float(message.rpartition(": ")[2].removesuffix(" fits"))
    result = tacit.train(config(privacy={"epsilon": fits}), **given)
    assert all(spent is not None and spent <= fits for spent in result.epsilon)


def test_a_parameter_beyond_all_measure_is_no_result():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(1e30)
    with pytest.raises(DivergenceError, match="numbers above 1e\\+15") as caught:
        tacit.train(config(), model=model, nodes=[records(), records()])
    assert isinstance(caught.value, TacitError)
