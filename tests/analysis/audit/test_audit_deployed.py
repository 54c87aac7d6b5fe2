"""Canaries in a real run: what is planted and kept, and what too little noise gives away."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import tacit
from tacit.analysis.audit import deployed
from tacit.analysis.audit.deployed import audit_deployed, plant_canaries, read_planted
from tacit.analysis.audit.trade_off import Guessed
from tacit.errors import InputError
from tacit.training.stacked_context import StackedContext

Nodes = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def known_secrets(monkeypatch):
    """Coins that a test can rely on; in use they are the system's."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(deployed.secrets, "token_bytes", lambda count: rng.bytes(count))
    monkeypatch.setattr(deployed.secrets, "randbits", lambda bits: 17)


def digits(*records):
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).long()
    ends = np.cumsum(records)
    return [(images[e - n : e], labels[e - n : e]) for n, e in zip(records, ends, strict=True)]


def planted_in(nodes, file, **more):
    return plant_canaries(nodes, file, loss="cross-entropy", outputs=10, **more)


def less_noise(monkeypatch, share):
    plain: Callable[..., torch.Tensor] = StackedContext.add_noise

    def quiet(self, total, k, **options):
        return total.add_(plain(self, torch.zeros_like(total), k, **options), alpha=share)

    monkeypatch.setattr(StackedContext, "add_noise", quiet)


def train(nodes, out, *, model=None, **privacy):
    """A real run, but for noise from a seed, so that the test is the same every time."""
    settings = {"epsilon": 1.0, "delta": 1e-4, "relation": "replace-one", "noise_seed": 5}
    named = {} if model is not None else {"model": "mlp"}
    with pytest.warns(tacit.NotPrivateWarning):
        tacit.train(
            {
                "task": {"loss": "cross-entropy", "outputs": 10, **named},
                "algorithm": {"name": "privsgp", "clip": 1.0, "learning_rate": 0.2},
                "privacy": {**settings, **privacy},
                "train": {"steps": 30, "batch": "all"},
            },
            model=model,
            nodes=nodes,
            out=out,
        )
    return out


def test_a_run_with_too_little_noise_is_refuted(tmp_path, monkeypatch):
    file = tmp_path / "coins"
    nodes = planted_in(digits(300, 300), file, own=[0], count=120)
    less_noise(monkeypatch, 0.02)
    run = train(nodes, tmp_path / "run")
    found = audit_deployed(run, file, nodes=nodes)
    assert found.refuted
    assert found.chance_if_certified < 1e-3
    assert found.audited_epsilon > found.certified_epsilon
    assert found.audited_epsilon_of_plan is not None
    assert found.audited_epsilon_of_plan > found.audited_epsilon
    assert found.noise_less_than is not None
    assert found.noise_less_than < 0.6
    assert "REFUTED" in found.verdict
    # Without the other records less is told apart, and nothing is made up.
    assert audit_deployed(run, file).correct > found.guessed / 2


@pytest.mark.slow
def test_a_clean_run_is_not_refuted(tmp_path):
    file = tmp_path / "coins"
    nodes = planted_in(digits(300, 300), file, count=120)
    found = audit_deployed(train(nodes, tmp_path / "run"), file, nodes=nodes)
    assert found.nodes == (0, 1)
    assert not found.refuted
    assert not found.defect
    assert found.chance_if_certified > 0.1
    assert found.certified_epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.audited_epsilon <= found.certified_epsilon


@pytest.mark.slow
def test_adding_or_removing_counts_twice_for_a_replacement(tmp_path, monkeypatch):
    file = tmp_path / "coins"
    nodes = planted_in(digits(200, 200), file, count=80)
    less_noise(monkeypatch, 0.01)
    run = train(nodes, tmp_path / "run", relation="add-or-remove-one")
    found = audit_deployed(run, file, nodes=nodes)
    guessed = Guessed(found.canaries, found.guessed, found.correct)
    once = deployed.epsilon_of_any(guessed, delta=found.delta, confidence=0.95)
    assert 0 < found.audited_epsilon < once


@pytest.mark.slow
def test_a_module_that_was_given_is_given_again(tmp_path, monkeypatch):
    def module():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.ReLU(), nn.Linear(144, 10))

    file = tmp_path / "coins"
    nodes = planted_in(digits(200, 200), file, count=80)
    less_noise(monkeypatch, 0.01)
    run = train(nodes, tmp_path / "run", model=module())
    found = audit_deployed(run, file, model=module(), nodes=nodes)
    assert found.correct >= 0.8 * found.guessed
    with pytest.raises(InputError, match="give the same"):
        audit_deployed(run, file)


def test_half_of_the_canaries_are_in_and_the_others_are_as_they_were(tmp_path):
    nodes = digits(60, 40, 30)
    file = tmp_path / "coins"
    changed = planted_in(nodes, file, own=[0, 2], count=30)
    assert changed[1] is nodes[1]
    planted = read_planted(file)
    assert planted.nodes.tolist() == [0] * 15 + [2] * 15
    assert 8 <= int(planted.included.sum()) <= 22
    for node in (0, 2):
        inputs, targets = changed[node]
        assert len(targets) == len(nodes[node][1])  # J stays
        mine = planted.nodes == node
        differ = (inputs != nodes[node][0]).flatten(1).any(1)
        assert int(differ.sum()) == int((mine & planted.included).sum())
        for row, wrong in zip(
            planted.inputs[mine & planted.included],
            planted.targets[mine & planted.included],
            strict=True,
        ):
            (place,) = (inputs == row).flatten(1).all(1).nonzero()
            assert targets[place] == wrong != nodes[node][1][place]
        for row in planted.other_inputs[mine & ~planted.included]:
            assert bool((inputs == row).flatten(1).all(1).any())


def test_the_coins_are_their_owners_alone_and_never_overwritten(tmp_path):
    file = tmp_path / "coins"
    planted_in(digits(40), file, count=10)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    with pytest.raises(InputError, match="is there already"):
        planted_in(digits(40), file, count=10)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_scores_know_no_coin(tmp_path, monkeypatch):
    """With all coins turned, the same canaries score the same, and other guesses are right."""
    file = tmp_path / "coins"
    nodes = planted_in(digits(80, 80), file, count=40)
    less_noise(monkeypatch, 0.01)
    run = train(nodes, tmp_path / "run")
    known = read_planted(file)
    turned = replace(known, included=~known.included)
    right = audit_deployed(run, known, nodes=nodes)
    wrong = audit_deployed(run, turned, nodes=nodes)
    assert right.correct + wrong.correct == right.guessed


def test_labels_alone_can_be_changed(tmp_path):
    file = tmp_path / "coins"
    nodes = digits(50)
    ((inputs, targets),) = planted_in(nodes, file, count=20, canary="mislabelled")
    assert inputs.equal(nodes[0][0])
    assert int((targets != nodes[0][1]).sum()) == int(read_planted(file).included.sum())


@pytest.mark.slow
def test_the_command_audits_a_run_with_planted_canaries(tmp_path):
    from experiments import strict_json
    from experiments import tacit as command

    file = tmp_path / "coins"
    run = train(planted_in(digits(100, 100), file, count=60), tmp_path / "run")
    answer = command("audit", run, "--planted", file)
    assert (answer.code, answer.err) == (0, "")
    assert "60 canaries were planted in 2 nodes" in answer.out
    assert "not contradicted" in answer.out
    found = strict_json(command("audit", run, "--planted", file, "--json").out)
    assert found["canaries"] == 60
    assert found["audited_epsilon"] <= found["certified_epsilon"]
    nothing = command("audit", run, "--planted", tmp_path / "nothing")
    assert nothing.code == 2
    assert "--planted" in nothing.err


@pytest.mark.parametrize(
    ("more", "match"),
    [({"own": [3]}, "own"), ({"own": []}, "own"), ({"count": 0}, "count")],
)
def test_wrong_plantings_are_refused(tmp_path, more, match):
    with pytest.raises(InputError, match=match):
        planted_in(digits(40), tmp_path / "coins", **more)
    assert not (tmp_path / "coins").exists()


def test_canaries_are_rows_and_no_persons(tmp_path):
    (part,) = digits(40)
    known = tacit.Dataset(*part, range(40))
    with pytest.raises(InputError, match=r"nodes\[0\].*not a unit"):
        planted_in([known], tmp_path / "coins")
    planted_in([part], tmp_path / "coins")
    out = train([known], tmp_path / "run", unit="column:person")
    with pytest.raises(InputError, match=r"privacy\.unit"):
        audit_deployed(out, tmp_path / "coins")


def test_a_folder_without_a_result_is_refused(tmp_path):
    planted_in(digits(40), tmp_path / "coins", count=10)
    with pytest.raises(InputError, match=r"is not a run folder|no result"):
        audit_deployed(tmp_path, tmp_path / "coins")
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_planted(tmp_path / "other")
