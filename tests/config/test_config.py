"""The experiment file: defaults, overrides, round trips, and what is refused."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import experiment, write_experiment
from tacit.algorithms import ALGORITHMS
from tacit.config import (
    Config,
    StatementSection,
    flat,
    free_keys,
    known_as,
    load_config,
    site_keys,
    to_toml,
)
from tacit.errors import InputError
from tacit.topology.graphs import GRAPHS
from tacit.topology.own import build_schedule

DIGITS = {"task": {"dataset": "digits"}}


def refusal(*overrides, **changes):
    with pytest.raises(InputError) as caught:
        load_config(experiment(**changes), overrides=overrides)
    assert "\n" not in str(caught.value)
    return caught.value


def test_every_default():
    config = load_config(DIGITS)
    assert config.model_dump(exclude={"algorithm"}) == {
        "task": {
            "dataset": "digits",
            "model": "mlp",
            "features": None,
            "labels": None,
            "index_base": None,
            "features_cache": None,
            "outputs": None,
            "output": None,
            "input_bound": None,
            "target_bound": None,
            "loss": "cross-entropy",
            "class_weights": None,
            "augmentation": None,
            "metric": None,
            "calibrate": "none",
            "data_dir": "data",
            "schema": None,
            "test": None,
            "test_share": None,
        },
        "nodes": {
            "count": 16,
            "partition": "iid",
            "alpha": None,
            "per_node": None,
            "names": None,
            "data": "split",
            "source": None,
            "weights": None,
            "without_records": None,
            "part": None,
            "placement": "blocks",
        },
        "topology": {
            "graph": "exponential",
            "undirected": None,
            "mixing": None,
            "degree": None,
            "shape": None,
            "probability": None,
            "partners": None,
            "rounds": None,
        },
        "privacy": {
            "epsilon": 3.0,
            "guess": None,
            "delta": 1e-5,
            "noise_std": None,
            "epsilon_per_round": None,
            "published_constant": 1.0,
            "accounting": "certified",
            "relation": "add-or-remove-one",
            "noise": "independent",
            "bands": None,
            "colluding": None,
            "pair_noise": None,
            "aggregation": "clear",
            "noise_seed": None,
            "keystream": None,
            "calibrate_share": None,
            "unit": "record",
            "unit_rows": 16,
            "unit_gradient": "mean",
            "unit_nodes": 1,
            "ledger": None,
            "ledger_source": None,
            "ledger_epsilon": None,
            "ledger_delta": None,
        },
        "train": {
            "steps": 500,
            "batch": "auto",
            "sampling": "poisson",
            "views": None,
            "average": "none",
            "seed": 0,
            "dtype": "float32",
            "precision": "float32",
            "device": "cpu",
            "evaluate_every": None,
            "evaluate_records": 1000,
            "suboptimality": False,
            "checkpoint_every": None,
            "timeout": 60.0,
            "patience": 3600.0,
        },
        "faults": {"drop": 0.0, "drop_edges": (), "down": (), "slow": (), "tolerate": False},
        "promise": {
            "smoothness": None,
            "initial_gap": None,
            "heterogeneity": None,
            "push_sum_constant": None,
            "push_sum_rate": None,
        },
        "statement": dict.fromkeys(StatementSection.model_fields),
    }
    assert config.algorithm.name == "privsgp"
    assert config.algorithm.options.model_dump() == {
        "learning_rate": 0.05,
        "learning_rate_schedule": "constant",
        "warm_up": 0,
        "clip": None,
        "clip_norm": "l2",
        "momentum": 0.0,
        "final_mixing": 0,
    }


@pytest.mark.parametrize(
    ("privacy", "epsilon"),
    [
        ({}, 3.0),
        ({"accounting": "published"}, 3.0),
        ({"noise_std": 1.0}, None),
        ({"accounting": "none", "noise_std": 1.0}, None),
        ({"epsilon_per_round": 1.0}, None),
        ({"epsilon": "none"}, "none"),
        ({"accounting": "none", "epsilon": "none"}, "none"),
        ({"noise_std": 1.0, "epsilon": 2}, 2.0),
    ],
)
def test_a_private_algorithm_gets_a_budget_unless_its_noise_is_given(privacy, epsilon):
    config = load_config({**DIGITS, "algorithm": {"name": "privsgp"}, "privacy": privacy})
    assert config.privacy.epsilon == epsilon


def test_an_algorithm_without_noise_gets_no_budget():
    config = load_config({**DIGITS, "algorithm": {"name": "sgp"}})
    assert config.privacy.epsilon is None
    assert not config.privacy.noisy
    assert config.not_private_reason == "sgp adds no noise"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_resolved_experiment_reads_back_as_itself(name, tmp_path):
    config = load_config({**DIGITS, "algorithm": {"name": name}})
    path = tmp_path / "resolved.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(path) == config
    assert load_config(tomllib.loads(to_toml(config))) == config
    assert load_config(config) == config


@given(
    count=st.integers(1, 6),
    budget=st.floats(1e-3, 1e3),
    delta=st.floats(1e-9, 0.5),
    lists=st.booleans(),
    steps=st.integers(1, 10**6),
    batch=st.integers(1, 10**6) | st.just("all"),
    seed=st.integers(0, 2**63 - 1),
    rate=st.floats(1e-12, 1e12),
)
def test_values_survive_the_round_trip(count, budget, delta, lists, steps, batch, seed, rate):
    config = load_config(
        {
            **DIGITS,
            "nodes": {"count": count},
            "algorithm": {"name": "privsgp", "learning_rate": rate},
            "privacy": {
                "epsilon": [budget] * count if lists else budget,
                "delta": [delta] * count if lists else delta,
            },
            "train": {"steps": steps, "batch": batch, "seed": seed},
        }
    )
    assert load_config(tomllib.loads(to_toml(config))) == config
    assert config.per_node(config.privacy.epsilon) == (budget,) * count
    assert config.per_node(config.privacy.delta) == (delta,) * count
    assert (config.train.steps, config.train.batch, config.train.seed) == (steps, batch, seed)
    assert config.algorithm.options.learning_rate == rate


def test_overrides_take_numbers_strings_lists_and_bare_words():
    config = load_config(
        DIGITS,
        overrides=[
            "nodes.count=2",
            "privacy.epsilon=[1.5, 4]",
            "privacy.delta=1e-6",
            "topology.graph=ring",
            'task.data_dir="my files"',
            "task.model=my_models:network",
            "train.batch=all",
            " algorithm.learning_rate = 2",
            "train.steps=7",
            "train.steps=8",
        ],
    )
    assert config.nodes.count == 2
    assert config.privacy.epsilon == (1.5, 4.0)
    assert config.privacy.delta == 1e-6
    assert config.topology.graph == "ring"
    assert config.task.data_dir == "my files"
    assert config.task.model == "my_models:network"
    assert config.train.batch == "all"
    assert config.algorithm.options.learning_rate == 2.0
    assert config.train.steps == 8  # the last one wins


def test_an_override_leaves_the_callers_mapping_as_it_was():
    source = experiment()
    load_config(source, overrides=["train.steps=99", "privacy.delta=0.5"], given_model=True)
    assert source == experiment()


def test_an_override_may_name_the_data_set():
    assert load_config({}, overrides=["task.dataset=digits"]).task.dataset == "digits"


@pytest.mark.parametrize("override", ["train.steps", "steps=3", "=3", ".steps=3", "train.=3", ""])
def test_an_override_of_another_form_is_refused(override):
    error = refusal(override)
    assert (error.where, error.value) == ("--set", override)
    assert "section.key=value" in error.expected


@pytest.mark.parametrize(
    ("override", "where", "meant"),
    [
        ("train.step=3", "train.step", "did you mean 'steps'?"),
        ("privacy.epsilonn=3", "privacy.epsilonn", "did you mean 'epsilon'?"),
        ("algorithm.learningrate=3", "algorithm.learningrate", "did you mean 'learning_rate'?"),
        (
            "task.zzz=3",
            "task.zzz",
            "this takes: augmentation, calibrate, class_weights, data_dir, dataset, ",
        ),
        ("trainn.steps=3", "[trainn]", "did you mean 'train'?"),
        (
            "zzz.steps=3",
            "[zzz]",
            "known are: algorithm, faults, nodes, privacy, promise, statement, task, topology",
        ),
        ("algorithm.name=privspg", "algorithm.name", "did you mean 'privsgp'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_all(override, where, meant):
    error = refusal(override)
    assert error.where == where
    assert meant in error.expected


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ({"task": {"data": "digits"}}, "task.data"),
        ({"tasks": {"dataset": "digits"}}, "[tasks]"),
        ({"task": {"model": "mlp"}}, "task.dataset"),
    ],
)
def test_a_key_that_is_misspelt_is_said_before_one_that_is_missing(raw, where):
    with pytest.raises(InputError) as refused:
        load_config(raw)
    assert refused.value.where == where


def test_an_option_of_another_algorithm_is_unknown():
    error = refusal("algorithm.name=dp2-sgd", "algorithm.momentum=0.9")
    assert error.where == "algorithm.momentum"
    assert "clip, clip_norm, learning_rate" in error.expected


def test_a_key_outside_a_section_is_refused():
    with pytest.raises(InputError, match="must be a section"):
        load_config({"steps": 5})


EACH = "one for each node (a table by their names, a list if they have none)"
NOT_EPSILON = f"must be a positive number, {EACH}, or 'none'"
NOT_LEDGER_EPSILON = f"must be a positive number, or {EACH}"
NOT_DELTA = f"must lie strictly between 0 and 1, or be {EACH}"
NOT_BATCH = "must be a whole number of 1 or more, or 'all'"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        *((f"privacy.epsilon={value}", NOT_EPSILON) for value in ("0", "-1", "nan", "inf")),
        *((f"privacy.epsilon={value}", NOT_EPSILON) for value in ("[]", "true", "much", '"3"')),
        *((f"privacy.epsilon={value}", NOT_EPSILON) for value in ("[1, 1, 1, 0]", "[[1]]")),
        ("privacy.epsilon=[1, 2, 3]", "needs one number for each of the 4 nodes"),
        *((f"privacy.delta={value}", NOT_DELTA) for value in ("0", "1", "2", "-0.1", "nan")),
        *((f"privacy.delta={value}", NOT_DELTA) for value in ("none", "[]", "[0.1, 0.1, 0.1, 1]")),
        ("privacy.delta=[1e-5]", "needs one number for each of the 4 nodes"),
        *((f"privacy.ledger_epsilon={value}", NOT_LEDGER_EPSILON) for value in ("0", "none", "[]")),
        ("privacy.ledger_source=''", "String should match pattern"),
        ("privacy.ledger_source='a  b'", "String should match pattern"),
        ("privacy.ledger_source=' a'", "String should match pattern"),
        *((f"privacy.ledger_delta={value}", NOT_DELTA) for value in ("0", "1", "none", "[]")),
        ("privacy.ledger=''", "must not be empty"),
        ("privacy.noise_std=0", "must be a number from 1e-38 to 1e38"),
        ("privacy.noise_std=inf", "must be a finite number"),
        ("privacy.noise_seed=-1", "must be 0 or more"),
        ("privacy.noise_seed=9223372036854775808", "must be below 9223372036854775808"),
        ("privacy.accounting=trust-me", "must be 'certified', 'published' or 'none'"),
        ("privacy.relation=add", "must be 'add-or-remove-one' or 'replace-one'"),
        ("train.steps=0", "must be 1 or more"),
        ("train.steps=100000000000000", "must be at most 10000000"),
        ("train.steps=1.5", "must be a whole number"),
        ("train.steps=many", "must be a whole number"),
        *((f"train.batch={value}", NOT_BATCH) for value in ("0", "-3", "some", "1.5", "true")),
        ("train.seed=9223372036854775808", "must be below 9223372036854775808"),
        ("train.dtype=float16", "must be 'float32' or 'float64'"),
        ("train.precision=fp16", "must be 'float32', 'tf32' or 'bf16'"),
        ("train.sampling=uniform", "must be 'poisson', 'fixed', 'allocation' or 'cyclic'"),
        ("train.evaluate_every=0", "must be 1 or more"),
        ("nodes.count=0", "must be 1 or more"),
        ("nodes.alpha=nan", "must be a finite number"),
        ("algorithm.clip=0", "must be a number from 1e-38 to 1e38"),
        ("algorithm.clip=nan", "must be a finite number"),
        ("algorithm.learning_rate=inf", "must be a finite number"),
        ("algorithm.learning_rate=fast", "must be a positive number, or 'sqrt(n/K)'"),
        ("algorithm.name=5", "is no algorithm here; known are: "),
        ("algorithm.name=[1]", "is no algorithm here; known are: "),
        ("task.loss=hinge", "must be 'cross-entropy', 'mse', 'huber' or 'logistic'"),
        ("task.data_dir=3", "must be a text"),
        ("topology.mixing=magic", "must be 'metropolis', 'laplacian' or 'uniform'"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(override, expected):
    error = refusal(override)
    assert error.where == override.partition("=")[0]
    assert error.expected.startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "where", "expected"),
    [
        (["accounting=none", "epsilon=3"], "privacy.accounting", "give noise_std, not epsilon"),
        (["accounting=published"], "privacy.accounting", "leave noise_std out"),
        (["accounting=published", "epsilon=3"], "privacy.accounting", "leave noise_std out"),
        (["ledger_source=ward"], "privacy.ledger_source", "name its folder in privacy.ledger"),
        (["ledger_epsilon=3"], "privacy.ledger_epsilon", "name its folder in privacy.ledger"),
        (["ledger_delta=1e-5"], "privacy.ledger_delta", "name its folder in privacy.ledger"),
        (["ledger=ledgers"], "privacy.ledger", "privacy.noise_seed lets anyone subtract"),
        (["ledger=ledgers", "accounting=none"], "privacy.ledger", "leaves nothing to reserve"),
    ],
)
def test_settings_that_contradict_each_other(overrides, where, expected):
    error = refusal(*(f"privacy.{override}" for override in overrides))
    assert error.where == where
    assert expected in error.expected


def test_no_noise_at_all_must_be_said():
    """Accounting that is switched off does not switch the noise off."""
    for accounting in ("certified", "published", "none"):
        sections = {**DIGITS, "privacy": {"accounting": accounting, "epsilon": "none"}}
        assert load_config(sections).not_private_reason == "no noise is added"
    error = refusal(privacy={"noise_std": None, "accounting": "none"})
    assert error.where == "privacy.accounting"
    assert "epsilon = 'none' for no noise" in error.expected


def test_a_published_claim_needs_a_formula():
    error = refusal(
        algorithm={"name": "dp2-sgd"}, privacy={"noise_std": None, "accounting": "published"}
    )
    assert error.where == "privacy.accounting"
    assert "no formula for dp2-sgd" in error.expected


@pytest.mark.parametrize(
    ("privacy", "where"),
    [({"epsilon": 3}, "privacy.epsilon"), ({"noise_std": 1.0}, "privacy.noise_std")],
)
@pytest.mark.parametrize("name", ["sgp", "d-psgd"])
def test_an_algorithm_without_noise_takes_neither_budget_nor_noise(name, privacy, where):
    with pytest.raises(InputError) as caught:
        load_config({**DIGITS, "algorithm": {"name": name}, "privacy": privacy})
    assert caught.value.where == where
    assert f"{name} adds no noise" in caught.value.expected


def test_fixed_batches_are_accounted_under_replace_one_only():
    fixed = {"batch": 8, "sampling": "fixed"}
    assert refusal(train=fixed).where == "train.sampling"
    accepted = [
        {"privacy": {"relation": "replace-one"}},
        {"privacy": {"accounting": "none"}},
        {"privacy": {"noise_std": None}, "algorithm": {"name": "sgp"}},
        {"train": {"batch": "all"}},  # every record at every step: nothing is sampled
    ]
    for changes in accepted:
        sections = experiment(**{"train": fixed, **changes})
        sections["train"]["sampling"] = "fixed"
        assert load_config(sections).train.sampling == "fixed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"train": {"dtype": "float64"}}, "where train.dtype is 'float64'"),
        (
            {"algorithm": {"name": "noised-moments", "learning_rate": None}},
            "noised-moments makes none",
        ),
        ({"algorithm": {"name": "fedspd-dp"}, "topology": {"graph": "star"}}, "are in float64"),
    ],
)
def test_passes_of_low_precision_are_refused_where_there_are_none(changes, why):
    for precision in ("bf16", "tf32"):
        train = {**changes.get("train", {}), "precision": precision}
        error = refusal(**{**changes, "train": train})
        assert (error.where, error.value) == ("train.precision", precision)
        assert why in error.expected


def test_allocation_is_refused_where_nothing_is_proved():
    train = {"batch": 8, "sampling": "allocation"}
    error = refusal(train=train, privacy={"relation": "replace-one"})
    assert (error.where, error.value) == ("train.sampling", "allocation")
    assert "add-or-remove-one" in error.expected
    for name in ("privsgp-vr", "dp-fedavg", "cpgt", "fedspd-dp"):
        options = {"clip_norm": "l1"} if name == "cpgt" else {}
        error = refusal(
            train=train, algorithm={"name": name, **options}, topology={"graph": "star"}
        )
        assert error.where == "train.sampling", name
        assert name in error.expected
    for name in ("privsgp", "dp2-sgd", "do-adp"):
        graph = {"graph": "ring"} if name != "privsgp" else {}
        sections = experiment(train=train, algorithm={"name": name}, topology=graph)
        assert load_config(sections).train.sampling == "allocation"


@pytest.mark.parametrize("source", [{}, {"task": {}}, {"task": {"dataset": "given"}}])
def test_a_data_set_must_be_named(source):
    with pytest.raises(InputError) as caught:
        load_config(source)
    assert caught.value.where == "task.dataset"
    assert "'digits'" in caught.value.expected


def test_given_data_decide_the_number_of_nodes():
    config = load_config({"nodes": {"count": 16}}, count=3, given_model=True)
    assert (config.nodes.count, config.task.dataset, config.task.model) == (3, "given", "given")
    with pytest.raises(InputError, match="where nodes= is passed"):
        load_config(DIGITS, count=3)


def test_an_experiment_cannot_be_changed():
    config = load_config(DIGITS)
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 3


def test_a_file_and_a_mapping_are_the_same(tmp_path):
    path = write_experiment(tmp_path)
    assert load_config(path) == load_config(str(path)) == load_config(experiment())
    assert isinstance(load_config(path), Config)


def test_a_file_that_cannot_be_read(tmp_path):
    files = {
        "missing.toml": None,
        "malformed.toml": b"[task\n",
        "twice.toml": b"[task]\n[task]\n",
        "binary.toml": b"\xff\xfe[task]",
        "loose.toml": b"steps = 5\n",
        "table.toml": b"[[train]]\nsteps = 5\n",
    }
    for name, content in files.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_config(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="Is a directory"):
        load_config(tmp_path)


def test_a_run_without_noise_keeps_no_budget():
    with pytest.raises(InputError, match="without noise nothing bounds") as caught:
        load_config({**DIGITS, "algorithm": {"name": "sgp"}, "privacy": {"ledger": "ledgers"}})
    assert caught.value.where == "privacy.ledger"


def test_the_ledgers_of_a_file_lie_where_the_file_says(tmp_path, monkeypatch):
    """A path in a file is seen from the file; one of the command line from the current folder."""
    project = tmp_path / "project"
    project.mkdir()
    file = project / "experiment.toml"
    file.write_text('[task]\ndataset = "digits"\n[privacy]\nledger = "ledgers/all"\n')
    monkeypatch.chdir(tmp_path)
    for source in (file, "project/experiment.toml"):
        assert load_config(source).privacy.ledger == str(project / "ledgers" / "all")
    moved = load_config(file, overrides=["privacy.ledger=ledgers"])
    assert moved.privacy.ledger == str(tmp_path / "ledgers")
    mapping = {**DIGITS, "privacy": {"ledger": "../ledgers"}}
    assert load_config(mapping).privacy.ledger == str(tmp_path.parent / "ledgers")
    assert load_config(mapping, folder=project).privacy.ledger == str(tmp_path / "ledgers")
    home = load_config({**DIGITS, "privacy": {"ledger": "~/ledgers"}})
    assert home.privacy.ledger == str(Path("~/ledgers").expanduser())
    # What was resolved stays, wherever it is read again.
    file.write_text(to_toml(moved))
    assert load_config(file) == moved
    with pytest.raises(InputError, match=r"privacy\.ledger = 7"):
        load_config({**DIGITS, "privacy": {"ledger": 7}})


def test_budgets_of_the_data_are_read_and_kept():
    privacy = {"ledger": "ledgers", "ledger_epsilon": [8, 9], "ledger_delta": 1e-4}
    config = load_config({**DIGITS, "nodes": {"count": 2}, "privacy": privacy})
    kept = config.privacy
    ledgers = str(Path("ledgers").absolute())
    assert (kept.ledger, kept.ledger_epsilon, kept.ledger_delta) == (ledgers, (8.0, 9.0), 1e-4)
    assert load_config(tomllib.loads(to_toml(config))) == config
    with pytest.raises(InputError, match=r"privacy\.ledger_epsilon = 'a list of 2'"):
        load_config({**DIGITS, "nodes": {"count": 3}, "privacy": privacy})
    unset = load_config({**DIGITS, "privacy": {"ledger": "ledgers"}})
    assert (unset.privacy.ledger_epsilon, unset.privacy.ledger_delta) == (None, None)
    assert "ledger_epsilon" not in to_toml(unset)


# Which keys may differ between sites, and at a resume: the pages say what the marks say.


NAMED = [load_config(experiment(algorithm={"name": name})) for name in ("privsgp", "privsgp-vr")]
SITE_KEYS, FREE_KEYS = (frozenset().union(*map(keys, NAMED)) for keys in (site_keys, free_keys))
DOCS = Path(__file__).resolve().parents[2] / "docs"


def named(page, before, after):
    """The keys that a page names between two phrases."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+\.\w+)`", text.partition(before)[2].partition(after)[0]))


def test_pages_name_the_keys_that_may_differ():
    resumed = {key for key in FREE_KEYS if not key.startswith(("promise.", "statement."))}
    assert named("reference/run-folder.md", "These keys may differ", "\n\n") == resumed
    assert named("how-to/processes.md", "keys may differ between sites", "\n\n") == SITE_KEYS
    assert named("how-to/deploy.md", "have ended again. Only", "may |") == SITE_KEYS


@pytest.mark.parametrize(
    ("changes", "key", "known"),
    [
        ({"train": {"patience": 7.0}}, "train.patience", 3600.0),
        ({"nodes": {"data": "by-rank", "source": "a.npz"}}, "nodes.source", "{node}"),
        (
            {"algorithm": {"name": "dyn-d2p"}, "promise": {"smoothness": 2.0}},
            "promise.smoothness",
            None,
        ),
        ({"statement": {"contact": "a phone"}}, "statement.contact", None),
        ({"train": {"steps": 7}}, "train.steps", 7),
    ],
)
def test_a_run_is_known_without_what_may_differ(changes, key, known):
    if "nodes" in changes:
        changes = {**changes, "task": {"dataset": None, "outputs": 10}}
    config = load_config(experiment(**changes))
    whole = flat(known_as(config))
    assert whole.get(key) == known
    assert flat(known_as(config, ())) == flat(config)
    kept = {name: value for name, value in flat(config).items() if name not in whole}
    assert kept.keys() <= SITE_KEYS | FREE_KEYS


# What a file says by itself that cannot be is refused with the file, before a record is read.


CONTRADICTIONS = [
    ({"task": {"features_cache": "cache"}}, "task.features_cache", "goes with task.features"),
    ({"task": {"model": "mpl"}}, "task.model", "not a model; did you mean 'mlp'"),
    ({"topology": {"graph": "rign"}}, "topology.graph", "did you mean 'ring'"),
    ({"topology": {"graph": "ring", "degree": 4}}, "topology.degree", "ring takes none"),
    ({"topology": {"graph": "ring", "shape": [2, 2]}}, "topology.shape", "ring takes none"),
    ({"topology": {"probability": 0.5}}, "topology.probability", "exponential takes none"),
    ({"topology": {"graph": "k-regular"}}, "topology.degree", "k-regular needs it"),
    ({"topology": {"mixing": "metropolis"}}, "topology.mixing", "exponential is directed"),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"mixing": "uniform"}},
        "topology.mixing",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"graph": "ring"}},
        "topology.graph",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "dp2-sgd"}, "topology": {"graph": "exponential"}},
        "topology.graph",
        "is directed, and dp2-sgd needs symmetric weights",
    ),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"rounds": 2}},
        "topology.rounds",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "privsgp-vr", "state": "private"}, "faults": {"down": [[0, 1, 2]]}},
        "faults.down",
        "privsgp-vr takes gradients as differences",
    ),
    (
        {"algorithm": {"momentum": 0.5}, "faults": {"down": [[0, 1, 2]]}},
        "faults.down",
        "set algorithm.momentum = 0",
    ),
    ({"nodes": {"partition": "idd"}}, "nodes.partition", "did you mean 'iid'"),
    ({"nodes": {"alpha": 0.5}}, "nodes.alpha", "partition 'iid' does not take it"),
    ({"nodes": {"partition": "by:label", "per_node": 3}}, "nodes.per_node", "does not take it"),
]


@pytest.mark.parametrize(("changes", "where", "why"), CONTRADICTIONS)
def test_it_is_refused_with_the_file(changes, where, why):
    with pytest.raises(InputError) as refused:
        load_config(experiment(**changes))
    assert refused.value.where == where
    assert why in str(refused.value)


def test_what_is_known_of_a_named_graph_is_so():
    keys = {"degree": 4, "shape": (2, 3), "probability": 0.9}
    for name, kind in GRAPHS.items():
        given = {key: keys[key] for key in kind.takes}
        for nodes in [6] if kind.takes else [2, 8] if name == "hypercube" else range(1, 10):
            made = build_schedule(name, nodes, **given)
            assert (kind.directed and nodes > 2) == made.directed, (name, nodes)
            assert (kind.periodic and nodes > 2) == (made.period > 1), (name, nodes)
