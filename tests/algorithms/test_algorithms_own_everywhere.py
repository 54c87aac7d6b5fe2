"""An algorithm of a user's own, named in an experiment file, goes wherever those of ours go."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from communication.cluster import crew
from communication.cluster.test_cluster_runs import assert_same_run
from communication.secure.sites import NAMES, consortium, gathered
from experiments import tacit, write_experiment
from tacit.algorithms import installed
from tacit.config import load_config, site_keys
from tacit.errors import InputError
from tacit.estimators import TacitClassifier
from tacit.training.run_folder.folder import read_config

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_algorithm.py"
NAME = "own_algorithm:ROW"
OWN = {"name": NAME, "clip": 0.5, "final_mixing": 1}
BUDGET = {"noise_std": None, "noise_seed": None, "epsilon": 3.0, "delta": 1e-4}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with the example in it, which nobody has imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_algorithm", raising=False)
    shutil.copy(EXAMPLE, tmp_path)
    yield tmp_path
    sys.modules.pop("own_algorithm", None)


@pytest.mark.slow
def test_its_run_is_planned_made_searched_audited_and_stated(here):
    file = write_experiment(here, algorithm=OWN, privacy=BUDGET, train={"steps": 3})
    proposed = tacit("plan", file, "--recommend", "--json").json["proposed"]
    assert {"topology.rounds", "privacy.noise"} <= {one["key"] for one in proposed}
    assert tacit("train", file, "--out", "run", "--quiet").code == 0
    assert max(json.loads(Path("run/result.json").read_text())["epsilon"]) <= 3
    for claim in tacit("privacy", "claims", file, "--json").json["rows"]:
        assert (claim["algorithm"], claim["verdict"]) == ("Push-sum tracking", "no claim")
        assert 2.9 < claim["lower"] <= claim["certified"] <= 3  # observers see the sums themselves
    search = '[tune]\ncost = "composed"\ngrid = { "algorithm.final_mixing" = [0, 1] }\n'
    Path("search.toml").write_text(file.read_text() + search)
    assert tacit("tune", "search.toml", "--out", "search").code == 0
    few = ["--seconds", 0.2, "--canaries", 0, "--repetitions", 200, "--steps", 2]
    audited = tacit("audit", file, "--json", *few, "--set", "train.batch=16").json
    assert (audited["algorithm"], audited["defect"]) == (NAME, False)

    # Its folder is read without it, and goes on with it alone.
    run, source = here / "run", here / "own_algorithm.py"
    again = ["train", run / "config.toml", "--out", run, "--resume", "--quiet"]
    assert tacit(*again).code == 0
    del sys.modules["own_algorithm"]
    source.write_text(source.read_text() + "\n# another\n")
    answer = tacit(*again)
    assert (answer.code, "the ledger of this plan" in answer.refusal) == (2, True)
    del sys.modules["own_algorithm"]
    source.unlink()
    for words in (["report", run], ["evaluate", run], ["privacy", "statement", run]):
        assert tacit(*words).code == 0
    assert "own_algorithm" not in sys.modules
    for words, why in ((["audit", run], "--trust"), (again, "no module 'own_algorithm'")):
        answer = tacit(*words)
        assert (answer.code, why in answer.refusal) == (2, True)


@pytest.mark.process
def test_processes_of_a_comparison_run_it(here):
    file = write_experiment(here, algorithm=OWN, train={"steps": 3})
    compared = tacit("compare", file, "--seeds", 2, "--jobs", 2, "--out", "compared", "--json").json
    assert [line["algorithm"] for line in compared["lines"]] == [NAME]


@pytest.mark.process
def test_ranks_and_sites_run_it_too(here):
    seeded = {**BUDGET, "noise_seed": 5}
    sections = {"algorithm": OWN, "privacy": seeded, "train": {"steps": 3, "dtype": "float64"}}
    file = write_experiment(here, nodes={"count": 6}, **sections)
    assert tacit("train", file, "--out", "alone", "--quiet").code == 0
    words = ("train", file, "--quiet", "--out", here / "launched")
    with crew.crew(here, 2, lambda _: words, homes=[here] * 2) as members:
        assert [member.end().code for member in members] == [0, 0]
    assert_same_run(here / "launched", here / "alone")
    with consortium(here) as group:
        for site in NAMES:
            group.home(site).mkdir(parents=True, exist_ok=True)
            shutil.copy(EXAMPLE, group.home(site))
        group.relay()
        group.train_all(file)
        assert [answer.code for answer in group.ends()] == [0] * len(NAMES)
        assert_same_run(gathered(group, here / "gathered"), here / "alone")
        with (group.home(NAMES[1]) / "own_algorithm.py").open("a") as other:
            other.write("# another\n")
        group.train_all(file, run="second")
        for answer in group.ends():
            assert answer.code == 2
            assert "algorithm source = " in answer.refusal


PARTS = """
from dataclasses import replace
from typing import Annotated
from tacit.algorithms import Options
from tacit.algorithms.options import LOCAL, Scope
from tacit.algorithms.privsgp import PRIVSGP, PushSumOptions

class Mine(PushSumOptions):
    scratch: Annotated[str, LOCAL] = "here"
    weight: float = 1.0

def failing(state, k, options, context):
    return state.velocity

FAILS = replace(PRIVSGP, step=failing)
ROW = replace(PRIVSGP, name="privsgp", options=Mine, input_bound=lambda options: 5.0)
NUMBER = 3
"""
BROKEN = PARTS.replace("options=Mine", "options=dict")
WRONG = {
    "mine:ROVV": "mine has no algorithm 'ROVV'; known are: FAILS, PRIVSGP, ROW",
    "mine:NUMBER": "mine has no algorithm 'NUMBER'",
    "nine:ROW": "there is no module 'nine' in",
    "broken:ROW": "importing the module raised ValueError: PrivSGP: its options must be a subclass",
    "mine": "is no algorithm here; ",
    "theirz": "is no algorithm here; did you mean 'theirs'?",
}


@pytest.fixture
def parts(here, monkeypatch):
    """Rows of one's own that are wrong or right, and a package that brings one."""
    (here / "mine.py").write_text(PARTS)
    (here / "broken.py").write_text(BROKEN)
    package = here / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tacit.algorithms]\ntheirs = mine:ROW\n")
    monkeypatch.syspath_prepend(here)
    installed.cache_clear()
    yield package / "entry_points.txt"
    sys.modules.pop("mine", None)
    installed.cache_clear()


def test_what_is_wrong_with_a_name_is_one_line(here, parts):
    file = write_experiment(here)
    for name, why in WRONG.items():
        answer = tacit("plan", file, "--set", f"algorithm.name={name}")
        assert (answer.code, why in answer.refusal) == (2, True), answer.err
    answer = tacit("plan", file, "--set", "algorithm.name=mine:ROW", "--set", "algorithm.wight=1.0")
    assert "algorithm.wight = 1.0: unknown key; did you mean 'weight'?" in answer.refusal
    assert "theirs" in {row["name"] for row in tacit("algorithms", "--json").json}
    answer = tacit("train", file, "--set", "algorithm.name=mine:FAILS", "--out", "fails")
    assert (answer.code, "mine:FAILS': its step raised AttributeError" in answer.err) == (2, True)
    parts.write_text("[tacit.algorithms]\nprivsgp = mine:ROW\n")
    installed.cache_clear()
    answer = tacit("algorithms")
    assert (answer.code, "algorithm.name = 'privsgp'" in answer.refusal) == (2, True)
    assert tacit("plan", file).code == 0  # what is of the table stays


@pytest.mark.parametrize("name", ["mine:ROW", "of-a-package-that-is-gone"])
def test_a_folder_of_somebody_else_is_looked_at_without_its_code(name, here, parts):
    saved = here / "run" / "config.toml"
    saved.parent.mkdir()
    saved.write_text(
        f'[task]\ndataset = "digits"\n[algorithm]\nname = "{name}"\ncls = 1\nweight = 2\n'
    )
    config = read_config(saved.parent)
    assert (config.algorithm.name, config.algorithm.options.weight) == (name, 2)
    assert "mine" not in sys.modules
    with pytest.raises(InputError, match="pass --trust"):
        _ = config.algorithm.definition
    saved.write_text('[task]\ndataset = "digits"\n[algorithm]\nname = ["mine:ROW"]\n')
    with pytest.raises(InputError, match="is no algorithm here"):
        read_config(saved.parent)


def test_its_options_are_read_and_marked_as_its_class_has_them(here, parts):
    sections = {"dataset": "digits"}
    for name in ("mine:ROW", "theirs"):
        config = load_config({"task": sections, "algorithm": {"name": name, "weight": 2.0}})
        assert (config.algorithm.definition.name, config.algorithm.options.weight) == (name, 2.0)
        assert "algorithm.scratch" in site_keys(config)
        assert config.task.input_bound == 5.0  # predictions from its folder need no more of it
    given = {"epsilon": 3.0, "delta": 1e-3, "steps": 2, "classes": [0, 1], "input_bound": 5.0}
    images, nodes = (
        [[float(i % 3), float(i % 2)] for i in range(40)],
        [i % 4 // 2 for i in range(40)],
    )
    fitted = [
        TacitClassifier(algorithm=name, options=options, noise_seed=1, **given)
        .fit(images, [i % 2 for i in range(40)], nodes=nodes)
        .predict_proba(images)
        .tolist()
        for name, options in (("theirs", {"weight": 2.0}), ("privsgp", {}))
    ]
    assert fitted[0] == fitted[1]
