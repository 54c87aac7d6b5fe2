"""Real processes give the numbers of the simulator, keep their own to themselves, and agree."""

import json
import math
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import chdir
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from communication.cluster.crew import (
    EXACT,
    assert_ends_as,
    assert_epsilon_is_that_of_the_books,
    charged,
    checkpoints,
    crew,
    nodes_of,
    result_of,
    rows_of,
    simulated,
    train,
)
from communication.cluster.tampering import at_step, corrupt, overheard, raise_signal
from experiments import SEEDED, write_experiment
from tacit.config import load_config
from tacit.training import stacked_context

pytestmark = pytest.mark.process

NODES, STEPS = 5, 6
PRIVATE = ("train_loss", "gradient_norm", "clip_rate", "records_left_out", "augmented_lagrangian")
Sections = Mapping[str, Mapping[str, Any]]
KINDS = {
    "push-sum": {
        "algorithm": {"name": "dyn-d2p", "momentum": 0.9, "final_mixing": 2},
        "task": {"metric": ["auc", "f1"]},
    },
    "push-sum, averaged": {
        "algorithm": {"name": "dyn-d2p", "momentum": 0.9, "final_mixing": 2},
        "train": {"average": "tail:0.5"},
    },
    "gossip, compressed": {
        "algorithm": {
            "name": "do-adp", "compressor": "top-k", "keep": 0.3, "momentum": 0.5,
            "activation": 0.8,
        },
    },
    "gossip, dual variables": {
        "algorithm": {"name": "dp-madmm-gradient", "penalty_growth": 1.2, "regulariser": "l1"},
    },
    "gossip, dual variables, recycled": {"algorithm": {"name": "dp-radmm-gradient"}},
    "noise of pairs": {
        "algorithm": {"name": "dyn-d2p", "momentum": 0.9},
        "privacy": {"noise": "pairwise", "pair_noise": 3.0, "colluding": 1},
    },
    "noise of pairs, asynchronous": {
        "algorithm": {"name": "adp2-sgd", "stragglers": 0.3},
        "topology": {"partners": "complete"},
        "privacy": {"noise": "pairwise", "pair_noise": 3.0, "colluding": 1},
    },
    "server": {"algorithm": {"name": "dp-fedavg", "clients_per_round": 3, "local_steps": 2}},
    "server, secure sums": {
        "algorithm": {"name": "dp-sgd", "clients_per_round": 4, "clip": "median"},
        "privacy": {"aggregation": "secure-sum", "colluding": 2},
    },
    "server, the same clients": {
        "algorithm": {
            "name": "dp-admm", "clients_per_round": 3, "participation": "same",
            "learning_rate": "sqrt(n/K)",
        },
    },
    "server, recursive momentum": {
        "algorithm": {"name": "dp-srm", "clients_per_round": 3, "clip_difference": 0.2},
    },
    "server, differences to the last round": {
        "algorithm": {
            "name": "ldp-spider", "anchor_every": 3, "clients_per_round": 2, "regulariser": "l1",
        },
    },
    "server, anchors, secure sums": {
        "algorithm": {"name": "ldp-svrg", "anchor_every": 2, "clients_per_round": 4},
        "privacy": {"aggregation": "secure-sum", "colluding": 2},
    },
    "server, primal and dual, averaged": {
        "algorithm": {"name": "fedspd-dp", "clients_per_round": 2, "penalty": 20.0},
        "train": {"average": "exponential:0.7"},
    },
    "server, primal and dual": {
        "algorithm": {"name": "fedspd-dp", "clients_per_round": 2, "penalty": 20.0},
        "task": {"metric": ["balanced-accuracy"], "class_weights": [1.0, 2.0] * 5},
    },
    "views of records": {
        "algorithm": {"name": "dyn-d2p"},
        "task": {"augmentation": "shift", "model": "cnn"},
    },
    "asynchronous": {"algorithm": {"name": "adp2-sgd", "stragglers": 0.3}},
    "persons with several rows": {
        "algorithm": {"name": "privsgp-vr", "state": "private"},
        "task": {"dataset": "communication.cluster.people:load"},
        "privacy": {"unit": "column:person", "unit_rows": 3, "unit_nodes": 2},
    },
}  # fmt: skip
# `test_crew_runs` has all kinds, in memory; here is each verb of the exchange on the wire.
CASES = [
    ("push-sum", NODES),
    ("gossip, compressed", 3),
    ("gossip, dual variables", 3),
    ("noise of pairs", 3),
    ("noise of pairs", 2),
    ("noise of pairs, asynchronous", 3),
    ("server", 3),
    ("server, secure sums", 3),
    ("server, primal and dual, averaged", 3),
    ("views of records", 3),
    ("persons with several rows", 3),
]


def flat(value):
    """The numbers of a part of a row, in order."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return [value]
    return [number for one in inner for number in flat(one)]


# A search for an epsilon ends within this: sums of the accountant are added in another order where
# a process has another number of threads.
SAME_EPSILON = 1e-9


def close(found, right, within=1e-12):
    """Whether all numbers are the same, in float64."""
    pairs = zip(flat(found), flat(right), strict=True)
    return all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=within, abs_tol=1e-14)
        for a, b in pairs
    )


def assert_same_run(run, alone, *, server=False):
    """What processes wrote is what the simulator wrote: models, metrics, epsilon, bytes, ledger."""
    torch.testing.assert_close(nodes_of(run), nodes_of(alone), **EXACT)
    models = [load_file(folder / "model.safetensors") for folder in (run, alone)]
    assert models[0].keys() == models[1].keys()
    for name, right in models[1].items():
        torch.testing.assert_close(models[0][name], right, **EXACT)
    found, right = result_of(run), result_of(alone)
    for key in ("status", "steps", "claimed_epsilon", "bytes_sent_by_node"):
        assert found[key] == right[key], key
    assert close(found["epsilon"], right["epsilon"], SAME_EPSILON)
    for key in ("test_accuracy", "test_loss", "test_metrics", "test_metrics_by_node"):
        assert close(found[key], right[key]), key
    assert charged(run) == charged(alone)
    rows, rights = rows_of(run), rows_of(alone)
    assert [row["step"] for row in rows] == [row["step"] for row in rights]
    for row, wanted in zip(rows, rights, strict=True):
        assert row.keys() == wanted.keys()
        unknown = set() if row["consensus_distance"] is not None else {"consensus_distance"}
        assert not unknown or server
        for key in row.keys() - {"seconds", *PRIVATE} - unknown:
            within = SAME_EPSILON if key == "epsilon" else 1e-12
            assert close(row[key], wanted[key], within), (key, row, wanted)


@pytest.mark.parametrize(("kind", "processes"), CASES)
def test_processes_give_the_numbers_of_the_simulator(kind, processes, tmp_path):
    common = {"steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2}
    kinds = {**KINDS[kind], "train": {**common, **KINDS[kind].get("train", {})}}
    file = write_experiment(tmp_path, nodes={"count": NODES}, **kinds)
    answers = train(tmp_path, file, tmp_path / "run", processes)
    assert [answer.code for answer in answers] == [0] * processes, answers
    # Only rank 0 speaks: of a run that is not private, that it is none.
    reason = load_config(file).not_private_reason
    warning = "" if reason is None else f"warning: this run is NOT PRIVATE: {reason}\n"
    assert [answer.err for answer in answers] == [warning, *[""] * (processes - 1)]
    assert [answer.out for answer in answers] == [f"{tmp_path / 'run'}\n", *[""] * (processes - 1)]
    simulated(file, tmp_path / "alone")
    # What clients are apart is not known of a server's methods: their models stay with them.
    assert_same_run(tmp_path / "run", tmp_path / "alone", server="server" in kind)
    assert_private_metrics_stay_home(tmp_path / "run", rows_of(tmp_path / "alone"))


def test_a_bound_that_is_assumed_is_enforced_by_no_process(tmp_path):
    file = write_experiment(
        tmp_path,
        nodes={"count": NODES},
        algorithm={"name": "do-adp", "clip": 0.01, "clip_norm": "assumed"},
        topology={"graph": "ring"},
        privacy={"noise_std": None, "epsilon": 1.0, "accounting": "published"},
        train={"steps": STEPS, "batch": 16, "dtype": "float64"},
    )
    answers = train(tmp_path, file, tmp_path / "run", 3)
    assert [answer.code for answer in answers] == [0] * 3, answers
    simulated(file, tmp_path / "alone")
    torch.testing.assert_close(nodes_of(tmp_path / "run"), nodes_of(tmp_path / "alone"), **EXACT)
    found = result_of(tmp_path / "run")
    assert found["epsilon"] == result_of(tmp_path / "alone")["epsilon"] == [None] * NODES


def assert_private_metrics_stay_home(run, alone):
    """What was measured on a rank's records is in one file of its own, and in nothing else."""
    assert all(row[key] is None for row in rows_of(run) for key in PRIVATE)
    texts = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    losses, lagrangians = [], []
    for home in sorted(run.glob("rank-*")):
        own = rows_of(home)
        assert all(row.keys() == {"step", *PRIVATE} for row in own)
        assert [row["step"] for row in own] == [row["step"] for row in rows_of(run)]
        losses.append([row["train_loss"] for row in own])
        lagrangians.append([row["augmented_lagrangian"] for row in own])
        secrets = [number for row in own for key in PRIVATE for number in flat(row[key])]
        # But for the loss of the model of zeros, which all have at first, and its sum over nodes.
        units = [(n, n / math.log(10)) for n in secrets if n is not None]
        told = [n for n, unit in units if abs(unit - round(unit)) > 1e-6]
        # Nor the shares of few records, which two ranks may have alike.
        told = [n for n in told if abs(n - Fraction(n).limit_denominator(1000)) > 1e-12]
        long = [repr(number) for number in told if len(repr(number)) > 12]
        assert len(long) >= 3
        for path, text in texts.items():
            assert path == home / "metrics.jsonl" or not any(n.encode() in text for n in long)
    # They are those of its own nodes: together they enclose what the simulator has of all.
    for place, row in enumerate(alone):
        own = [of_rank[place] for of_rank in losses if of_rank[place] is not None]
        assert bool(own) == (row["train_loss"] is not None)
        assert not own or min(own) - 1e-12 < row["train_loss"] < max(own) + 1e-12
        # The Lagrangian is a sum over nodes.
        parts = [of_rank[place] for of_rank in lagrangians]
        whole = row["augmented_lagrangian"]
        assert all(part is None for part in parts) == (whole is None)
        assert whole is None or sum(parts) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", ["dyn-d2p", "dp-sgd"])
@pytest.mark.parametrize("how", ["public", "private"])
def test_processes_recalibrate_as_the_simulator_does(name, how, tmp_path):
    """By the common model and the noised counts of all nodes; each charges its own for them."""
    homes = [tmp_path / f"site-{rank}" for rank in range(3)]
    for home in (*homes, tmp_path / "all"):
        home.mkdir()
        (home / "low_digits.py").write_text(
            "from sklearn.datasets import load_digits\n"
            "import torch\nfrom tacit.data import Dataset\n"
            "def load():\n"
            "    data, labels = load_digits(return_X_y=True)\n"
            "    inputs, low = torch.from_numpy(data / 16), torch.from_numpy(labels < 3).long()\n"
            "    return Dataset(inputs[:1000], low[:1000]), Dataset(inputs[1000:], low[1000:])\n"
        )
    file = write_experiment(
        tmp_path,
        nodes={"count": NODES},
        task={"dataset": "low_digits:load", "metric": ["brier"], "calibrate": how},
        algorithm={"name": name, "clip": 0.5},
        privacy={"noise_std": 0.02, "delta": 1e-5},
        train={"steps": STEPS, "batch": "all", "dtype": "float64"},
    )
    words = ("train", file, "--quiet", "--out", tmp_path / "run")
    with crew(tmp_path, 3, lambda _: words, homes=homes) as members:
        answers = [member.end() for member in members]
    assert [answer.code for answer in answers] == [0] * 3, answers
    with chdir(tmp_path / "all"):
        simulated(file, tmp_path / "alone")
    # A search for the slope, which ends near it, begins with sums that are added in another order.
    near = {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(nodes_of(tmp_path / "run"), nodes_of(tmp_path / "alone"), **near)
    found, right = result_of(tmp_path / "run"), result_of(tmp_path / "alone")
    assert close(found["epsilon"], right["epsilon"], SAME_EPSILON)
    assert close(found["test_metrics"], right["test_metrics"], 1e-6)
    assert charged(tmp_path / "run") == charged(tmp_path / "alone")
    assert len(found["calibration"]) == len(right["calibration"])
    (told,) = [note for note in found["notes"] if note.startswith("calibrated: ")]
    assert told in right["notes"]


# Own data.


def own_files(folder, nodes):
    """The records of some nodes, each in a file of its own: more of them, the higher its number."""
    folder.mkdir()
    for node in nodes:
        generator = np.random.default_rng(node)
        inputs = generator.normal(size=(20 + 4 * node, 3))
        targets = (inputs.sum(1) + generator.normal(size=len(inputs)) > 0).astype(np.int64)
        np.savez(folder / f"records-{node}.npz", inputs=inputs, targets=targets)


OWN = {
    "task": {"dataset": None, "model": "logistic", "outputs": 2},
    "nodes": {"count": NODES, "data": "by-rank", "source": "records-{node}.npz"},
    "train": {"dtype": "float64"},
}
BLOCKS = (range(2), range(2, 4), range(4, 5))


def test_each_process_has_the_records_of_its_own_nodes_and_no_others(tmp_path):
    file = write_experiment(tmp_path, **OWN)
    homes = [tmp_path / f"site-{rank}" for rank in range(3)]
    for home, nodes in zip(homes, BLOCKS, strict=True):
        own_files(home, nodes)
    words = ("train", file, "--quiet", "--out", tmp_path / "run")
    with crew(tmp_path, 3, lambda _: words, homes=homes) as members:
        answers = [member.end() for member in members]
    assert [(answer.code, answer.err) for answer in answers] == [(0, SEEDED), (0, ""), (0, "")]
    own_files(tmp_path / "all", range(NODES))
    with chdir(tmp_path / "all"):
        simulated(file, tmp_path / "alone")
    assert_same_run(tmp_path / "run", tmp_path / "alone")
    # None wrote anything where it was started.
    for home, nodes in zip(homes, BLOCKS, strict=True):
        left = {path.name for path in home.iterdir()} - {"said.out", "said.err"}
        assert left == {f"records-{node}.npz" for node in nodes}


def test_a_missing_file_ends_all_and_names_node_and_path(tmp_path):
    file = write_experiment(tmp_path, **OWN)
    homes = [tmp_path / f"site-{rank}" for rank in range(3)]
    for home, nodes in zip(homes, BLOCKS, strict=True):
        own_files(home, nodes)
    (homes[1] / "records-3.npz").unlink()
    words = ("train", file, "--quiet", "--out", tmp_path / "run")
    with crew(tmp_path, 3, lambda _: words, homes=homes) as members:
        answers = [member.end() for member in members]
    assert [answer.code for answer in answers] == [2] * 3
    said = "nodes.source = 'records-{node}.npz': node 3: there is no file records-3.npz\n"
    told = "tacit: rank 1: its own data or settings were refused; see its own screen\n"
    assert [answer.refusal for answer in answers] == [told, f"tacit: {said}", told]
    assert not (tmp_path / "run").exists()


# Disagreement.


@pytest.mark.parametrize(("odd", "override", "named"), [(2, "train.steps=7", "train.steps")])
def test_processes_that_disagree_end_before_the_first_step(odd, override, named, tmp_path):
    file, run = write_experiment(tmp_path), tmp_path / "run"

    def words(rank):
        more = ["--set", override] if rank == odd else []
        return ["train", file, "--quiet", "--out", run, *more]

    with crew(tmp_path, 3, words) as members:
        answers = [member.end() for member in members]
    assert [answer.code for answer in answers] == [2] * 3
    for answer in answers:
        assert named in answer.refusal
        others = " and ".join(str(rank) for rank in range(3) if rank != odd)
        assert f"rank {odd}" in answer.refusal
        assert others in answer.refusal
    assert not run.exists()


def test_a_run_folder_that_exists_is_refused_by_all(tmp_path):
    file, run = write_experiment(tmp_path), tmp_path / "run"
    run.mkdir()
    (run / "mine.json").write_text(json.dumps("kept"))
    answers = train(tmp_path, file, run, 3)
    assert [answer.code for answer in answers] == [2] * 3
    assert all("exists already" in answer.refusal for answer in answers)
    assert [path.name for path in run.iterdir()] == ["mine.json"]


# Secure sums between real processes: the simulator's numbers, kills, and what the server knows.


CHANGES = {
    "nodes": {"count": 4},
    "algorithm": {"name": "dp-sgd"},
    "train": {"steps": 7, "checkpoint_every": 3, "evaluate_every": 2, "batch": 16},
}
PRIVACY = {"aggregation": "secure-sum", "colluding": 2}
TOLD, MASKED = 4, 6  # kinds of messages: what the server says, and what it gets


def test_a_round_that_is_repeated_after_a_kill_has_fresh_masks_and_is_charged_again(tmp_path):
    """The own noise is seeded here, so that nothing but the masks tells the two attempts apart."""
    file, run = write_experiment(tmp_path, privacy=PRIVACY, **CHANGES), tmp_path / "run"

    def listening(session, lethal):
        return {
            rank: partial(overheard, tmp_path / f"{session}-{rank}", lethal if rank == 1 else None)
            for rank in range(3)
        }

    def heard(session, kind):
        return {
            (rank, step): digest
            for rank in range(3)
            for (found, step, _), digest in map(
                json.loads, (tmp_path / f"{session}-{rank}").read_text().splitlines()
            )
            if found == kind
        }

    answers = train(tmp_path, file, run, 3, tamper=listening("first", 5))
    assert [answer.code for answer in answers] == [4, -signal.SIGKILL, 4]
    assert all("rank 1 (node" in answers[rank].refusal for rank in (0, 2))
    assert max(set.intersection(*checkpoints(run))) == 3
    before = charged(run)
    assert set(before) == set(range(4))

    answers = train(tmp_path, file, run, 3, "--resume", tamper=listening("second", None))
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    again = Counter(range(3, 7))
    assert charged(run) == {node: steps + again for node, steps in before.items()}
    assert_epsilon_is_that_of_the_books(run)
    first, second = heard("first", MASKED), heard("second", MASKED)
    repeated = first.keys() & second.keys()
    assert {(1, 3), (1, 4), (2, 3), (2, 4)} <= repeated
    assert not any(first[key] == second[key] for key in repeated)
    told = heard("first", TOLD), heard("second", TOLD)
    assert {(0, 3), (0, 4)} <= told[0].keys() & told[1].keys()
    assert all(told[0][key] == told[1][key] for key in ((0, 3), (0, 4)))
    alone = simulated(file, tmp_path / "alone")
    assert_ends_as(run, alone)
    pairs = zip(result_of(run)["epsilon"], result_of(alone)["epsilon"], strict=True)
    assert all(twice > once for twice, once in pairs)


def test_more_clients_in_one_process_than_may_collude_are_refused(tmp_path):
    privacy = {**PRIVACY, "colluding": 1}
    file = write_experiment(tmp_path, privacy=privacy, **CHANGES)
    answers = train(tmp_path, file, tmp_path / "run", 3)
    assert [answer.code for answer in answers] == [2, 2, 2]
    for answer in answers:
        assert "privacy.colluding = 1: must be at least 2: the process of rank 0" in answer.refusal


# Noise of pairs between processes: it cancels, is new at every attempt, and losses are told.


PROCESSES = 3
SETTINGS = {
    "nodes": {"count": PROCESSES},
    "algorithm": {"name": "dyn-d2p"},
    "topology": {"graph": "complete"},
    "privacy": {"noise": "pairwise", "pair_noise": 3.0, "colluding": 1, "noise_seed": None},
    "train": {"steps": 5, "checkpoint_every": 2},
}


def recorded(folder, victim, lethal):
    """Keep this rank's noise of pairs, a file a step; a victim dies before its lethal step."""
    drawn = stacked_context.pair_sums

    def keep(*arguments):
        offsets = drawn(*arguments)
        (node,), k = arguments[1], arguments[6]
        torch.save(offsets.points, folder / f"{k}-{node}.pt")
        return offsets

    stacked_context.pair_sums = keep
    if victim and lethal is not None:
        at_step(lethal, partial(raise_signal, signal.SIGKILL))


def attempt(folder, file, lethal, *more):
    """Exit codes of a session that keeps its pair noise in a folder."""
    folder.mkdir()
    tamper = {rank: partial(recorded, folder, rank == 1, lethal) for rank in range(PROCESSES)}
    answers = train(folder, file, file.parent / "run", PROCESSES, *more, tamper=tamper)
    return [answer.code for answer in answers]


def noise(folder, k):
    """That of every rank, of a step that all of them reached."""
    files = [folder / f"{k}-{node}.pt" for node in range(PROCESSES)]
    return [torch.load(file, weights_only=True).double() for file in files if file.exists()]


def test_a_step_that_is_run_again_after_a_kill_has_new_noise_of_pairs(tmp_path):
    file = write_experiment(tmp_path, **SETTINGS)
    first, second = tmp_path / "first", tmp_path / "second"
    assert attempt(first, file, 3)[1] == -signal.SIGKILL
    assert max(set.intersection(*checkpoints(tmp_path / "run"))) == 2
    assert attempt(second, file, None, "--resume") == [0, 0, 0]
    # Two processes that agree on a key draw the same: over all nodes nothing is left.
    for folder, steps in ((first, range(3)), (second, range(2, 5))):
        for k in steps:
            found = noise(folder, k)
            assert len(found) == PROCESSES
            assert not torch.stack(found).sum(0).any()
            assert all(rows.std() > 64 for rows in found)
    # What somebody who heard both attempts of step 2 could subtract from each other.
    for before, after in zip(noise(first, 2), noise(second, 2), strict=True):
        assert abs(torch.corrcoef(torch.cat([before, after]))[0, 1]) < 6 / before.numel() ** 0.5
        # Two draws of the noise of two pairs are left, in half points.
        assert (before - after).var() > 3 * (2 * 64) ** 2
    assert all(steps[2] == 2 for steps in charged(tmp_path / "run").values())


def test_a_dropped_message_is_told_and_changes_nobodys_noise_of_pairs(tmp_path):
    seeded = {**SETTINGS["privacy"], "noise_seed": 7}
    tolerant = {**SETTINGS, "privacy": seeded, "faults": {"tolerate": True}}
    file = write_experiment(tmp_path, **tolerant)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert attempt(whole, file, None) == [0, 0, 0]
    told = result_of(tmp_path / "run")
    assert not any("left in the mean" in note for note in told["notes"])
    (tmp_path / "run").rename(tmp_path / "undisturbed")

    cut.mkdir()
    tamper = {rank: partial(recorded, cut, False, None) for rank in range(PROCESSES)}
    tamper[1] = partial(_recorded_and_corrupt, cut)
    answers = train(cut, file, tmp_path / "run", PROCESSES, tamper=tamper)
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    notes = " ".join(result_of(tmp_path / "run")["notes"])
    assert "bad messages that were dropped" in notes
    assert "noise of pairs that was in them is left in the mean" in notes
    assert result_of(tmp_path / "run")["epsilon"] == told["epsilon"]
    for k in range(5):
        for before, after in zip(noise(whole, k), noise(cut, k), strict=True):
            assert torch.equal(before, after)


def _recorded_and_corrupt(folder):
    recorded(folder, False, None)
    corrupt("not finite", first=2)
