"""Counts of labels: what they release, what that costs, and that the data's budget pays for it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from scipy.optimize import brentq
from scipy.stats import kstest, norm

import tacit
from communication.memory import at_once, crew_of
from tacit.analysis.ledger_report import ledger_document
from tacit.analysis.private_counts import count_labels
from tacit.config import load_config
from tacit.data import Dataset, load, partition
from tacit.errors import BudgetError, InputError, PeerError, RecordsError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import account_files
from tacit.training import noised_counts

EPSILON, DELTA = 0.5, 1e-5


def digits(folder, **changes):
    """Real digits at three nodes, whose budgets lie in a folder."""
    file = {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": 3},
        "algorithm": {"name": "privsgp"},
        "privacy": {"epsilon": 2.0, "delta": DELTA, "ledger": str(folder / "budgets")},
        "train": {"steps": 2, "batch": "all"},
    }
    return {
        section: {**file.get(section, {}), **changes.get(section, {})}
        for section in {**file, **changes}
    }


def made(folder, targets, **changes):
    """The counts of made records with these targets, one tensor a node."""
    generator = torch.Generator().manual_seed(4)
    nodes = [(torch.randn(len(own), 2, generator=generator), own) for own in targets]
    file = digits(folder, **changes)
    config = load_config({**file, "task": changes.get("task", {})}, count=len(nodes))
    return count_labels(config, EPSILON, nodes=nodes)


def deviation(epsilon, delta, sensitivity):
    """Noise of the Gaussian mechanism, from its exact formula (Balle and Wang 2018, theorem 8)."""

    def excess(sigma):
        ratio = sensitivity / sigma
        return float(
            norm.cdf(ratio / 2 - epsilon / ratio)
            - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
            - delta
        )

    return float(brentq(excess, 0.1, 1e4))


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("add-or-remove-one", 1), ("replace-one", 2)]
)
def test_the_noise_is_that_of_the_gaussian_mechanism_for_one_record(
    tmp_path, relation, sensitivity
):
    """With one record more, one count is higher by one; a replaced one is accounted as two."""
    counted = count_labels(load_config(digits(tmp_path, privacy={"relation": relation})), EPSILON)
    needed = deviation(EPSILON, DELTA, sensitivity) * math.sqrt(3)
    assert needed <= counted.noise_std <= needed * 1.005
    assert all(0.995 * EPSILON <= spent <= EPSILON for spent in counted.epsilon)
    assert counted.delta == (DELTA,) * 3


def histogram(monkeypatch, folder, labels, ids, **privacy):
    """The true counts of a node, which nothing that leaves says, and its plan."""
    seen = []
    noised = noised_counts.with_noise

    def watched(plan, totals, *rest):
        seen.append((totals.clone(), plan))  # noise is added in place
        return noised(plan, totals, *rest)

    monkeypatch.setattr(noised_counts, "with_noise", watched)
    own = Dataset(torch.randn(len(labels), 2), torch.tensor(labels), ids)
    file = digits(folder, privacy=privacy)
    config = load_config({**file, "task": {"model": "logistic", "outputs": 3}}, count=1)
    counted = count_labels(config, EPSILON, nodes=[own])
    ((totals, plan),) = seen
    return counted, totals[0], plan


@pytest.mark.parametrize(
    ("relation", "accounted", "attained"),
    [("add-or-remove-one", 4.0, 4.0), ("replace-one", 8.0, 4.0 * math.sqrt(2))],
)
def test_a_person_moves_the_counts_by_as_many_rows_as_count(
    tmp_path, monkeypatch, relation, accounted, attained
):
    """The worst one has nothing but one label, or is replaced by one of nothing but another."""
    others, whose = [0, 1, 2, 1], ["b", "b", "c", "d"]
    privacy = {"unit": "column:person", "unit_rows": 4, "relation": relation}

    def with_person(name, labels):
        ids = [*whose, *["a"] * len(labels)]
        return histogram(monkeypatch, tmp_path / name, [*others, *labels], ids, **privacy)

    counted, zeros, plan = with_person("zeros", [0] * 9)  # of which four count
    _, twos, _ = with_person("twos", [2] * 4)
    _, mixed, _ = with_person("mixed", [0, 1, 2, 0, 1, 2])
    without = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    removed = [float((own - without).norm()) for own in (zeros, twos, mixed)]
    replaced = [float((own - zeros).norm()) for own in (zeros, twos, mixed)]
    assert max(replaced if relation == "replace-one" else removed) == attained
    assert float((mixed - without).sum()) == 4
    assert plan.nodes[0].records == 4
    needed = deviation(EPSILON, DELTA, accounted)
    assert needed <= counted.noise_std <= needed * 1.005


def test_the_ledger_says_that_labels_were_counted_by_person(tmp_path, monkeypatch):
    histogram(monkeypatch, tmp_path, [0, 1], ["a", "a"], unit="column:person")
    ((run,),) = (read_ledger(file).runs for file in account_files(tmp_path / "budgets"))
    assert run.unit == "column:person"


def test_what_is_released_are_the_counts_and_normal_noise(tmp_path):
    """Of 4,000 classes, of which most are empty, at one node."""
    labels = torch.arange(500).repeat(3)
    counted = made(tmp_path, [labels], task={"outputs": 4000})
    truth = np.bincount(labels.numpy(), minlength=4000)
    noise = (np.array(counted.nodes[0]) - truth) / counted.noise_std
    assert kstest(noise, "norm").pvalue > 1e-6
    assert np.corrcoef(noise[:-1], noise[1:])[0, 1] == pytest.approx(0, abs=0.1)


def test_no_two_counts_have_the_same_noise(tmp_path):
    config = load_config(digits(tmp_path))
    first, second = (np.array(count_labels(config, EPSILON).nodes) for _ in range(2))
    # On a lattice two of thirty may be equal by chance; that six are has a chance below 1e-9.
    assert (first == second).mean() < 0.2


def test_totals_and_weights_follow_from_the_released_counts(tmp_path):
    counted = count_labels(load_config(digits(tmp_path)), 2.0)
    data = load("digits", data_dir=Path(), seed=0)
    truth = torch.bincount(data.train.targets, minlength=10).numpy()
    assert np.allclose(np.sum(counted.nodes, axis=0), counted.counts)
    assert np.abs(np.array(counted.counts) - truth).max() < 6 * counted.noise_std
    weights = np.sum(counted.counts) / (10 * np.array(counted.counts))
    assert np.allclose(weights, counted.class_weights, rtol=1e-2)


def test_a_count_below_the_noise_is_weighed_as_the_noise(tmp_path):
    counted = made(tmp_path, [torch.zeros(5000, dtype=torch.int64)], task={"outputs": 2})
    least = max(counted.counts[1], counted.noise_std, 1.0)
    total = counted.counts[0] + least
    assert counted.class_weights[1] == pytest.approx(total / (2 * least), rel=1e-2)


def test_labels_of_either_sign_are_two_classes(tmp_path):
    signs = torch.ones(4000, 1)
    signs[:1000] = -1
    for targets in (signs, (signs + 1) / 2):
        own = tmp_path / str(float(targets.min()))
        counted = made(own, [targets], task={"loss": "logistic"})
        assert counted.counts == pytest.approx((1000, 3000), abs=6 * counted.noise_std)


def test_the_budget_of_the_data_pays_for_it(tmp_path):
    """The ledger has it before and after; a later run and a second count draw on what is left."""
    file = digits(tmp_path)
    config = load_config(file)
    counted = count_labels(config, EPSILON)
    spent = [row.epsilon for row in ledger_document(tmp_path / "budgets").nodes]
    assert spent == pytest.approx([max(counted.epsilon)])
    budgets = [row.epsilon_budget for row in ledger_document(tmp_path / "budgets").nodes]
    assert budgets == [2.0]
    with pytest.raises(BudgetError, match=r"would still fit"):
        tacit.train(file)
    fits = {**file["privacy"], "epsilon": 1.8}
    result = tacit.train({**file, "privacy": fits})
    assert result.private
    with pytest.raises(BudgetError):
        count_labels(config, 1.5)


def test_the_budget_is_charged_before_anything_is_released(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.privacy.noise.independent.IndependentNoise.add", killed)
        with pytest.raises(KeyboardInterrupt):
            count_labels(load_config(digits(tmp_path)), EPSILON)
    spent = [row.epsilon for row in ledger_document(tmp_path / "budgets").nodes]
    assert spent == [pytest.approx(EPSILON, rel=5e-3)]


def test_it_is_one_run_in_the_ledger_and_settled(tmp_path):
    count_labels(load_config(digits(tmp_path)), EPSILON)
    for path in account_files(tmp_path / "budgets"):
        (run,) = read_ledger(path).runs
        assert run.charged == dict.fromkeys(range(3), ((0, 1),))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"ledger": None}}, "privacy.ledger"),
        ({"task": {"loss": "mse"}}, "task.loss"),
        ({"privacy": {"delta": [1e-5, 1e-5]}}, "privacy.delta"),
    ],
)
def test_what_cannot_be_counted_is_refused(tmp_path, changes, words):
    file = digits(tmp_path, **changes)
    file["privacy"] = {key: value for key, value in file["privacy"].items() if value is not None}
    with pytest.raises(InputError, match=words):
        count_labels(load_config(file), EPSILON)
    assert not (tmp_path / "budgets").exists()


def test_private_labels_say_neither_their_range_nor_their_values(tmp_path):
    labels = torch.tensor([0, 1, 731, 1])
    with pytest.raises(InputError, match=r"task\.outputs"):
        made(tmp_path, [labels])
    with pytest.raises(RecordsError, match="1 of 4 records") as caught:
        made(tmp_path, [labels], task={"outputs": 2})
    assert "731" not in str(caught.value)
    with pytest.raises(InputError, match="must be one integer class label"):
        made(tmp_path, [torch.rand(4, 2)], task={"outputs": 2})
    assert not (tmp_path / "budgets").exists()


@pytest.mark.parametrize("lists", [[[1.0, 2.0]], [[1.0] * 10], [[1.0] * 10] * 3])
def test_another_process_can_only_speak_of_its_own_nodes(tmp_path, lists):
    from tacit.communication.colours import Released
    from tacit.communication.peers import place
    from tacit.training.noised_counts import shared_counts

    class Peer:
        rank, processes = 0, 2

        def share(self, what, value, schema):
            return [value, lists]

    released = Released(torch.zeros(2, 10))
    placement = place(4, 2, "blocks")
    with pytest.raises(PeerError, match="rank 1 sent counts"):
        shared_counts("counts", released, 10, placement, Peer())  # type: ignore[arg-type]


def test_sites_draw_on_the_budgets_that_their_training_draws_on(tmp_path):
    """Those of their names: a node of another name would be refused for these records."""
    crew, draw = crew_of(2, limit=60.0), torch.Generator().manual_seed(1)
    nodes = [(torch.randn(50, 2, generator=draw), torch.arange(50) % 2) for _ in range(2)]
    file = digits(tmp_path, task={"outputs": 2}, nodes={"count": 2})
    del file["task"]["dataset"]
    for site in crew:
        site.names, site.authenticated = ("north", "south"), True

    def one(rank):
        return count_labels(file, EPSILON, nodes=nodes, peers=crew[rank])

    first, second = at_once(one, range(2))
    assert first == second
    sources = [row.data for row in ledger_document(tmp_path / "budgets").nodes]
    assert sorted(sources) == ["north", "south"]


@pytest.mark.process
def test_processes_count_their_own_nodes(tmp_path):
    """Two processes print one table: the true counts and the noise of all nodes."""
    path = tmp_path / "digits.toml"
    path.write_text(tomli_w.dumps(digits(tmp_path, nodes={"count": 4})))
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "tacit",
    ]
    ended = subprocess.run(
        [*torchrun, "privacy", "labels", str(path), "--epsilon", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    counted = json.loads(ended.stdout)
    config = load_config(path)
    data = load("digits", data_dir=Path(), seed=config.train.seed)
    parts = partition("iid", data, 4, config.train.seed)
    for part, noised in zip(parts, counted["nodes"], strict=True):
        truth = torch.bincount(data.train.targets[part], minlength=10)
        most = 6 * counted["noise_std"]
        assert noised == pytest.approx(truth.tolist(), abs=most)
    (row,) = ledger_document(tmp_path / "budgets").nodes  # a file a process
    # Each process counts in a run of its own, and they stand in the order in which they entered.
    assert sorted(release.node for release in row.releases) == [0, 1, 2, 3]
    assert len(account_files(tmp_path / "budgets")) == 2
