"""However an experiment is spelt, it is the same: file, mapping, overrides, objects, copies."""

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from algorithms.battery_table import rate
from tacit.algorithms import ALGORITHMS
from tacit.config import (
    AlgorithmSection,
    Config,
    Faults,
    Nodes,
    Privacy,
    Promise,
    StatementSection,
    Task,
    Topology,
    Train,
    load_config,
    to_toml,
)
from tacit.errors import InputError

Sections = Mapping[str, Mapping[str, Any]]
KINDS = {
    "task": Task,
    "nodes": Nodes,
    "topology": Topology,
    "algorithm": AlgorithmSection,
    "privacy": Privacy,
    "train": Train,
    "faults": Faults,
    "promise": Promise,
    "statement": StatementSection,
}
PRIVATE = sorted(name for name, row in ALGORITHMS.items() if row.private)
BARE = sorted(set(ALGORITHMS) - set(PRIVATE))


def some(**values):
    """Any of the keys, or none."""
    return st.fixed_dictionaries({}, optional=values)


def noise(name):
    """What may be said of noise and ledgers of an algorithm."""
    if name in BARE:
        return st.just({}) | some(epsilon=st.just("none"), delta=st.floats(1e-9, 0.1))
    budget = st.floats(0.01, 300) | st.lists(st.floats(0.01, 300), min_size=4, max_size=4)
    seed = st.integers(0, 2**63 - 1)
    return (
        some(epsilon=budget | st.just("none"), noise_seed=seed, delta=st.floats(1e-9, 0.1))
        | some(noise_std=st.floats(0.01, 10), accounting=st.just("certified"), noise_seed=seed)
        | some(epsilon_per_round=st.floats(0.01, 3))
        | st.fixed_dictionaries({"accounting": st.just("none"), "noise_std": st.floats(0.1, 10)})
        | some(ledger=st.just("/nowhere/ledgers"), ledger_epsilon=budget).filter(
            lambda said: "ledger" in said
        )
    )


@st.composite
def experiments(draw):
    """Experiments that are right, as a file has them."""
    name = draw(st.sampled_from(sorted(ALGORITHMS)))
    rates = {key: st.floats(1e-6, 10) for key in rate(name, 1.0)}
    kept = draw(st.booleans())
    needs = ALGORITHMS[name].graph
    graphs = ["star"] if needs.weights == "server" else ["ring", "complete", "star"]
    drops = {} if "drop" in needs.no_faults else {"drop": st.floats(0, 0.5)}
    sections = {
        "task": {"dataset": "digits", **draw(some(model=st.sampled_from(["mlp", "logistic"])))},
        "nodes": {"count": 4, **draw(some(partition=st.just("iid")))},
        "topology": draw(some(graph=st.sampled_from(graphs))),
        "algorithm": {
            **({"name": name} if kept or name != "privsgp" else {}),
            **draw(some(**rates, clip=st.floats(0.1, 10))),
        },
        "privacy": draw(noise(name)),
        "train": draw(
            some(
                steps=st.integers(1, 1000),
                batch=st.integers(1, 64) | st.just("all"),
                seed=st.integers(0, 2**63 - 1),
                dtype=st.sampled_from(["float32", "float64"]),
            )
        ),
        "faults": draw(some(**drops, slow=st.just([[1, 0.5]]))),
        "statement": draw(some(purpose=st.just("A test"), organisation_kind=st.just("Industry"))),
    }
    if name == "privsgp-vr":
        sections["promise"] = draw(some(smoothness=st.floats(0.1, 100), initial_gap=st.just(0)))
    return {
        section: values for section, values in sections.items() if values or draw(st.booleans())
    }


def as_file(sections):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.toml"
        path.write_text(tomli_w.dumps(sections), encoding="utf-8")
        return load_config(path)


def as_saved(sections):
    """As a run folder keeps it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(load_config(sections)), encoding="utf-8")
        return load_config(path, saved=True)


def as_overrides(sections):
    said = [
        f"{section}.{key}={tomli_w.dumps({'v': value}).partition('=')[2].strip()}"
        for section, values in sections.items()
        for key, value in values.items()
    ]
    return load_config({}, overrides=said)


def as_objects(sections):
    return Config(**{name: KINDS[name](**values) for name, values in sections.items()})


def as_options(sections):
    """The algorithm's options as an object of their own."""
    given = dict(sections.get("algorithm", {}))
    name = given.pop("name", "privsgp")
    options = ALGORITHMS[name].options(**given)
    return Config(**{**sections, "algorithm": AlgorithmSection(name=name, options=options)})


def as_copy(sections):
    """Of another experiment, each of whose sections is replaced."""
    other = Config(task=Task(dataset="adult"), algorithm={"name": "sgp"})
    made = {name: kind(**sections.get(name, {})) for name, kind in KINDS.items()}
    return other.model_copy(update=made)


SPELLINGS = {
    "file": as_file,
    "saved": as_saved,
    "overrides": as_overrides,
    "objects": as_objects,
    "options": as_options,
    "mappings": lambda sections: Config(**sections),
    "validated": Config.model_validate,
    "validated again": lambda sections: Config.model_validate(Config(**sections).model_dump()),
    "json": lambda sections: Config.model_validate_json(Config(**sections).model_dump_json()),
    "copy": as_copy,
    "deep copy": lambda sections: copy.deepcopy(Config(**sections)),
    "pickle": lambda sections: pickle.loads(pickle.dumps(Config(**sections))),
    "config": lambda sections: load_config(Config(**sections)),
}


NAMING = ("objects", "options", "validated again", "json", "copy")
"""Spellings that always name an algorithm, so that nothing of it is open."""


@pytest.mark.slow
@given(experiments())
def test_every_spelling_is_the_same_experiment(sections):
    plain = load_config(sections)
    named = "name" in sections.get("algorithm", {})
    assert (plain.given is None) == named
    for spelling, made in SPELLINGS.items():
        if not named and spelling in NAMING:
            continue
        found = made(sections)
        assert found == plain, spelling
        assert to_toml(found) == to_toml(plain), spelling
        assert type(found.algorithm.options) is ALGORITHMS[plain.algorithm.name].options


@given(experiments())
def test_no_spelling_of_a_private_algorithm_leaves_the_noise_out_unsaid(sections):
    said = sections.get("privacy", {}).get("epsilon")
    config = Config(**sections)
    private = config.algorithm.name in PRIVATE
    assert config.privacy.noisy == (
        private and (said != "none" or "noise_std" in sections["privacy"])
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_algorithm_gets_the_default_budget_in_python(name):
    task = Task(dataset="digits")
    for config in (
        Config(task=task, algorithm=AlgorithmSection(name=name)),
        Config(task=task, algorithm=AlgorithmSection(name=name), privacy=Privacy()),
        Config(task=task, algorithm={"name": name}, privacy={"delta": 1e-6}),
        Config(task=task, algorithm={"name": "sgp"}).model_copy(
            update={"algorithm": {"name": name}}
        ),
    ):
        assert config.privacy.epsilon == 3.0
        assert config.not_private_reason is None


def test_defaults_of_nothing_at_all():
    config = Config()
    assert (config.algorithm.name, config.privacy.epsilon) == ("privsgp", 3.0)
    assert config.topology.graph == "exponential"
    assert AlgorithmSection() == config.algorithm
    assert Config(algorithm={"name": "dp2-sgd"}).topology.graph == "ring"
    assert Config(algorithm={"name": "dp-fedavg"}).topology.graph == "star"


@pytest.mark.parametrize("name", BARE)
def test_an_algorithm_without_noise_gets_no_budget(name):
    assert Config(algorithm=AlgorithmSection(name=name), privacy=Privacy()).privacy.epsilon is None


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: Privacy(epsilon=-1), "privacy.epsilon"),
        (lambda: Privacy().model_copy(update={"epsilon": 0}), "privacy.epsilon"),
        (lambda: Config().model_copy(update={"privacy": {"epsilon": 0}}), "privacy.epsilon"),
        (lambda: Config(privacy={"epsilon": [1.0, 2.0]}), "privacy.epsilon"),
        (lambda: Config(privacy={"epsilonn": 1}), "privacy.epsilonn"),
        (lambda: Config(privcy={}), "[privcy]"),
        (lambda: Config(privacy=3), "[privacy]"),
        (lambda: Config(privacy=Train()), "[privacy]"),
        (lambda: Config(privacy={3: 4}), "[privacy]"),
        (lambda: Config.model_validate({"train": {"steps": 0}}), "train.steps"),
        (lambda: Config.model_validate(7), "[config]"),
        (lambda: AlgorithmSection(name="privspg"), "algorithm.name"),
        (lambda: AlgorithmSection(name="dp2-sgd", momentum=0.9), "algorithm.momentum"),
        (lambda: AlgorithmSection(name="dp2-sgd", options={"clip": 0}), "algorithm.clip"),
        (lambda: AlgorithmSection(options=5), "algorithm.options"),
        (
            lambda: AlgorithmSection(name="dp2-sgd", options=ALGORITHMS["privsgp"].options()),
            "algorithm.momentum",
        ),
        (
            lambda: Config(algorithm={"name": "sgp"}, privacy=Privacy(epsilon=1.0)),
            "privacy.epsilon",
        ),
        (lambda: Config(privacy=Privacy(accounting="none")), "privacy.accounting"),
        (lambda: Config(privacy=Privacy(ledger="ledgers", noise_seed=1)), "privacy.ledger"),
    ],
)
def test_what_is_wrong_is_said_in_python_as_in_a_file(
    make: Callable[[], object], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.where == where
    assert str(caught.value).isprintable()
