"""Runs whose models are recalibrated: what is fitted, what it costs, and when it is charged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from sklearn.metrics import brier_score_loss, roc_auc_score

import tacit
from tacit import privacy
from tacit.analysis.score import evaluate_run
from tacit.config import Config, load_config
from tacit.data import Dataset
from tacit.errors import InputError
from tacit.models.metrics import score
from tacit.models.probabilities import log_odds
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import run_mechanism
from tacit.training.calibration import _counted
from tacit.training.prepare import prepare
from tacit.training.recalibration import edges_of, halves

STEPS = 8


def records(count, seed):
    """One in eight is of class 1."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 3))
    labels = draw.random(count) < expit(1.5 * inputs[:, 0] - 2.5)
    return torch.from_numpy(inputs).float(), torch.from_numpy(labels).long()


NODES = [records(count, count) for count in (400, 900, 2500)]
TEST = records(3000, 1)


def settings(how="private", **changes):
    """Trained with so large steps that log-odds run away."""
    made = {
        "task": {
            "model": "logistic",
            "outputs": 2,
            "metric": ["auc", "brier", "calibration"],
            "calibrate": how,
        },
        "nodes": {"weights": "equal"},  # so that no node runs further away than the others
        "topology": {"graph": "ring"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 40.0, "clip": 0.5},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "noise_seed": 4},
        "train": {"steps": STEPS, "batch": "all", "checkpoint_every": 4},
    }
    for section, values in changes.items():
        made[section] = {**made.get(section, {}), **values}
    made["task"] = {key: value for key, value in made["task"].items() if value is not None}
    return made


def trained(config, **given):
    return tacit.train(config, nodes=NODES, test=TEST, **given)


pytestmark = pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")


@pytest.fixture(scope="module")
def plain():
    return trained(settings(None))


def judged(model, test):
    """By scikit-learn: predicted over observed, Brier score over that of a constant, AUC."""
    inputs, labels = test[0], test[1].numpy()
    shares = expit(log_odds(model(inputs)))
    share = labels.mean()
    own = brier_score_loss(labels, shares)
    return shares.mean() / share, own / (share - share**2), roc_auc_score(labels, shares)


@pytest.mark.parametrize("how", ["public", "private"])
def test_probabilities_mean_what_they_say_after_it(how, plain, tmp_path):
    result = trained(settings(how), out=tmp_path / "run")
    before, after = judged(plain.model(), TEST), judged(result.model(), TEST)
    assert not 0.8 < before[0] < 1.25 or before[1] > 1
    assert 0.8 < after[0] < 1.25
    assert after[1] < 0.95
    (told,) = [note for note in result.notes if note.startswith("calibrated: ")]
    assert ("private records by class" in told) == (how == "private")
    for node in range(3):
        assert judged(result.model(node), TEST)[1] < 1
    scores = evaluate_run(tmp_path / "run", f"{__name__}:load", trust=True)
    assert scores.metrics["auc"] == pytest.approx(after[2], abs=1e-4)
    assert result.test_metrics["auc"].consensus is not None
    assert "noise multiplier" in (tmp_path / "run" / "result.json").read_text()


def load():
    inputs, labels = (torch.cat(parts) for parts in zip(*NODES, strict=True))
    return Dataset(inputs, labels), Dataset(*TEST)


def test_evaluate_leaves_out_what_was_fitted_to(tmp_path):
    task = {"dataset": f"{__name__}:load"}
    config = settings("public", task=task, nodes={"count": 3})
    result = tacit.train(config, out=tmp_path / "run")
    found = evaluate_run(tmp_path / "run", trust=True)
    assert found.records == len(halves(Dataset(*TEST))[0])
    assert result.test_metrics["calibration"].consensus == pytest.approx(
        found.metrics["calibration"], rel=1e-5
    )


def test_public_records_are_scored_that_were_not_fitted_to(plain):
    """Training itself is the same, bit for bit: the order of log-odds and so the AUC stay."""
    result = trained(settings("public"))
    scored, fitted = halves(Dataset(*TEST))
    assert result.job.test is not None
    assert torch.equal(result.job.test.inputs, scored.inputs)
    assert result.job.recalibration is not None
    assert torch.equal(result.job.recalibration.public.targets, fitted.targets)
    before = log_odds(plain.model()(scored.inputs))
    after = log_odds(result.model()(scored.inputs))
    assert np.ptp(after - np.polyval(np.polyfit(before, after, 1), before)) < 1e-4
    own = roc_auc_score(scored.targets.numpy(), before)
    assert result.test_metrics["auc"].consensus == pytest.approx(own, abs=1e-5)
    calibration = result.job.metrics[2]
    right = score(calibration, result.model()(scored.inputs), scored.targets)
    assert result.test_metrics["calibration"].consensus == pytest.approx(right, rel=1e-5)


def gaussian_epsilon(mu, delta):
    """Of Gaussian differential privacy (Dong, Roth and Su), by itself."""

    def excess(epsilon):
        upper = norm.cdf(-epsilon / mu + mu / 2)
        return float(upper - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta)

    return float(brentq(excess, 1e-9, 100.0))


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_the_budget_covers_steps_and_counts_together(share, relation):
    changes = {"relation": relation} | ({} if share is None else {"calibrate_share": share})
    result = trained(settings(privacy=changes))
    shift = 2.0 if relation == "replace-one" else 1.0
    for node, spent in zip(result.plan.nodes, result.epsilon, strict=True):
        release = result.plan.release
        steps = STEPS * (shift / release.noise_multiplier(node, 0)) ** 2
        counts = (shift / release.noise_multiplier(node, STEPS)) ** 2
        assert counts / (steps + counts) == pytest.approx(share or 0.1)
        assert release.noise_std(node, STEPS) == release.noise_multiplier(node, STEPS)
        right = gaussian_epsilon(math.sqrt(steps + counts), 1e-5)
        assert spent == pytest.approx(right, rel=1e-3)
        assert right <= spent <= 3.0 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "train"),
    [
        ({"name": "dp-sgd"}, {"batch": 100}),
        ({"name": "dp-dda", "activation": 0.6}, {"batch": "all"}),
        ({"name": "privsgp"}, {"batch": 64, "sampling": "allocation"}),
    ],
)
def test_other_mechanisms_keep_their_budget_too(algorithm, train, tmp_path):
    """A sampled one, one with nodes that rest, one with epochs; the ledger says the same alone."""
    topology = {"graph": None if algorithm["name"] != "dp-dda" else "ring"}
    config = settings(train=train, privacy={"noise_seed": None})
    config["topology"] = {key: value for key, value in topology.items() if value}
    config["algorithm"] = {"learning_rate": 0.5, "clip": 0.5, **algorithm}
    config["privacy"].pop("noise_seed")
    result = trained(config, out=tmp_path / "run")
    (run,) = read_ledger(tmp_path / "run" / "ledger.sqlite").runs
    for node, spent in zip(result.plan.nodes, result.epsilon, strict=True):
        assert spent is not None
        assert 1.5 < spent <= 3.0 * (1 + 1e-9)
        assert run.charged[node.node][-1] == (STEPS, STEPS + 1)
        mechanism = run_mechanism(run, node.node)
        assert mechanism is not None
        assert privacy.epsilon(mechanism, delta=1e-5) == pytest.approx(spent, rel=1e-3)
        without = replace(result.plan.release, calibrating=0.0).epsilon(node, [(0, STEPS)])
        assert without is not None
        assert without < spent


def test_counts_are_charged_before_noise_is_drawn(tmp_path, monkeypatch):
    """Killed then, the ledger stands; who goes on is charged once more, or goes without."""
    from tacit.training import noised_counts

    def killed(*_, **__):
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    config = settings()
    config["privacy"].pop("noise_seed")
    with monkeypatch.context() as patched:
        patched.setattr(noised_counts, "node_keys", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(config, out=folder)
    (run,) = read_ledger(folder / "ledger.sqlite").runs
    assert run.charged[0] == ((0, STEPS), (STEPS, STEPS + 1)) or run.charged[0][-1] == (STEPS, 9)
    result = trained(config, out=folder, resume=True)
    assert "not calibrated: the budget of a node does not cover it" in result.notes
    assert all(spent is not None and spent <= 3.0 * (1 + 1e-9) for spent in result.epsilon)
    (run,) = read_ledger(folder / "ledger.sqlite").runs
    assert run.charged[0].count((STEPS, STEPS + 1)) == 1


@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_that_is_done_is_not_charged_again(mixed, tmp_path):
    """Nor recalibrated twice, where rounds that follow the last step begin with averages."""
    config = settings(train={"average": "tail:0.5"} if mixed else {})
    if mixed:
        config["algorithm"] |= {"name": "privsgp", "final_mixing": 2}
        config["topology"] = {}
    config["privacy"].pop("noise_seed")
    first = trained(config, out=tmp_path / "run")
    again = trained(config, out=tmp_path / "run", resume=True)
    assert torch.equal(first.consensus, again.consensus)
    assert first.epsilon == again.epsilon
    (run,) = read_ledger(tmp_path / "run" / "ledger.sqlite").runs
    assert run.charged[0].count((STEPS, STEPS + 1)) == 1


def test_epsilon_on_the_way_never_falls_and_ends_at_what_was_spent():
    result = trained(settings(train={"evaluate_every": 1}))
    series = [row["max"] for row in result.metrics["epsilon"]]
    assert series == sorted(series)
    assert series[-1] == pytest.approx(max(spent or 0 for spent in result.epsilon))
    assert series[0] == 0.0


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38, -1e38, 0.0])
def test_an_extreme_record_moves_one_count_by_one(model, bad):
    """Through the model itself: all other records stay in their bins, to the last one."""
    config = load_config(settings(task={"model": model}), count=3)
    few = [(inputs[:60], labels[:60]) for inputs, labels in NODES]
    job = prepare(config, nodes=few, test=TEST)
    vector = job.model.start(1, job.dtype, "cpu")[0]
    vector = vector + torch.randn(len(vector), generator=torch.Generator().manual_seed(2))
    assert job.recalibration is not None
    odds = log_odds(job.model.outputs(vector[None], job.recalibration.public.inputs)[0])
    edges = edges_of(odds)
    before, others = (_counted(job, vector, edges, node) for node in (1, 2))
    assert before.sum() == 60
    inputs = job.train.inputs.clone()
    inputs[80] = bad  # of node 1, whose records begin at 60
    for label in (0, 1):
        targets = job.train.targets.clone()
        targets[80] = label
        changed = replace(job, train=replace(job.train, stored=inputs, targets=targets))
        moved = _counted(changed, vector, edges, 1) - before
        assert moved.sum() == 0
        assert np.square(moved).sum() in (0.0, 2.0)
        assert np.array_equal(_counted(changed, vector, edges, 2), others)


def test_copies_of_a_record_are_in_one_bin():
    """Where rounding decides of a bin, what lies beside a record has no part in it."""
    inputs = torch.randn(2000, 20, generator=torch.Generator().manual_seed(2))
    data = inputs, (inputs[:, 0] > 0).long()
    job = prepare(load_config(settings(), count=2), nodes=[data, data], test=data)
    vector, edge = inputs[:3, :14].reshape(-1), np.array([0.25])

    def odds(inputs):
        return log_odds(job.model.outputs(vector[None], inputs)[0])

    pull = (vector[20:40] - vector[:20]).double()
    much = torch.from_numpy(odds(inputs) - edge) / pull.square().sum()
    near = (inputs.double() - torch.outer(much, pull)).float()
    sides = np.array([[odds(row.repeat(n, 1))[0] > edge[0] for n in (7, 40)] for row in near])
    torn = near[sides[:, 0] != sides[:, 1]]
    assert len(torn)
    stored, sizes = torn[0].repeat(4000, 1), torch.tensor([2000, 7])
    targets = torch.zeros_like(job.train.targets)
    changed = replace(job.train, stored=stored, targets=targets, sizes=sizes)
    many, few = (_counted(replace(job, train=changed), vector, edge, node) for node in (0, 1))
    assert few.max() == 7
    assert np.array_equal(many * 7, few * 2000)


def test_without_noise_counts_are_exact_and_the_run_says_that_it_is_not_private():
    config = settings()
    config["privacy"] = {"epsilon": "none"}
    result = trained(config)
    assert not result.private
    assert 0.9 < judged(result.model(), TEST)[0] < 1.1


REFUSED = [
    ("share", lambda: settings("public", privacy={"calibrate_share": 0.2}), "calibrate_share"),
    ("pairs", lambda: settings(privacy={"noise": "pairwise"}), "pairwise"),
    (
        "published",
        lambda: settings(algorithm={"name": "dyn-d2p"}, privacy={"accounting": "published"}),
        "accounting = 'published'",
    ),
    ("reduced", lambda: settings(algorithm={"name": "privsgp-vr"}), "no single Gaussian sum"),
    ("tolerate", lambda: settings(faults={"tolerate": True}), "would be missing"),
]


@pytest.mark.parametrize(("name", "config", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_not_proved_is_refused(name, config, words):
    made = config()
    made["topology"] = {}
    with pytest.raises(InputError, match=words):
        Config(**made)


def test_without_public_test_records_it_is_refused():
    config = settings()
    del config["task"]["metric"]
    with pytest.raises(InputError, match="needs public test records"):
        tacit.train(config, nodes=NODES)
