"""Experiments that are broken, huge or hostile: one plain line, soon, never a defect of ours."""

import random
from contextlib import suppress

import pytest
import tomli_w

from experiments import experiment, tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.config.load import key_meant
from tacit.errors import InputError, TacitError
from tacit.training.planner import build_plan

DEEP = 100_000


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES = [
    *(0, 1, -1, 2, 3, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**64, -(2**63), 10**12, 10**400, -(10**400)),
    *(
        0.0,
        -0.0,
        0.5,
        1.0,
        1e-300,
        5e-324,
        1e300,
        1e308,
        1e-38,
        1e38,
        1e-12,
        1e12,
        1e-3,
        0.999999,
        float("nan"),
        float("inf"),
        -float("inf"),
    ),
    *(True, False, "", "none", "all", "blocks", "given", "star", "file:/", "a:b", ":", "{node}"),
    *("x" * 100_000, "\x00", "\x1b[31m\n\r", "é\u202e\u2028", "../" * 3000, "\ud800"),
    *(
        [],
        [[]],
        [1] * 100_000,
        [1.0] * 4,
        ["a"] * 4,
        [[0, 1, 0.5]] * 3,
        [[0, 1, 2]],
        [None],
        [True],
    ),
    *(nested(200), nested(5000), {}, {"a": 1}, {"name": {}}, {1: 2}, b"bytes", None, object()),
    *(
        {"x" * 50_000: 1},
        {"\n": 1},
        (1, 2),
        {1, 2},
        lambda: None,
        1 + 2j,
        [10**400] * 4,
        [float("nan")] * 4,
    ),
]
KEYS = ["", "x" * 100_000, "a.b", "\x1b[2J", "name", "options", "self", "update", "model_config"]
SECTIONS = [
    "task",
    "nodes",
    "topology",
    "algorithm",
    "privacy",
    "train",
    "faults",
    "promise",
    "statement",
]


def keys():
    """Every key of every section, with the options of all algorithms."""
    plain = load_config({"task": {"dataset": "digits"}}).model_dump()
    options = {key for row in ALGORITHMS.values() for key in row.options.model_fields}
    return {**{name: [*plain[name]] for name in SECTIONS}, "algorithm": ["name", *sorted(options)]}


NUMBERS = [value for value in VALUES if isinstance(value, int | float)]


def mutated(random, known, values=VALUES):
    """An experiment that is right, some of whose keys and sections are not."""
    name = random.choice(sorted(ALGORITHMS))
    made = experiment(algorithm={"name": name})
    if not ALGORITHMS[name].private:
        del made["privacy"]
    own = {**known, "algorithm": sorted(ALGORITHMS[name].options.model_fields)}
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        section = random.choice(SECTIONS)
        chance = random.random()
        if chance < 0.04:
            made[random.choice([*KEYS, section, 3, None])] = random.choice(values)
        elif chance < 0.08:
            made.setdefault(section, {})
            if isinstance(made[section], dict):
                made[section][random.choice([*KEYS, 5, None])] = random.choice(values)
        elif isinstance(made.setdefault(section, {}), dict):
            some = known if random.random() < 0.1 else own  # of any algorithm, or of this one
            made[section][random.choice(some[section])] = random.choice(values)
    return made


def refusal(sections):
    """What is said of an experiment; nothing where it is accepted."""
    try:
        load_config(sections)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(20))
def test_a_mutated_experiment_is_read_or_refused_in_one_line(seed):
    drawn, known = random.Random(seed), keys()
    accepted = 0
    for _ in range(100):
        line = refusal(mutated(drawn, known))
        accepted += line == ""
        assert line.isprintable()
        assert len(line) < 1500
    assert accepted < 100


PYDANTIC = ("Input should", "Value error", "valid ", "Extra inputs", "Field required", "tag ")


@pytest.mark.parametrize("section", SECTIONS)
def test_no_message_has_the_words_of_the_library_that_checks(section):
    """Of each key, whatever it is given: what would be right is said in plain English."""
    small = [*NUMBERS, "", "none", "a:b", [], [[]], ["a"] * 4, [None], {}, {"a": 1}, None]
    for key in keys()[section]:
        rows = [name for name, row in ALGORITHMS.items() if key in row.options.model_fields]
        made = {"algorithm": {"name": rows[0]}} if section == "algorithm" and rows else {}
        for value in small:
            section_of = {**made.get(section, {}), key: value}
            line = refusal({**experiment(), **made, section: section_of})
            assert not [word for word in PYDANTIC if word in line], line


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_without_its_section_is_told_where_it_belongs(section):
    for key in keys()[section]:
        if key not in SECTIONS:
            home = key_meant(key)
            assert home is not None
            assert home in refusal({key: 2.0})
            assert home.endswith(f".{key}")


@pytest.mark.slow
def test_what_is_accepted_is_planned_or_refused_soon():
    """No value that is accepted makes a plan hang, or fail as if the defect were ours."""
    drawn, known = random.Random(1), keys()
    planned = 0
    for _ in range(7500):
        with suppress(TacitError):
            config = load_config(mutated(drawn, known, NUMBERS))
            if config.nodes.count <= 4 and config.train.steps <= 1000:
                build_plan(config, [50] * config.nodes.count, 5)
                planned += 1
    assert planned > 200


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP + "]" * DEEP,
        "a = " + "{b = " * DEEP,
        "[" + ".".join("a" * DEEP) + "]",
        "[" * DEEP,
        ".".join("a" * DEEP) + " = 1",
        "[train]\nsteps = " + "9" * 100_000,
        "[train]\nsteps = 0x" + "f" * 100_000,
        "[train]\nsteps = -1" + "0" * 4000,
        "[nodes]\ncount = 1000000000000",
        "[nodes]\ncount = 100001",
        "[privacy]\nepsilon = 2147483648",
        "[privacy]\nepsilon = [" + "1.0, " * 100_000 + "]",
        "[privacy]\nepsilon = 1e400",
        "[privacy]\nepsilon_per_round = 1e300",
        "[privacy]\ndelta = -0.0",
        "[task]\ndataset = '" + "x" * 10_000_000 + "'",
        "[task]\n" + "x" * 1_000_000 + " = 1",
        "[" + "x" * 1_000_000 + "]\n",
        "\x00",
        '[task]\ndataset = "\x1b"',
        "[train]\nsteps = 1979-05-27T07:32:00Z",
        "[train]\nseed = 07:32:00",
        "\n".join(f"[a{number}]" for number in range(20_000)),
        "[topology]\nshape = [1000000000000, 1000000000000]\ngraph = 'torus'",
        "[topology]\ngraph = 'k-regular'\ndegree = 1000000000000",
        "[faults]\ndown = [[0, 0, 1000000000000]]",
        "[task]\noutputs = 1000000000000",
        "[train]\ntimeout = 1e300",
    ],
    ids=range(28),
)
def test_a_hostile_file_is_one_line_and_exit_code_2(text, tmp_path):
    file = tmp_path / "experiment.toml"
    named = "" if text.startswith("[task]") else "\n[task]\ndataset = 'digits'\n"
    file.write_text(text + named, encoding="utf-8", newline="\n")
    answer = tacit("plan", file)
    assert answer.code == 2
    assert len(answer.refusal) < 1500
    assert "defect" not in answer.refusal


@pytest.mark.parametrize("value", ["[" * DEEP, "{a=" * DEEP, "9" * 100_000, "0x" + "f" * 100_000])
def test_a_hostile_override_is_one_line_and_exit_code_2(value, tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(experiment()), encoding="utf-8")
    answer = tacit("plan", file, "--set", f"train.steps={value}")
    assert answer.code == 2
    assert len(answer.refusal) < 1500


def test_the_bounds_are_said():
    for override, bound in {
        "nodes.count=1000000000000": "100000",
        "privacy.epsilon=2147483648": "at most 10000",
        "privacy.ledger_epsilon=2147483648": "at most 10000",
        "train.steps=1000000000000": "10000000",
        "train.timeout=1e9": "864000",
    }.items():
        with pytest.raises(InputError, match=bound):
            load_config(experiment(), overrides=[override])
