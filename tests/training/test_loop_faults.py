"""Runs whose disk fails or that are killed: what was sent is in the ledger, and nothing lies.

The command line runs in forked processes, in which a write of the run folder fails or ends the
process, or which are killed at random instants. Each exchange is witnessed in a file of its own.
"""

import random
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from experiments import SEEDED, strict_json, write_experiment
from fork_server import Ended, ForkServer, exchanged
from tacit.config import load_config
from tacit.privacy.ledger.ledger import read_ledger, step_runs
from tacit.training.budget import epsilon_spent
from tacit.training.job import Job
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder import checkpoint
from tacit.training.run_folder.folder import half_made

pytestmark = pytest.mark.process

SMALL = {"steps": 6, "checkpoint_every": 2, "evaluate_every": 3}
KINDS = ("kill", "fail", "full")
MODELS = ("nodes.safetensors", "model.safetensors")


@pytest.fixture(scope="module")
def server():
    with ForkServer() as server:
        yield server


@dataclass
class Trial:
    """A run that meets faults, and what is known of it.

    Args:
        server: where its processes are started.
        file: the experiment.
        job: the same, prepared.
        run: its folder.
        uncut: the model files of a run of so many steps that nothing interrupted; None where
            fresh noise makes every run another one.
    """

    server: ForkServer
    file: Path
    job: Job
    run: Path
    uncut: Callable[[int], dict[str, bytes]] | None
    sessions: list[Ended] = field(default_factory=list)

    @property
    def witness(self):
        return self.run.with_name(f"{self.run.name}.witness")

    def go_on(self, **request):
        """One more session; a new one where nothing was begun."""
        more = ["--resume"] if self.run.exists() or half_made(self.run) else []
        arguments = ("train", self.file, "--out", self.run, "--quiet", *more)
        self.sessions.append(self.server.tacit(*arguments, witness=self.witness, **request))
        return self.sessions[-1]

    def charged(self):
        """How often each step was charged, the same to every node."""
        (run,) = read_ledger(self.run / "ledger.sqlite").runs
        (intervals,) = set(run.charged.values())
        return Counter(
            {
                step: times
                for first, until, times in step_runs(intervals)
                for step in range(first, until)
            }
        )

    def check(self):
        """What must hold at every moment at which a process may end."""
        sent, plan = exchanged(self.witness), self.job.plan
        if not self.run.exists():
            assert not sent
            return
        assert (self.run / "config.toml").is_file()
        assert stat.S_IMODE(self.run.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in self.run.iterdir()}
        assert set(modes.values()) == {0o600}, modes
        result = self.result()
        if plan.accounted:
            charged = self.charged()
            assert sent <= charged
            assert result is None or result["epsilon"] == list(
                epsilon_spent(plan, read_ledger(self.run / "ledger.sqlite").runs[0].charged)
            )
        if result is not None and self.uncut is not None:
            uncut = self.uncut(result["steps"])
            assert {name: (self.run / name).read_bytes() for name in MODELS} == uncut

    def result(self):
        path = self.run / "result.json"
        return strict_json(path.read_text()) if path.exists() else None

    def kept(self):
        """The step of the newest checkpoint."""
        found = checkpoint.latest(self.run) if self.run.exists() else None
        return -1 if found is None else int(found.stem.removeprefix("checkpoint-"))

    def finish(self):
        """A session without faults ends the run; where all was done before, at no further cost."""
        plan = self.job.plan
        complete = self.kept() == plan.steps
        before = self.charged() if complete and plan.accounted else None
        ended = self.go_on()
        assert (ended.code, said(ended)) == (0, "")
        self.check()
        assert before is None or self.charged() == before
        result = self.result()
        assert result is not None
        shortened = result["status"] == "budget-exhausted" and result["steps"] < plan.steps
        assert shortened or (result["status"], result["steps"]) == ("done", plan.steps)
        budgets = [node.budget for node in plan.nodes]
        assert not shortened or None not in budgets
        for spent, budget in zip(result["epsilon"], budgets, strict=True):
            assert budget is None or spent <= budget
        assert (self.run / "report.html").exists()
        leftover = [path.name for path in self.run.parent.iterdir() if path.name.endswith(".new")]
        assert not [name for name in leftover if name.startswith(f".{self.run.name}.")]


@pytest.fixture(scope="module")
def trial(server, tmp_path_factory):
    """Makes trials of an experiment, by the name of their folder."""

    def of(**changes):
        folder = tmp_path_factory.mktemp("faults")
        file = write_experiment(folder, **changes)
        job = prepare(load_config(file))
        seeded = job.config.privacy.noise_seed is not None

        @cache
        def uncut(steps):
            made, out = 0, folder / f"uncut-{steps}"

            def stop():
                nonlocal made
                made += 1
                return made == steps

            execute(job, out=out, should_stop=stop)
            return {name: (out / name).read_bytes() for name in MODELS}

        def make(name):
            return Trial(server, file, job, folder / name, uncut if seeded else None)

        return make

    return of


@pytest.fixture(scope="module")
def small(trial):
    return trial(train=SMALL)


def said(ended):
    """What a session wrote, but for the warning that its noise is seeded."""
    line = ended.err
    return line.removeprefix(SEEDED)


def fault(one, kind, number):
    """A session with a fault at a write, and the end of the run; False where none was as late."""
    ended = one.go_on(fault=[kind, number])
    one.check()
    if ended.code == 0 and ended.writes < number:
        return False
    if ended.code == 0:  # what could not be written or removed is not of the run, and does no harm
        result = one.result()
        assert kind != "kill"
        assert result is not None
        assert one.kept() == result["steps"]
    elif kind == "kill":
        assert ended.code == -9
    else:
        assert (ended.code, ended.out) == (2, "")
        assert said(ended).startswith("tacit: ")
        assert said(ended).count("\n") == 1
        assert "No space left on device" in said(ended) or "disk is full" in said(ended)
    one.finish()
    return True


def sweep(make, kinds, every):
    """A fault at each write in turn, until a session ends before it; gives how many there were."""
    number, met = 1, 0
    while fault(make(), kinds[met % len(kinds)], number):
        number, met = number + every, met + 1
    return met


_NUMBERS = count()  # no two tests share a folder


def new(make):
    return lambda: make(f"new-{next(_NUMBERS)}")


def copies(make, name, *, stop):
    """Copies of a run that was stopped after a step, with its witness."""
    first, made = make(name), 0

    def stopped():
        nonlocal made
        made += 1
        return made == stop

    execute(first.job, out=first.run, should_stop=stopped)
    numbers = iter(range(10_000))

    def copy():
        one = make(f"{name}-{next(numbers)}")
        shutil.copytree(first.run, one.run)
        one.run.chmod(0o700)
        return one

    return copy


def test_a_write_that_fails_or_kills_leaves_a_run_that_can_be_finished(small):
    assert sweep(new(small), KINDS, every=11) > 7


def test_a_run_that_goes_on_meets_faults(small):
    """Its first result is withdrawn before more is spent, and never stands beside other models."""
    assert sweep(copies(small, "stopped", stop=3), KINDS, every=17) > 2


def test_a_finished_run_is_not_lost_by_a_fault(small):
    assert sweep(copies(small, "finished", stop=6), KINDS, every=11) > 2


@pytest.mark.parametrize("largest", [0, 600, 7000, 12_000])
def test_where_files_cannot_grow(small, largest):
    """SQLite's own writes fail as well: the system allows no file to be larger."""
    one = small(f"largest-{largest}")
    ended = one.go_on(largest=largest)
    assert (ended.code, ended.out, said(ended).count("\n")) == (2, "", 1)
    assert "a defect of ours" not in said(ended)
    one.check()
    one.finish()


def test_a_full_disk_is_told_with_what_is_safe(small):
    one = small("full")
    for number in range(54, 100):
        ended = one.go_on(fault=["full", number])
        if one.kept() > 0:
            break
        shutil.rmtree(one.run)
        one.witness.unlink()
    last = checkpoint.file_of(one.run, one.kept()).name
    assert re.fullmatch(
        r"tacit: \w+ = '[^']+': .*(No space left on device\)|disk is full); the run ended after "
        rf"step \d: what was sent is in the ledger, and the last checkpoint is {last}; "
        r"when there is room to write, go on with --resume\n",
        said(ended),
    )
    one.finish()


# Kill storms.

LONG = {"steps": 40, "checkpoint_every": 4, "evaluate_every": 10}
STORMS = {
    "accounted": {},
    "a budget": {"privacy": {"noise_std": None, "epsilon": 2.0}},
    "not accounted": {"privacy": {"accounting": "none"}},
    "fresh keys": {"privacy": {"noise_std": None, "epsilon": 2.0, "noise_seed": None}},
    "a momentum": {"algorithm": {"name": "dyn-d2p", "momentum": 0.9}},
}


def storm(trial, names, *, runs, kills, seed):
    """Runs of `STORMS` that are killed at random instants and resumed until they are finished.

    There are as many `runs` at least, and more until there were so many `kills`: how many sessions
    end before their instant comes is decided by the machine.
    """
    moments, outcomes = random.Random(seed), Counter[str]()
    makers = [trial(**STORMS[name], train=LONG) for name in names]
    for number in range(4 * runs):
        if number >= runs and outcomes["kills"] >= kills:
            break
        outcomes["runs"] += 1
        one = makers[number % len(makers)](f"run-{number}")
        for _ in range(moments.randint(1, 4)):
            if moments.random() < 0.7:  # most instants are those of preparing: here, of running
                ended = one.go_on(fault=["kill", moments.randint(1, 260)])
            else:
                ended = one.go_on(kill_after=moments.uniform(0.05, 1.0))
            one.check()
            outcomes["sessions"] += 1
            if ended.code != -9:
                break
            outcomes["kills"] += 1
        if one.run.exists() and one.job.plan.accounted:
            outcomes["steps charged again"] += one.charged().total() - len(one.charged())
        if one.kept() < 0 and one.job.plan.nodes[0].budget is not None and one.run.exists():
            left = one.go_on()  # nothing may be left, and nothing kept
            one.check()
            if left.code == 3:
                assert "nothing is left" in left.err
                outcomes["refused"] += 1
                continue
        one.finish()
        outcomes[one.result()["status"]] += 1
        sent = exchanged(one.witness)
        assert set(sent) >= set(range(one.result()["steps"]))
    return outcomes


def test_a_small_storm(trial):
    ended_well(storm(trial, list(STORMS), runs=5, kills=4, seed=1), kills=4)


def ended_well(outcomes, *, kills):
    ends = outcomes["done"] + outcomes["budget-exhausted"] + outcomes["refused"]
    assert ends == outcomes["runs"]
    assert outcomes["kills"] >= kills


# The long versions.


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("kill",), ("fail", "full")], ids=["kills", "failures"])
def test_every_write_in_turn(small, kinds):
    """Each write is killed, and each fails: by itself, or with all that follow, in turns."""
    assert sweep(new(small), kinds, every=1) > 90


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "writes"), [(3, 50), (6, 25)])
def test_every_write_of_a_resumed_run_in_turn(small, stop, writes):
    """Kills and failures in turns, since a new run meets all of them at all of its writes."""
    make = copies(small, f"in-turn-{stop}", stop=stop)
    assert sweep(make, ("kill", "fail", "kill", "full"), every=1) > writes


@pytest.mark.slow
@pytest.mark.parametrize("name", STORMS)
def test_a_full_storm(trial, name, capsys):
    outcomes = storm(trial, [name], runs=12, kills=12, seed=2)
    with capsys.disabled():
        print(f"\na storm, {name}: {dict(outcomes)}")
    ended_well(outcomes, kills=12)
