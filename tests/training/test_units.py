"""Runs in which a record is a person: planned, drawn, trained, or refused."""

import numpy as np
import pytest
import torch

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.analysis.optimise.bound import estimate
from tacit.config import load_config
from tacit.data import Dataset
from tacit.errors import InputError
from tacit.training.prepare import prepare

PERSONS, NODES = 30, 3


def site(node, shared=0, seed=0):
    """Persons with 1 to 5 rows each, some of whom are at every site, in no order."""
    draws = np.random.default_rng([seed, node])
    rows = draws.integers(1, 6, PERSONS)
    names = np.arange(PERSONS) + np.where(np.arange(PERSONS) < shared, 0, 1000 * (node + 1))
    ids = np.repeat(names, rows)
    inputs = draws.normal(size=(len(ids), 4)).astype(np.float32)
    targets = (inputs.sum(axis=1) + 0.3 * draws.normal(size=len(ids)) > 0).astype(np.int64)
    order = draws.permutation(len(ids))
    return Dataset(inputs[order], targets[order], ids[order])


def sites(**options):
    return [site(node, **options) for node in range(NODES)]


def experiment(name="privsgp", **changes):
    sections = {
        "task": {"model": "logistic", "outputs": 2},
        "algorithm": {"name": name},
        "privacy": {"epsilon": 4.0, "delta": 1e-3, "noise_seed": 1, "unit": "column:person"},
        "train": {"steps": 4, "batch": 10, "dtype": "float64"},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return sections


def planned(config, nodes):
    return prepare(load_config(config, count=len(nodes)), nodes=nodes).plan


def test_the_plan_counts_persons():
    plan = planned(experiment(), sites())
    assert [node.records for node in plan.nodes] == [PERSONS] * NODES
    assert [node.rate for node in plan.nodes] == [10 / PERSONS] * NODES
    by_row = planned(experiment(privacy={"unit": "record"}), sites())
    assert [node.records for node in by_row.nodes] == [len(own) for own in sites()]


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.private])
def test_every_private_algorithm_trains_by_person(name):
    """And with one row a person it trains what it trains by record, to rounding."""
    options = {"task": {"input_bound": 2.0}} if "moments" in name else {}
    found = tacit.train(experiment(name, **options), nodes=sites())
    assert torch.isfinite(found.parameters).all()
    ones = [
        Dataset(own.inputs[rows], own.targets[rows], own.units[rows])
        for own in sites()
        for rows in [np.unique(own.units, return_index=True)[1]]
    ]
    by_person = tacit.train(experiment(name, **options), nodes=ones)
    # Persons come in the order of their ids, as these rows do.
    plain = [Dataset(own.inputs, own.targets) for own in ones]
    options["privacy"] = {"unit": "record"}
    by_record = tacit.train(experiment(name, **options), nodes=plain)
    torch.testing.assert_close(by_person.parameters, by_record.parameters, rtol=1e-7, atol=1e-9)


def test_the_order_of_rows_of_different_persons_does_not_matter():
    own = sites()
    order = [np.argsort(one.units, kind="stable") for one in own]
    moved = [one.chosen(rows) for one, rows in zip(own, order, strict=True)]
    first, second = (tacit.train(experiment(), nodes=nodes) for nodes in (own, moved))
    assert torch.equal(first.parameters, second.parameters)


def test_a_person_at_more_nodes_is_refused():
    with pytest.raises(InputError, match=r"privacy.unit_nodes = '4 of 82 units'"):
        planned(experiment(), sites(shared=4))
    planned(experiment(privacy={"unit_nodes": 3}), sites(shared=4))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"unit": "person"}}, "column:NAME"),
        ({"privacy": {"unit": "column:"}}, "column:NAME"),
        ({"privacy": {"unit_rows": 0}}, "unit_rows"),
        ({"privacy": {"unit_gradient": "median"}}, "unit_gradient"),
        ({"privacy": {"unit_nodes": 0}}, "unit_nodes"),
        ({"task": {"calibrate": "private"}}, "counts records"),
    ],
)
def test_what_cannot_be_by_person(changes, words):
    with pytest.raises(InputError, match=words):
        planned(experiment(**changes), sites())


def test_a_data_set_without_persons():
    config = experiment(nodes={"count": 3}, task={"dataset": "digits", "outputs": 10})
    with pytest.raises(InputError, match=r"does not say whose.*\[unit\]"):
        prepare(load_config(config))


def test_nodes_that_do_not_say_whose_records_they_have():
    own = sites()
    own[1] = Dataset(own[1].inputs, own[1].targets)
    with pytest.raises(InputError, match=r"nodes\[1\]"):
        planned(experiment(), own)


class Tied(torch.nn.Module):
    """One weight twice, for which gradients are those of `torch.func`."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(torch.tanh(self.layer(inputs)))[:, :2]


def test_what_is_tried_on_public_records_is_tried_by_row():
    """The forecast of slow models, the median of public norms, and the constants of a bound."""
    test = site(9)
    config = experiment("dp-sgd", algorithm={"clip": "median"})
    job = prepare(load_config(config, count=3), nodes=sites(), test=(test.inputs, test.targets))
    assert 0 < job.config.algorithm.options.clip < 100
    slow = prepare(load_config(experiment(), count=3), nodes=sites(), model=Tied())
    assert any("torch.func" in note for note in slow.plan.notes)
    by_row = prepare(load_config(experiment(privacy={"unit": "record"}), count=3), nodes=sites())
    by_person = prepare(load_config(experiment(), count=3), nodes=sites())
    found, right = (estimate(job, {}, source="train") for job in (by_person, by_row))
    assert found.value("L") == pytest.approx(right.value("L"), rel=1e-6)
