"""Records of integer ids end to end: from what a user gives to a trained and evaluated model."""

import numpy as np
import pytest
import torch
from torch import nn

import tacit as library
from experiments import experiment, tacit, write_experiment, write_module
from tacit.analysis.score import evaluate_run
from tacit.config import load_config
from tacit.errors import InputError
from tacit.models import input_dtype
from tacit.training.prepare import prepare

VOCABULARY, PLACES, NODES = 12, 8, 4


class Words(nn.Module):
    """The mean of embedded words, normalised, classified."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids).mean(dim=1)))


class Counts(nn.Module):
    """The same function of how often each word is there."""

    def __init__(self, words):
        super().__init__()
        self.embed = nn.Linear(VOCABULARY, 6, bias=False)
        self.norm, self.head = words.norm, words.head
        self.embed.weight = nn.Parameter(words.embed.weight.detach().t().contiguous())

    def forward(self, counts):
        return self.head(self.norm(self.embed(counts / PLACES)))


def texts(seed, count=60):
    """Words of which half tell the class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    words = draw.integers(0, VOCABULARY, (count, PLACES))
    distinguishing = draw.random((count, PLACES)) < 0.5
    return np.where(distinguishing, 5 * labels[:, None] + 1, words), labels


def counted(given):
    ids, labels = given
    return (ids[:, :, None] == np.arange(VOCABULARY)).sum(axis=1), labels


def model():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Words()


TEXTS = [texts(node) for node in range(NODES)]
TEST = texts(99, 200)


def given(**changes):
    task = {"dataset": None, "model": None}
    return experiment(task=task, **{"nodes": {"count": None}, **changes})


@pytest.mark.parametrize(
    ("name", "kind"), [("privsgp", np.uint8), ("privsgp", np.int64), ("privsgp-vr", np.int32)]
)
def test_a_classifier_of_words_learns_within_its_budget(name, kind):
    config = given(
        algorithm={"name": name, "learning_rate": 0.5, "clip": 1.0},
        privacy={"epsilon": 8.0, "delta": 1e-3, "noise_std": None},
        train={"steps": 20, "batch": 10},
    )
    nodes = [(ids.astype(kind), labels) for ids, labels in TEXTS]
    job = prepare(load_config(config, count=NODES, given_model=True), model=model(), nodes=nodes)
    assert (job.model.path, job.model.reason) == ("taps", "")
    assert job.train.inputs.dtype == torch.int64
    found = library.train(config, model=model(), nodes=nodes, test=TEST)
    assert all(spent is not None and 0 < spent <= 8.0 for spent in found.epsilon)
    assert found.test_loss is not None
    assert found.metrics["train_loss"][-1] > 0
    assert found.metrics["clip_rate"][-1] is not None
    assert found.test_accuracy["consensus"] > 0.9


def test_ids_train_as_counts_of_words_do():
    config = given(
        algorithm={"name": "d-psgd"},
        privacy={"noise_std": None, "noise_seed": None},
        train={"dtype": "float64", "batch": "all"},
    )
    found = library.train(config, model=model(), nodes=TEXTS, test=TEST)
    right = library.train(
        config, model=Counts(model()), nodes=[counted(one) for one in TEXTS], test=counted(TEST)
    )
    assert found.test_loss == pytest.approx(right.test_loss, rel=1e-10)
    weight = dict(right.model().named_parameters())["embed.weight"]
    torch.testing.assert_close(
        dict(found.model().named_parameters())["embed.weight"], weight.t(), rtol=1e-10, atol=1e-10
    )


def test_a_users_module_of_ids_is_trained_and_evaluated_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = write_module(
        tmp_path,
        """
        ids = torch.arange(400).view(100, 4) * 7 % 11

        def texts():
            return (ids, ids[:, 0] % 2), (ids[:20], ids[:20, 0] % 2)

        def words(input_shape, outputs):
            return nn.Sequential(nn.Embedding(11, 3), nn.Flatten(), nn.Linear(12, outputs))
        """,
    )
    path = write_experiment(
        tmp_path, task={"dataset": f"{name}:texts", "model": f"{name}:words"}, train={"steps": 3}
    )
    trained = tacit("train", path, "--out", tmp_path / "run", "--quiet")
    assert trained.code == 0, trained.err
    score = tacit("evaluate", tmp_path / "run", "--trust", "--json").json
    assert score["records"] == 20
    result = evaluate_run(tmp_path / "run", trust=True)
    assert result.loss == pytest.approx(score["loss"])


def test_only_what_fails_on_numbers_takes_ids():
    ids, words, dtype = torch.arange(6).view(2, 3), nn.Embedding(7, 2), torch.float64
    for kind in (torch.uint8, torch.int32, torch.int64):
        assert input_dtype(words, ids.to(kind), dtype) == torch.int64
    assert input_dtype(words, ids.float(), dtype) == dtype
    for numbers in (nn.Linear(3, 2), nn.Flatten(), nn.Embedding(3, 2)):
        assert input_dtype(numbers, ids, dtype) == dtype


def test_an_id_without_a_row_is_refused_before_anything_is_sent():
    bad = TEXTS[1][0].copy()
    bad[40, 3] = VOCABULARY
    nodes = [TEXTS[0], (bad, TEXTS[1][1]), *TEXTS[2:]]
    with pytest.raises(InputError, match="nodes\\[1\\] = '1 of 60 records': every id"):
        library.train(given(), model=model(), nodes=nodes)
