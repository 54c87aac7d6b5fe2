"""`launch`: what it starts, passes on and returns, and that it leaves no process behind.

Small programs stand in for `tacit train`; they wait for each other by files, with a limit.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.communication.cluster.launch import (
    Ended,
    exit_code,
    explanation,
    launch,
    worker_environment,
)
from tacit.errors import InputError

pytestmark = pytest.mark.process

PRELUDE = """
import json, os, signal, socket, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[-1]
def put(name, content=""):
    path = os.path.join(folder, name)
    with open(path + ".part", "w") as file:
        file.write(str(content))
    os.rename(path + ".part", path)
def until(condition):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            os._exit(99)
        time.sleep(0.005)
def wait_for(*names):
    until(lambda: all(os.path.exists(os.path.join(folder, name)) for name in names))
put(f"pid-{os.getpid()}")
"""
NUMBERS = [int(number) for number in signal.Signals if number < signal.SIGRTMIN]


def run(folder, source, processes=2, *extra, **options):
    """Launch a program that knows `rank`, `put` and `wait_for`; no process may outlive it."""
    program = PRELUDE + textwrap.dedent(source)
    options = {"patience": 30.0, **options}
    try:
        code = launch([*extra, str(folder)], processes, command=("-S", "-c", program), **options)
    finally:
        left = [number for number in pids(folder) if alive(number)]
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert left == []
    return code


def pids(folder):
    """The processes that were started."""
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*[0-9]")]


@contextmanager
def handled(number, handler):
    """Within, this process does this on a signal."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def alive(number):
    """Whether there is such a process, a zombie included."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def appear(folder, *names):
    """Whether all files come to be there, in half a minute at most."""
    end = time.monotonic() + 30
    while not all((folder / name).exists() for name in names):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_each_process_gets_its_arguments_and_an_environment_as_of_torchrun(
    tmp_path, capfd, monkeypatch
):
    source = """
        own = os.getsid(0) == os.getpid()
        put(f"rank-{rank}", json.dumps([dict(os.environ), sys.argv[1:], own]))
        print("out of", rank, sys.stdin.read())
        print("err of", rank, file=sys.stderr)
    """
    for name, value in {"RANK": "9", "WORLD_SIZE": "9", "MINE": "kept"}.items():
        monkeypatch.setenv(name, value)
    assert run(tmp_path, source, 3, "--set", "a.b=1", out=tmp_path / "run") == 0
    runs = [read(tmp_path, f"rank-{rank}") for rank in range(3)]
    assert [own for _, _, own in runs] == [True] * 3
    expected = ["--out", str(tmp_path / "run"), "--set", "a.b=1", str(tmp_path)]
    assert [arguments for _, arguments, _ in runs] == [expected] * 3
    environments = [environment for environment, _, _ in runs]
    assert [one["RANK"] for one in environments] == ["0", "1", "2"]
    assert [one["LOCAL_RANK"] for one in environments] == ["0", "1", "2"]
    (same,) = {
        tuple(
            one[name]
            for name in (
                "WORLD_SIZE",
                "LOCAL_WORLD_SIZE",
                "MASTER_ADDR",
                "TORCHELASTIC_RESTART_COUNT",
                "TORCHELASTIC_USE_AGENT_STORE",
                "MINE",
            )
        )
        for one in environments
    }
    assert same == ("3", "3", "127.0.0.1", "0", "True", "kept")
    assert len({one["MASTER_PORT"] for one in environments}) == 1
    assert len({one["TORCHELASTIC_RUN_ID"] for one in environments}) == 1
    assert capfd.readouterr() == ("out of 0 \n", "err of 0\n")
    assert os.environ["RANK"] == "9"


def test_the_cores_are_shared_out_unless_threads_are_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def threads(processes):
        return worker_environment(0, processes, 1, "id", 0)["OMP_NUM_THREADS"]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads(processes) for processes in (1, 2, 3, 8, 20)] == ["8", "4", "2", "1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads(2) == "7"


@pytest.mark.parametrize(
    ("codes", "whole"),
    [
        ((0, 0), 0),
        ((0, 4), 4),
        ((4, 2, 4), 2),
        ((4, 3), 3),
        ((3, 2), 2),
        ((4, 1), 1),
        ((4, 77), 1),
        ((2, 1), 2),
        ((4, 130), 130),
        ((0, -signal.SIGSEGV), 4),
        ((-signal.SIGKILL, 3), 3),
    ],
)
def test_the_cause_decides_the_exit_code(codes, whole):
    assert exit_code(codes) == whole


@given(st.lists(st.integers(-64, 255), min_size=1, max_size=6), st.randoms())
def test_the_exit_code_is_one_of_ours_and_of_no_order(codes, random):
    whole = exit_code(codes)
    assert whole in (0, 1, 2, 3, 4, 130)
    assert (whole == 0) == (not any(codes))
    random.shuffle(codes)
    assert exit_code([*codes, *codes]) == whole


def test_an_error_of_rank_0_is_told_once(tmp_path, capfd):
    source = """
        sys.stderr.write("tacit: train.steps = 0: too few\\n")
        sys.exit(2)
    """
    assert run(tmp_path, source, 3) == 2
    assert capfd.readouterr().err == "tacit: train.steps = 0: too few\n"


def test_where_rank_0_was_killed_another_explains(tmp_path, capfd):
    source = """
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stderr.write("progress\\n" * 100_000)  # more than a pipe holds
        sys.stderr.write("tacit: rank 0 (nodes 0 to 3) was lost\\nlater\\n")
        sys.exit(4)
    """
    assert run(tmp_path, source, 3) == 4
    assert capfd.readouterr().err == "tacit: rank 0 (nodes 0 to 3) was lost\n"


def test_a_killed_process_is_named_where_nobody_else_did(tmp_path, capfd):
    assert run(tmp_path, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)") == 4
    assert capfd.readouterr().err == "tacit: the process of rank 1 was ended by SIGKILL\n"


def words(*ended, traceback=False):
    return explanation(ended, exit_code([one.code for one in ended]), traceback=traceback)


def test_what_is_explained_beside_what_rank_0_said():
    lost = "tacit: rank 12 was lost"
    said = f"step 1\n{lost}\n"
    assert words(Ended(0, 0), Ended(1, 0)) == []
    assert words(Ended(0, 4), Ended(1, -9)) == []
    assert words(Ended(0, -9), Ended(1, -11), Ended(2, 4, output=said)) == [
        lost,
        "tacit: the process of rank 0 was ended by SIGKILL",
        "tacit: the process of rank 1 was ended by SIGSEGV",  # rank 12 is another
    ]
    defect = "tacit: a defect of ours: KeyError: 1"
    assert words(Ended(0, 4), Ended(1, 4, output=said), Ended(2, 1, output=defect)) == [defect]
    assert words(Ended(0, 77), Ended(1, 4, output=said)) == []
    hung = Ended(0, -9, ours=True)
    assert words(hung, Ended(1, 4, output=said)) == [lost]
    interrupted = ["tacit: interrupted before a clean stop was possible"]
    assert words(Ended(0, 130, ours=True), Ended(1, 130, ours=True)) == interrupted
    assert words(Ended(0, 130), Ended(1, 130, ours=True)) == []


def test_what_a_rank_said_of_itself_alone_stands_beside_what_rank_0_said():
    """Rank 0 was told only that it was refused: `see its own screen`, which nobody has."""

    def refused(rank, line):
        return Ended(rank, 2, output=f"step 1\ntacit: {line}\n")

    lacks = "nodes.source = 'own/{node}.npz': node 1: there is no file own/1.npz"
    told = "rank 1: its own data or settings were refused; see its own screen"
    first = Ended(0, 2)
    assert words(first, refused(1, lacks)) == [f"tacit: rank 1: {lacks}"]
    assert words(first, refused(1, lacks), refused(2, told)) == [f"tacit: rank 1: {lacks}"]
    every = ["node 1: no file", "node 2: no file"]
    assert words(first, refused(1, every[0]), refused(2, every[1])) == [
        f"tacit: rank 1: {every[0]}",
        f"tacit: rank 2: {every[1]}",
    ]
    # What all have found, rank 0 has said already.
    assert words(first, refused(1, "no such data"), refused(2, "no such data")) == []
    unlike = "algorithm.learning_rate = 0.7: on rank 1, but 0.5 on rank 0"
    assert words(first, refused(1, unlike)) == []
    assert words(Ended(0, 3), Ended(1, 3, output="tacit: node 1: no budget")) == [
        "tacit: rank 1: node 1: no budget"
    ]


def test_a_process_without_an_error_line_is_explained_by_what_it_wrote_last():
    trace = "Traceback:\n  line 1\nImportError: no such\n\n"
    short = "tacit: rank 1 ended with exit code 9: ImportError: no such"
    assert words(Ended(0, 4), Ended(1, 9, output=trace)) == [short]
    assert words(Ended(0, 4), Ended(1, 9)) == ["tacit: rank 1 ended with exit code 9"]
    assert words(Ended(0, 4), Ended(1, 9, output=trace), traceback=True) == [
        "Traceback:\n  line 1\nImportError: no such\ntacit: rank 1 ended with exit code 9"
    ]
    unknown = [Ended(0, -60), Ended(1, 0)]
    assert words(*unknown) == ["tacit: the process of rank 0 was ended by signal 60"]


def test_processes_that_do_not_notice_a_failure_are_ended(tmp_path):
    source = """
        if rank == 0:
            wait_for("deaf", "hears")
            sys.exit(3)
        def hear(*_):
            put("asked")
            sys.exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 1 else hear)
        put("deaf" if rank == 1 else "hears")
        time.sleep(60)
        put("slept")
    """
    assert run(tmp_path, source, 3, patience=0.1, grace=5) == 3
    assert (tmp_path / "asked").exists()
    assert not (tmp_path / "slept").exists()


def test_a_stopped_process_is_ended_as_well(tmp_path, capfd):
    source = """
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        sys.stderr.write("tacit: rank 0 has sent nothing for 1 s\\n")
        sys.exit(4)
    """
    assert run(tmp_path, source, patience=0.1, grace=1) == 4
    assert capfd.readouterr().err == "tacit: rank 0 has sent nothing for 1 s\n"


def test_the_others_may_take_their_time_to_notice(tmp_path):
    source = """
        if rank == 0:
            sys.exit(4)
        time.sleep(0.5)
        put("noticed")
        sys.exit(4)
    """
    assert run(tmp_path, source) == 4
    assert (tmp_path / "noticed").exists()


@pytest.mark.surroundings
@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_the_first_signal_is_passed_on_once(tmp_path, sent, arrives):
    source = f"""
        heard = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: heard.append(number))
        put(f"ready-{{rank}}")
        wait_for("ready-0", "ready-1")
        if rank == 0:
            os.kill(os.getppid(), signal.SIGTSTP)  # of no effect
            os.kill(os.getppid(), {int(sent)})
        until(lambda: heard)
        time.sleep(0.3)
        put(f"heard-{{rank}}", json.dumps(heard))
    """
    with handled(sent, signal.SIG_DFL):  # whatever these tests were started by
        before = [signal.getsignal(number) for number in NUMBERS]
        assert run(tmp_path, source) == 0
        assert [signal.getsignal(number) for number in NUMBERS] == before
    assert [read(tmp_path, f"heard-{rank}") for rank in range(2)] == [[int(arrives)]] * 2


@pytest.mark.surroundings
def test_a_closed_terminal_does_not_concern_what_nohup_started(tmp_path):
    source = """
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        heard = []
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        put(f"ready-{rank}")
        wait_for("ready-0", "ready-1")
        if rank == 0:
            os.kill(os.getppid(), signal.SIGHUP)
        time.sleep(0.3)
        put(f"heard-{rank}", json.dumps([ignored, heard]))
    """
    with handled(signal.SIGHUP, signal.SIG_IGN):
        assert run(tmp_path, source) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert [read(tmp_path, f"heard-{rank}") for rank in range(2)] == [[True, []]] * 2


@pytest.mark.surroundings
def test_the_second_signal_kills_and_nothing_is_started_again(tmp_path, capfd):
    source = """
        signal.signal(signal.SIGINT, lambda *_: put(f"heard-{rank}"))
        put(f"ready-{rank}")
        wait_for("ready-0", "ready-1")
        if rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
        wait_for("heard-0", "heard-1")
        if rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    """
    assert run(tmp_path, source, restarts=3, out=tmp_path / "run") == 130
    assert capfd.readouterr().err == "tacit: interrupted before a clean stop was possible\n"
    assert len(pids(tmp_path)) == 2


def test_a_lost_process_after_a_stop_was_asked_for_is_still_a_lost_process(tmp_path):
    source = """
        def die(*_):
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.signal(signal.SIGINT, die if rank else signal.SIG_IGN)
        put(f"ready-{rank}")
        wait_for("ready-0", "ready-1")
        if rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
        else:
            time.sleep(60)
    """
    assert run(tmp_path, source, restarts=3, out=tmp_path / "run") == 4
    assert len(pids(tmp_path)) == 2


def test_after_a_loss_all_are_started_again_and_go_on(tmp_path, capfd):
    source = """
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        run_id = os.environ["TORCHELASTIC_RUN_ID"]
        put(f"run-{restart}-{rank}", json.dumps([run_id, sys.argv[1:-1]]))
        if restart < 2:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stderr.write("tacit: rank 1 was lost\\n")
            sys.exit(4)
    """
    out = tmp_path / "run"
    assert run(tmp_path, source, restarts=3, out=out) == 0
    ranks = [[read(tmp_path, f"run-{restart}-{rank}") for rank in (0, 1)] for restart in range(3)]
    assert len({run_id for row in ranks for run_id, _ in row}) == 1
    assert [[arguments for _, arguments in row] for row in ranks] == [[["--out", str(out)]] * 2] * 3
    assert capfd.readouterr().err.splitlines() == [
        "tacit: rank 1 was lost",
        "tacit: starting all 2 processes again (restart 1 of 3)",
        "tacit: rank 1 was lost",
        "tacit: starting all 2 processes again (restart 2 of 3)",
    ]


@pytest.mark.parametrize(("code", "attempts"), [(4, 3), (3, 1), (1, 1)])
def test_only_a_loss_is_tried_again_and_not_for_ever(tmp_path, code, attempts):
    out = tmp_path / "run"
    out.mkdir()
    source = f"""
        put(f"resume-{{os.getpid()}}", sys.argv.count("--resume"))
        sys.exit({code})
    """
    assert run(tmp_path, source, 1, "--resume", restarts=2, out=out) == code
    assert [path.read_text() for path in tmp_path.glob("resume-*")] == ["1"] * attempts


def test_what_processes_say_needs_a_place(tmp_path, monkeypatch):
    def full(**options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(InputError, match=r"TMPDIR.*\(No usable temporary directory found\)"):
        run(tmp_path, "")
    assert pids(tmp_path) == []


def test_all_may_write_to_the_standard_error_of_the_launcher(tmp_path, capfd):
    said = []
    source = """
        print("not told" if rank else "told")
        sys.stderr.write(f"rank {rank}\\n")
        sys.exit(3 * rank)
    """
    assert run(tmp_path, source, say=said.append) == 3
    captured = capfd.readouterr()
    assert captured.out == "told\n"
    assert sorted(captured.err.splitlines()) == ["rank 0", "rank 1"]
    assert said == ["tacit: rank 1 ended with exit code 3"]


def test_no_process_is_left_when_the_launcher_fails(tmp_path, monkeypatch):
    def fail():
        assert appear(tmp_path, "ready-0", "ready-1")
        raise RuntimeError("no clock")

    with monkeypatch.context() as patch:
        patch.setattr("tacit.communication.cluster.launch.time", SimpleNamespace(monotonic=fail))
        with pytest.raises(RuntimeError, match="no clock"):
            run(tmp_path, "put(f'ready-{rank}'); time.sleep(60)")
    assert len(pids(tmp_path)) == 2


def test_a_process_that_cannot_be_started_takes_the_others_with_it(tmp_path):
    source = """
        import subprocess
        from tacit.communication.cluster.launch import launch
        from tacit.errors import InputError
        real, started = subprocess.Popen, []
        def scarce(*arguments, **options):
            if len(started) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            started.append(real(*arguments, **options))
            return started[-1]
        subprocess.Popen = scarce
        program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL);"
        try:
            launch([], 3, command=["-c", program + "time.sleep(60)"])
        except InputError as error:
            print(*(process.pid for process in started))
            sys.exit(str(error))
    """
    caller = subprocess.run(
        [sys.executable, "-c", "import sys\n" + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert caller.returncode == 1
    assert "--processes = 3: so many cannot be started" in caller.stderr
    started = [int(number) for number in caller.stdout.split()]
    assert len(started) == 2
    end = time.monotonic() + 30
    while any(running(number) for number in started):
        assert time.monotonic() < end
        time.sleep(0.01)


def running(number):
    """Whether there is such a process that has not ended; nobody may have asked how it did."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.surroundings
def test_a_killed_launcher_takes_its_processes_with_it(tmp_path):
    source = """
        def end(*_):
            put(f"ended-{rank}")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        put(f"ready-{rank}")
        wait_for("ready-0", "ready-1")
        if rank == 0:
            while os.listdir(os.environ["TMPDIR"]):  # the launcher is still starting
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    """
    command = ["-S", "-c", PRELUDE + textwrap.dedent(source)]
    call = f"launch({[str(tmp_path)]}, 2, command={command})"
    caller = f"from tacit.communication.cluster.launch import launch; {call}"
    own = tmp_path / "own"
    own.mkdir()
    try:
        code = subprocess.run(
            [sys.executable, "-c", caller],
            env={**os.environ, "TMPDIR": str(own)},
            timeout=60,
            check=False,
        ).returncode
        assert code == -signal.SIGKILL
        assert list(own.iterdir()) == []
        assert appear(tmp_path, "ended-0", "ended-1")
    finally:
        for number in pids(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for(tmp_path):
    source = """
        if rank == 1 and os.fork() == 0:  # holds the standard error of rank 1
            put("grandchild", os.getpid())
            wait_for("over")
            put("done")
            os._exit(0)
        wait_for("grandchild")
    """
    try:
        assert run(tmp_path, source) == 0
        assert not (tmp_path / "done").exists()
    finally:
        (tmp_path / "over").touch()


def test_a_process_reaches_the_store_and_launches_do_not_collide(tmp_path):
    """A process that uses the store of its launch, and launches others at the same time."""
    source = """
        sys.path[:] = json.loads(sys.argv[1])
        from datetime import timedelta
        from torch.distributed import TCPStore
        port = int(os.environ["MASTER_PORT"])
        limit = timedelta(seconds=20)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        store.set("mine", "outer")
        from tacit.communication.cluster.launch import launch
        program = (
            "import json, os, socket, sys;"
            "port = int(os.environ['MASTER_PORT']);"
            "socket.create_connection(('127.0.0.1', port), timeout=20).close();"
            "name = sys.argv[1] + '/inner-' + os.environ['RANK'];"
            "open(name, 'w').write(json.dumps([port, os.environ['TORCHELASTIC_RUN_ID']]))"
        )
        code = launch([folder], 2, command=("-S", "-c", program))
        told = [code, port, os.environ["TORCHELASTIC_RUN_ID"], store.get("mine").decode()]
        put("outer", json.dumps(told))
    """
    assert run(tmp_path, source, 1, json.dumps(sys.path)) == 0
    code, port, run_id, mine = read(tmp_path, "outer")
    assert (code, mine) == (0, "outer")
    first, second = read(tmp_path, "inner-0"), read(tmp_path, "inner-1")
    assert first == second
    assert first[0] != port
    assert first[1] != run_id


@pytest.mark.parametrize(
    ("processes", "options", "where"),
    [
        (0, {}, "--processes = 0"),
        (1, {"restarts": -1, "out": Path("run")}, "--restarts = -1"),
        (1, {"restarts": 1}, "--restarts = 1: name the run folder"),
    ],
)
def test_bad_numbers_are_refused(processes, options, where):
    with pytest.raises(InputError, match=where):
        launch([], processes, command=("-c", ""), **options)
