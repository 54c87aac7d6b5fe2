"""Runs over bad lines: equal to the simulator's last bit, and hardly a message is sent twice."""

import os
import threading
from contextlib import contextmanager

import pytest
from ways import LIMIT, RUN, ends, members, relaying

from communication.cluster.crew import charged, simulated
from communication.cluster.test_cluster_runs import assert_same_run
from communication.secure.lines import Line
from communication.secure.mesh import Keys, signer, together, until
from communication.secure.sites import NAMES, consortium, gathered, status_of
from experiments import tacit, write_experiment
from ports import free_address
from tacit.communication.secure.journal import Journal
from tacit.communication.secure.wire import Wire

pytestmark = pytest.mark.process

MOST_AGAIN = 0.2  # of the distinct frames
LONG = 900.0  # seconds in which a run over a bad line must end, on a machine that does much else
LINES = {
    "20 kB a second": (2, {"rate": 20_000}),
    "2 seconds each way": (2, {"delay": 2.0}),
    "a twentieth is late": (4, {"late": (0.05, 5.0)}),
}


@contextmanager
def behind(folder, **line):
    """A consortium whose every member has a line of its own to the relay."""
    inside = free_address()
    with consortium(folder, listen=inside) as group, Line(group.address, inside, **line):
        group.relay()
        yield group


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG)
@pytest.mark.parametrize("kind", LINES)
def test_a_run_over_a_bad_line_sends_hardly_anything_twice(kind, tmp_path):
    steps, line = LINES[kind]
    train = {"steps": steps, "batch": 16, "dtype": "float64", "patience": 600.0}
    file = write_experiment(tmp_path, task={"model": "mlp"}, nodes={"count": 3}, train=train)
    with behind(tmp_path, **line) as group:
        group.train_all(file)
        answers = [group.running[name].end(LONG) for name in NAMES]
        assert [answer.code for answer in answers] == [0] * 3, answers
        for name in NAMES:
            sites = status_of(group.rank_folder(name))["sites"]
            frames, again = (sum(site[key] or 0 for site in sites) for key in ("frames", "again"))
            assert frames > 3 * steps
            assert again <= MOST_AGAIN * (frames - again), (name, frames, again)
        run, alone = gathered(group, tmp_path / "run"), simulated(file, tmp_path / "alone")
        assert_same_run(run, alone)
        assert charged(run) == charged(alone)
        shown = tacit("watch", group.run_folder("south"), "--once")
        assert shown.code == 0, shown
        states = {
            line.split()[0]: line
            for line in map(str.strip, shown.out.splitlines())
            if line.startswith(NAMES)
        }
        assert all(" done " in states[name] for name in NAMES), shown.out


@pytest.mark.slow
def test_a_large_message_over_a_line_is_sent_once(tmp_path):
    """45 MB, such as a ResNet-18, over 100 Mbit/s; and the sites hear each other meanwhile."""
    made, inside = members(tmp_path, relays=1), free_address()
    relay, keys = made["relay-0"], Keys(2)
    body = os.urandom(45_000_000)
    with relaying(relay, [inside]), Line(relay.own.addresses[0], inside, rate=12.5e6):
        wires = [
            Wire(
                ("north", "south"),
                rank,
                bytes.fromhex(RUN),
                Journal(tmp_path / str(rank)),
                sign=signer(keys.private[rank]),
                verify=keys.verify,
            )
            for rank in range(2)
        ]
        with (
            ends(made["site-0"], receive=wires[0].receive, begins=wires[0].begins) as (north,),
            ends(made["site-1"], receive=wires[1].receive, begins=wires[1].begins) as (south,),
        ):
            for one, end in zip(wires, (north, south), strict=True):
                one.start(end.carrier)
            try:
                together([lambda one=one: one.form(LIMIT) for one in wires])
                wires[0].send(1, "exchange", body, limit=LIMIT)
                assert wires[1].take(0, "exchange", limit=LIMIT) == body
                out = wires[0].streams.outgoing[1]
                until(lambda: not out.kept, "an acknowledgement")
                assert (out.frames, out.again) == (1, 0)
                assert out.pace.rate is not None
            finally:
                for one in wires:
                    one.close(ended=False, linger=0.0)


@pytest.mark.slow
def test_what_is_urgent_overtakes_a_long_frame(tmp_path):
    """Else a site that sends a large message over a slow line would seem to be away."""
    made, inside = members(tmp_path), free_address()
    relay, frame = made["relay-0"], os.urandom(12_000_000)  # more than any kernel's buffer holds
    with (
        relaying(relay, [inside]),
        Line(relay.own.addresses[0], inside, rate=1.2e6),
        ends(made["site-0"], made["site-1"]) as (sender, receiver),
    ):
        sender.send(receiver, b"before")
        assert receiver.take() == b"before"
        long = threading.Thread(target=sender.send, args=(receiver, frame), daemon=True)
        long.start()
        until(lambda: sender.carrier._one_sends[1].locked(), "the long frame")
        assert sender.carrier.publish(1, b"urgent", urgent=True)
        assert receiver.take() == b"urgent"
        assert receiver.take() == frame
        long.join(LIMIT)
