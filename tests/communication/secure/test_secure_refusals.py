"""What a site is refused for, by others and by itself, with one line that says why."""

import hashlib
import os
import random
import threading
import time
from collections import deque
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import zenoh

import consortia as members
from communication.cluster.crew import charged, simulated
from communication.cluster.test_cluster_runs import assert_same_run
from communication.secure.sites import (
    NAMES,
    approve_all,
    consortium,
    gated,
    gathered,
    join_all,
    make_member,
    status_of,
)
from experiments import tacit, write_experiment
from ports import free_address
from tacit.communication.secure.frames import DATA, Frame, digest_of, pack
from tacit.communication.secure.sessions import door, session_config
from tacit.identities.site import load_site, sign

pytestmark = pytest.mark.process

STEPS = 12


def written(folder, name="experiment.toml", **changes):
    train = {"steps": STEPS, "batch": 16, "dtype": "float64", "patience": 15.0, **changes}
    folder.mkdir(exist_ok=True)
    file = write_experiment(folder, nodes={"count": 3}, train=train)
    return file.rename(file.with_name(name))


def test_what_a_site_sees_at_home_is_refused_before_anything_is_sent(tmp_path):
    file = written(tmp_path)
    with consortium(tmp_path) as group:
        cases = {
            "must be the folder that": [
                "train",
                file,
                "--site",
                tmp_path / "nobody",
                "--out",
                "runs/run",
            ],
            "is of a relay": ["train", file, "--site", tmp_path / "hub", "--out", "runs/run"],
            "--out": ["train", file, "--site", tmp_path / "north"],
        }
        for expected, words in cases.items():
            answer = group.start("north", *words).end()
            assert answer.code == 2
            assert expected in answer.refusal
        done = tacit("consortium", "revoke", "west", "--folder", tmp_path / "consortium")
        assert done.code == 0, done.err
        bundle = tmp_path / "consortium" / "bundle.json"
        answer = tacit("site", "join", bundle, "--folder", tmp_path / "west")
        assert answer.code == 2
        assert "revoked" in answer.err


def test_a_certificate_that_has_expired_is_renewed_before_anything_is_sent(tmp_path):
    file = written(tmp_path)
    made = datetime.now(UTC) - timedelta(days=60)
    relays = {"hub": [free_address()]}
    members.consortium(tmp_path, dict.fromkeys(NAMES, ()), relays, days=30, now=made)
    for name, words in {"north": "the certificate of north expired on", "hub": "of hub"}.items():
        command = ("relay",) if name == "hub" else ("train", file, "--out", tmp_path / "run")
        answer = tacit(*command, "--site", tmp_path / name)
        assert answer.code == 2, answer
        assert words in answer.refusal
        assert "expired on" in answer.refusal
    assert not (tmp_path / "run").exists()


def test_a_stranger_and_a_revoked_member_are_not_let_in(tmp_path):
    file = written(tmp_path)
    with consortium(tmp_path) as group:
        # Of the same name and at the same relay, but approved by somebody else.
        strangers = tmp_path / "strangers"
        strangers.mkdir()
        make_member(strangers, "hub", "--role", "relay", "--address", group.address)
        make_member(strangers, "north")
        approve_all(strangers, ["north", "hub"])
        # The others have joined a bundle in which west is revoked; west has not heard of it.
        done = tacit("consortium", "revoke", "west", "--folder", tmp_path / "consortium")
        assert done.code == 0, done.err
        join_all(tmp_path, ["north", "south", "hub"])
        group.relay()
        words = ["train", file, "--out", "runs/run", "--site"]
        stranger = group.start("stranger", *words, strangers / "north")
        revoked = group.start("west", *words, tmp_path / "west")
        answer = stranger.end()
        assert answer.code == 4, answer
        assert "another authority" in answer.refusal
        answer = revoked.end()
        assert answer.code == 2, answer
        assert "--site = 'west': was revoked, by issue 2 of the bundle: ask the" in answer.refusal
        for name in ("north", "south"):  # nobody waits for one that cannot come
            answer = group.train(name, file).end()
            assert answer.code == 2, answer
            assert "--site = 'west': cannot take part, and a run needs every site" in answer.refusal
            assert "west was revoked" in answer.refusal


def test_another_experiment_at_one_site_ends_all_with_what_differs(tmp_path):
    file, other = written(tmp_path), written(tmp_path / "b", steps=STEPS + 1)
    with consortium(tmp_path) as group:
        group.relay()
        for name in NAMES:
            group.train(name, other if name == "south" else file)
        for answer in group.ends():
            assert answer.code == 2
            assert f"train.steps = {STEPS + 1}" in answer.refusal
        group.train_all(file, "--resume-if-there")  # once the file was mended
        assert [answer.code for answer in group.ends()] == [0, 0, 0]


def test_sites_that_name_different_runs_do_not_meet(tmp_path):
    file = written(tmp_path)
    with consortium(tmp_path) as group:
        group.relay()
        for name in NAMES:
            group.train(name, file, run="another" if name == "south" else "run")
        for name, answer in zip(NAMES, group.ends(), strict=True):
            assert answer.code == 4
            missing = "north, west" if name == "south" else "south"
            assert f"{missing} did not come within 15 s" in answer.refusal
            assert "same name of --out" in answer.refusal
            assert f"{name} waits for {missing} to come to this run" in answer.err


@pytest.mark.parametrize("through", ["experiment", "process"])
def test_a_site_that_comes_back_as_another_is_refused(through, tmp_path):
    """With another experiment, or while its first process is still there."""
    file, gate = written(tmp_path), tmp_path / "gate"
    other = written(tmp_path / "b", steps=STEPS + 1)
    gate.write_text("6")
    with consortium(tmp_path) as group:
        group.relay()
        group.train_all(file, tamper=gated(gate))
        group.until_step(6)
        if through == "experiment":
            group.running["west"].kill()
            answer = group.train("west", other, resume=True).end()
            assert answer.code == 2, answer
            assert "a run resumes as it began" in answer.refusal
            group.train("west", file, resume=True)
        else:
            first = group.running["west"]
            answer = group.train("west", file, resume=True).end()
            assert answer.code == 2, answer
            group.running["west"] = first
        gate.write_text(str(STEPS))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        run = gathered(group, tmp_path / "gathered")
        assert_same_run(run, simulated(file, tmp_path / "alone"))


def test_a_relay_that_repeats_and_reorders_frames_changes_nothing(tmp_path):
    """It sends pieces of all that passes again, in any order, some of them often."""
    file, gate = written(tmp_path, patience=100.0, steps=40), tmp_path / "gate"
    with consortium(tmp_path) as group, _evil_relay(tmp_path, group.address) as repeated:
        gate.write_text("40")
        group.train_all(file, tamper=gated(gate))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, [one.err for one in answers]
        assert repeated[0] > 100
        run = gathered(group, tmp_path / "gathered")
        alone = simulated(file, tmp_path / "alone")
        assert_same_run(run, alone)
        assert charged(run) == charged(alone)


@contextmanager
def _evil_relay(folder, address):
    """The relay of a consortium, which sends again what passes; how many pieces it has sent."""
    hub, draws = load_site(folder / "hub"), random.Random(0)
    config = session_config(hub, "router", hub.bundle.sites, "*", listen=[address])
    seen = deque(maxlen=400)
    own = set()  # what it sent itself comes to it as well
    count, stop = [0], threading.Event()

    def take(sample):
        place = b"" if sample.attachment is None else sample.attachment.to_bytes()
        if (str(sample.key_expr), place) not in own:
            seen.append((str(sample.key_expr), sample.payload.to_bytes(), place))

    def repeat(session):
        while not stop.wait(0.01):
            for key, payload, place in draws.sample(list(seen), min(3, len(seen))):
                own.add((key, place))
                session.put(key, payload, attachment=place)
                count[0] += 1

    with zenoh.open(config) as session:
        session.declare_subscriber(door(hub), lambda sample: None)
        session.declare_subscriber(f"tacit/{hub.bundle.consortium}/*/to/*/from/*", take)
        thread = threading.Thread(target=repeat, args=(session,))
        thread.start()
        try:
            yield count
        finally:
            stop.set()
            thread.join(30)


def test_what_a_member_forges_changes_nobodys_run(tmp_path):
    """Garbage, lengths that lie, and frames of others' names, by a member's own session."""
    file, gate = written(tmp_path, patience=100.0), tmp_path / "gate"
    gate.write_text("6")
    with consortium(tmp_path) as group:
        group.relay()
        group.train_all(file, tamper=gated(gate))
        group.until_step(6)
        stop = threading.Event()
        attack = threading.Thread(target=_attack, args=(tmp_path, group.address, stop))
        attack.start()
        try:
            group.until(lambda: bool(status_of(group.rank_folder("north")).get("last_error")))
            gate.write_text(str(STEPS))
            answers = group.ends()
        finally:
            stop.set()
            attack.join(30)
        assert [answer.code for answer in answers] == [0] * 3, answers
        assert "in all)" in status_of(group.rank_folder("north"))["last_error"]
        run = gathered(group, tmp_path / "gathered")
        alone = simulated(file, tmp_path / "alone")
        assert_same_run(run, alone)
        assert charged(run) == charged(alone)


def _attack(folder, address, stop):
    """As west, to north: what is no frame, and frames that it may not make."""
    west = load_site(folder / "west")
    run, session = os.urandom(16), os.urandom(16)

    def framed(sender, number, body):
        frame = Frame(DATA, sender, 0, session, number, "exchange", body, digest_of(body))
        return pack(frame, run, lambda data: sign(west, data))

    whole = framed(2, 0, b"numbers")
    sent = [
        b"",
        os.urandom(5),
        os.urandom(500),
        os.urandom(60_000),
        whole,  # of another run
        framed(1, 0, b"numbers"),  # in the name of south
        framed(2**31, 0, b"numbers"),
        framed(2, 2**63, b""),
        whole[:-3],
        whole + b"more",
        whole[:-1] + b"!",
        whole[:64] + (2**62).to_bytes(8, "little") + whole[72:],
    ]
    place = _Place()
    with zenoh.open(
        session_config(west, "client", west.bundle.relays, "2", connect=[address])
    ) as opened:
        key = f"tacit/{west.bundle.consortium}/{_run_of(west.bundle.consortium)}/to/0/from/2"
        publisher = opened.declare_publisher(key)
        while not stop.is_set():
            for message in sent:
                publisher.put(message, attachment=place.next())
            publisher.put(b"without a place")
            time.sleep(0.05)


class _Place:
    """Numbers of frames of one piece, as a carrier gives them."""

    def __init__(self):
        self._number = 0

    def next(self):
        self._number += 1
        return self._number.to_bytes(8, "big") + (0).to_bytes(4, "big") + (1).to_bytes(4, "big")


def _run_of(consortium):
    """The name of the run `run` in key expressions, which a member can know."""
    return hashlib.sha256(f"tacit run {consortium} run".encode()).hexdigest()[:32]
