"""A peer that lies changes nothing of another's ledgers, budget, checkpoints or paths."""

import json
import signal
from collections import Counter
from functools import partial

import pytest

from communication.cluster.crew import charged, checkpoints, crew, result_of, simulated, train
from communication.cluster.tampering import at_step, lie, raise_signal
from experiments import write_experiment
from tacit.analysis.ledger_report import ledger_document

pytestmark = pytest.mark.process

SMALL = {
    "nodes": {"count": 2},
    "train": {"steps": 10, "dtype": "float64", "checkpoint_every": 3, "evaluate_every": 5},
}
DIE = partial(at_step, 5, partial(raise_signal, signal.SIGKILL))


def spent(run, rank):
    """Epsilon of a rank's node, from the ledger of that rank alone."""
    (row,) = ledger_document(run / f"rank-{rank:04d}").nodes
    assert row.epsilon is not None
    return row.epsilon


def test_a_peer_that_denies_what_was_booked_overruns_nobodys_budget(tmp_path):
    file = write_experiment(tmp_path, privacy={"noise_std": None, "epsilon": 1.0}, **SMALL)
    run = tmp_path / "run"
    train(tmp_path, file, run, 2, tamper={1: DIE})
    before = charged(run)
    words = {
        "list of reserved steps": "[[]]",
        "list of steps reserved at the end": "[[]]",
        "last step": "10",
        "new folder": "false",
    }
    answers = train(tmp_path, file, run, 2, "--resume", tamper={1: partial(lie, words)})
    assert [answer.code for answer in answers] == [0, 0], answers
    content = result_of(run)
    end = content["steps"]
    assert (content["status"], 3 < end < 10) == ("budget-exhausted", True)
    again = Counter(range(3, end))
    assert charged(run) == {node: steps + again for node, steps in before.items()}
    assert 0.8 < spent(run, 0) <= 1.0
    # The lie is told of the liar's own node alone, and as its word.
    assert content["epsilon"] == [spent(run, 0), 0.0]
    assert content["epsilon_source"] == ["own ledger", "rank 1"]


def test_ends_that_a_peer_makes_up_are_refused_or_named(tmp_path):
    file, run = write_experiment(tmp_path, **SMALL), tmp_path / "run"
    for word in ("-1000000000", "1000000000000000", "Infinity", "11"):
        answers = train(tmp_path, file, run, 2, tamper={1: partial(lie, {"last step": word})})
        assert [answer.code for answer in answers] == [4, 4], answers
        assert "rank 1 " in answers[0].refusal
        assert not (run / "result.json").exists()
        assert all(not steps for steps in charged(run).values())
        run = run.with_name(f"{run.name}-again")


def test_a_peer_without_checkpoints_deletes_nobodys(tmp_path):
    file, run = write_experiment(tmp_path, **SMALL), tmp_path / "run"
    train(tmp_path, file, run, 2, tamper={1: DIE})
    home = run / "rank-0000"
    (kept,) = home.glob("checkpoint-*.safetensors")
    content = kept.read_bytes()
    # It ends before it has a new checkpoint: the older one is still there, under another name.
    forget = partial(_forget_and_die, 2)
    answers = train(tmp_path, file, run, 2, "--resume", tamper={1: forget})
    assert answers[0].code == 4
    assert (run / "metrics.earlier-1.jsonl").exists()
    (aside,) = home.glob("checkpoint-*")
    assert aside.name == "checkpoint-00000003.earlier-1.safetensors"
    assert aside.read_bytes() == content
    # Once all have got as far again, it goes; and the result says where the run went on.
    (run / "rank-0001" / kept.name).unlink(missing_ok=True)
    answers = train(tmp_path, file, run, 2, "--resume")
    assert [answer.code for answer in answers] == [0, 0], answers
    assert not list(home.glob("*earlier*"))
    assert [max(own) for own in checkpoints(run)] == [10, 10]
    assert result_of(run)["status"] == "done"
    assert charged(run)[0][0] == 3  # each time that it began at the first step
    alone = simulated(file, tmp_path / "alone")
    assert result_of(run)["test_loss"] == result_of(alone)["test_loss"]


def _forget_and_die(step):
    """Say that there are no checkpoints, and die before there are new ones."""
    lie({"list of checkpoints": "[]"})
    at_step(step, partial(raise_signal, signal.SIGKILL))


def test_of_the_run_folder_a_peer_gives_the_name_alone(tmp_path):
    file = write_experiment(tmp_path, **SMALL)

    def words(rank):
        return ["train", file, "--quiet"]

    for name in ("/tmp/elsewhere", "../elsewhere", "a/b", "..", "a\x1b[2Jb"):
        text = json.dumps({"name": name, "resume": False})
        tamper = {0: partial(lie, {"run folder": text})}
        with crew(tmp_path, 2, words, tamper=tamper) as members:
            answers = [member.end() for member in members]
        assert [answer.code for answer in answers] == [4, 4], answers
        assert "rank 0 sent a wrong run folder" in answers[1].refusal
        assert "\x1b" not in answers[1].err
        assert not list(members[1].home.glob("runs"))
