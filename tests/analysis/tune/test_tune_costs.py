"""Trials on public records: whether they are public is told by the records alone."""

import pytest
import tomli_w

from experiments import experiment, tacit, write_module
from tacit.analysis.tune.costs import plan_search
from tacit.analysis.tune.search import load_search
from tacit.errors import InputError, PrivateRecordsWarning

SOURCE = """
import numpy as np
import tacit
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
noise = np.random.default_rng(1).normal(size=X.shape)

def made(rows, moved=()):
    inputs = X[rows] / 16
    inputs[list(moved)] += noise[list(moved)]
    return tacit.Dataset(inputs.astype(np.float32), y[rows])

def private():
    return made(slice(0, 400)), made(slice(400, 500))

def sampled():  # in another order and type, under another name
    rows = np.random.default_rng(2).permutation(400)[:120]
    return tacit.Dataset(X[rows] / 16, 9 - y[rows]), made(slice(400, 500))

def among_others():  # a twentieth of it, but all that is private
    return made(slice(0, 1700)), made(slice(1700, 1790))

def visits(people, of):  # three rows each, none of which another has
    whose = np.repeat(people, 3)
    rows = len(whose)
    inputs = np.random.default_rng(of).normal(size=(rows, 64)).astype(np.float32)
    train = tacit.Dataset(inputs, np.arange(rows) % 10, units=whose)
    return train, made(slice(400, 500))

def ward():
    return visits(np.arange(100), 1)

def ward_later():
    return visits(np.arange(99, 199), 2)

def school():
    return visits(np.arange(100, 200), 3)

def scored():
    return made(slice(500, 900)), made(slice(0, 100))

def few():
    return made(slice(396, 800)), made(slice(1000, 1100))

def public():
    return made(slice(500, 900)), made(slice(1000, 1100))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def search_on(folder, private, changed, **privacy):
    sections = experiment(
        task={"dataset": private, "outputs": 10},
        privacy={"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5, **privacy},
        nodes={"count": 2},
    )
    tune = {"grid": {"algorithm.clip": [0.5]}, "cost": "public", "set": changed}
    file = folder / "search.toml"
    file.write_text(tomli_w.dumps({**sections, "tune": tune}), encoding="utf-8")
    return load_search(file)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("private", "400 of the 400 trial records"),
        ("sampled", "120 of the 120 trial records"),
        ("among_others", "400 of the 1,700 trial records"),
        ("scored", "100 of the 100 test records"),
    ],
)
def test_private_records_are_known_under_any_name(function, words, tmp_path):
    module = write_module(tmp_path, SOURCE)
    other = write_module(tmp_path, SOURCE)
    search = search_on(tmp_path, f"{module}:private", {"task.dataset": f"{other}:{function}"})
    with pytest.raises(InputError, match=words) as caught:
        plan_search(search)
    assert caught.value.where == "tune.set"


def test_the_same_persons_are_known_by_other_rows(tmp_path):
    module = write_module(tmp_path, SOURCE)
    by_person = {"unit": "column:person", "unit_rows": 3}
    for function, said in (("ward_later", r"1 of those .* \(north:17\)"), ("school", None)):
        changed = {"task.dataset": f"{module}:{function}"}
        search = search_on(tmp_path, f"{module}:ward", changed, **by_person)
        if said is None:
            assert plan_search(search).private
        else:
            with pytest.raises(InputError, match=said):
                plan_search(search)


def test_another_folder_makes_no_other_records(tmp_path):
    search = search_on(tmp_path, "digits", {"task.data_dir": str(tmp_path)})
    with pytest.raises(InputError, match="1,437 of the 1,437 trial records"):
        plan_search(search)


def test_public_records_pass_and_a_few_equal_ones_are_said(tmp_path, recwarn):
    module = write_module(tmp_path, SOURCE)
    for function, said in (("public", []), ("few", ["4 of the 404 public trial records"])):
        recwarn.clear()
        search = search_on(tmp_path, f"{module}:private", {"task.dataset": f"{module}:{function}"})
        assert plan_search(search).private
        texts = [str(each.message) for each in recwarn if each.category is PrivateRecordsWarning]
        assert len(texts) == len(said)
        assert all(words in text for words, text in zip(said, texts, strict=True))


def test_the_command_line_refuses_them_in_one_line(tmp_path):
    search_on(tmp_path, "digits", {"task.data_dir": str(tmp_path)})
    answer = tacit("tune", tmp_path / "search.toml", "--plan")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
