"""Meeting, sharing, reporting and stopping together: threads as ranks over a real store.

Which addresses are refused, and from which interface gloo speaks.
"""

import json
import socket
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joined import LIMIT, at_once, clusters, kept_store, meet_at, until, variables
from pydantic import JsonValue, TypeAdapter
from ranks import Hub, Outcome, ThreadChannel, run_threads

from ports import free_port
from tacit.communication.cluster import rendezvous
from tacit.communication.cluster.channel import RackGatherer
from tacit.communication.cluster.rendezvous import (
    address_of,
    connect,
    interface_of,
    is_public,
    meet,
    network_settings,
    read_place,
    resolve,
)
from tacit.communication.cluster.store import KeyValueStore, open_board
from tacit.communication.cluster.watch import Heartbeat, Seen
from tacit.communication.received import HEARTBEAT, STEP, Form
from tacit.communication.reports import (
    awaited,
    describe_rank,
    first_failure,
    read_report,
    write_report,
)
from tacit.errors import (
    BudgetError,
    DivergenceError,
    InputError,
    PeerError,
    RecordsError,
    TacitError,
)

ANYTHING = Form(TypeAdapter(JsonValue))


def board_at(port, limit=LIMIT):
    return open_board("127.0.0.1", port, prefix="t/", keeper="it", opening=LIMIT, limit=limit)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_has_no_cluster(environment):
    assert connect(environment, timeout=1.0) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "2"),
        ("RANK", "-1"),
        ("RANK", "one"),
        ("WORLD_SIZE", "two"),
        ("WORLD_SIZE", "0"),
        ("MASTER_ADDR", ""),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "²"),
    ],
)
def test_a_wrong_variable_is_named(name, value):
    environment = {**variables(1, 2, 1234), name: value}
    with pytest.raises(InputError, match=name):
        read_place(environment, allow_insecure_network=False)


def test_a_missing_variable_is_named():
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment = variables(1, 2, 1234)
        del environment[name]
        with pytest.raises(InputError, match=f"{name} = None"):
            read_place(environment, allow_insecure_network=False)


def test_a_public_rendezvous_is_refused_before_anything_is_tried():
    with pytest.raises(InputError, match="allow-insecure-network"):
        connect({**variables(0, 2, 9), "MASTER_ADDR": "8.8.8.8"}, timeout=1.0)


def test_the_place_is_read():
    place = read_place(variables(1, 3, 1234), allow_insecure_network=False)
    assert place is not None
    assert (place.rank, place.processes, place.address, place.port) == (1, 3, "127.0.0.1", 1234)
    assert (place.run_id, place.keeps_store) == ("a-run", False)


def test_a_rank_that_shares_nothing_is_named_by_all():
    with clusters(3, timeout=2.0, start_up=3.0) as ranks:
        for cluster in ranks:
            cluster.hosts = [[0], [1], [2, 3]]
        errors = at_once(lambda r: ranks[r].share("plan", 0, STEP), [0, 1])
        assert [type(error) for error in errors] == [PeerError] * 2
        assert {str(error) for error in errors} == {
            "rank 2 (nodes 2 to 3) did not send the plan within 3 s"
        }


REPORTED = [
    (BudgetError("node 3 has no budget left"), BudgetError, 3),
    (PeerError("rank 1 sent a number that is not finite"), PeerError, 4),
    (InputError("out", "runs/1", "exists already", public=True), InputError, 2),
]
UNTOLD = [
    (InputError("nodes[1]", "label 'HIV'", "must be a number"), InputError, 2),
    (DivergenceError("node 1 left the numbers at record 17"), DivergenceError, 2),
    (TacitError("record 17 is odd"), TacitError, 1),
    (ZeroDivisionError("record 17"), TacitError, 1),
]


@pytest.mark.parametrize(("error", "kind", "code"), REPORTED)
def test_a_public_error_comes_out_as_its_kind(error, kind, code):
    read = read_report(write_report(error, 2))
    assert isinstance(read, kind)
    assert read.exit_code == code
    assert str(read) == f"rank 2: {error}"


@pytest.mark.parametrize(("error", "kind", "code"), UNTOLD)
def test_of_any_other_error_the_kind_and_the_rank_alone_are_told(error, kind, code):
    text = write_report(error, 2)
    read = read_report(text)
    assert isinstance(read, kind)
    assert read.exit_code == code
    assert str(read).startswith("rank 2: ")
    assert str(read).endswith("; see its own screen")
    others = [write_report(type(error)(*["x"] * 3 if kind is InputError else "x"), 2)]
    assert others == [text]  # nothing of it depends on what the error says


def test_of_records_that_break_a_rule_the_rule_alone_is_told():
    read = str(read_report(write_report(RecordsError("nodes[3]", "2 of 57", "be finite"), 2)))
    assert read == "rank 2: its own records break a rule: be finite"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"kind": "SystemExit", "line": ""}', "[" * 10**5]
)
def test_a_report_that_makes_no_sense_is_a_lost_peer(text):
    assert type(read_report(text)) is PeerError


def test_a_report_is_one_printable_line():
    text = json.dumps({"kind": "PeerError", "line": "a\nb\x1b[2Jc\r" + "x" * 900})
    line = str(read_report(text))
    assert line.startswith("a b[2Jc x")
    assert line.isprintable()
    long = json.dumps({"kind": "PeerError", "line": "x" * 10**6})
    assert "cannot be read" in str(read_report(long))


def test_a_reported_error_ends_checks_and_waits_of_the_others():
    with clusters(3) as ranks:
        sharing = [0, 1]

        def work(rank):
            if rank == 2:
                return ranks[2].report(REPORTED[0][0])
            return ranks[rank].share("plan", rank, STEP)

        errors = at_once(work, [*sharing, 2])[:2]
        assert [type(error) for error in errors] == [BudgetError] * 2
        for cluster in ranks[:2]:
            with pytest.raises(BudgetError, match=r"^rank 2: node 3 has no budget left$"):
                cluster.check()
        # The first report stands.
        ranks[1].report(PeerError("because rank 2 has ended"))
        assert str(ranks[0].diagnose(1, "closed")) == "rank 2: node 3 has no budget left"


def test_a_vote_that_never_comes_is_put_down_to_its_rank():
    with clusters(2, timeout=1.0) as ranks:
        ranks[0].begin(0)
        assert not ranks[0].agreed_stop(1, False)
        with pytest.raises(PeerError, match=r"^rank 1 .*no word from it for 1 s"):
            ranks[0].agreed_stop(2, False)


def test_a_restart_finds_notes_and_nothing_else_of_before():
    with kept_store() as port:
        before = meet_at(port, 2)
        at_once(lambda r: before[r].share("plan", "old", ANYTHING), range(2))
        assert before[1].noted("folder") is None
        before[0].note("folder", "runs/7")
        before[1].report(PeerError("old"))
        for cluster in before:
            cluster.close()
        # As agents of several machines count: rank 0's has seen no failure of its own.
        counts = ["0", "1"]

        def again(rank):
            environment = variables(rank, 2, port, TORCHELASTIC_RESTART_COUNT=counts[rank])
            return connect(environment, timeout=10.0, start_up=LIMIT)

        after = at_once(again, range(2))
        shared = at_once(lambda r: after[r].share("plan", f"new {r}", ANYTHING), range(2))
        assert shared == [["new 0", "new 1"]] * 2
        assert [cluster.noted("folder") for cluster in after] == ["runs/7"] * 2
        for cluster in after:
            cluster.check()
            cluster.close()


def test_a_meeting_waits_for_who_is_alive_and_names_who_is_not():
    with kept_store() as port:
        stores = [board_at(port) for _ in range(3)]
        first = at_once(lambda r: meet(stores[r], r, 3, LIMIT), range(3))
        assert len(set(first)) == 1
        # Rank 2 does not come again: what it left is not taken for it.
        errors = at_once(lambda r: meet(stores[r], r, 3, 3.0), [0, 1])
        assert [type(error) for error in errors] == [PeerError] * 2
        assert {str(error) for error in errors} == {
            "rank 2 did not come to the rendezvous within 3 s"
        }
        second = at_once(lambda r: meet(stores[r], r, 3, LIMIT), range(3))
        assert len(set(second)) == 1
        assert second[0] != first[0]


def test_rank_0_keeps_the_store_where_no_launcher_does():
    port = free_port()

    def one(rank):
        environment = variables(rank, 2, port, TORCHELASTIC_USE_AGENT_STORE="False")
        cluster = connect(environment, timeout=10.0, start_up=LIMIT)
        assert cluster is not None
        shared = cluster.share("plan", rank, STEP)
        if rank == 0:
            cluster.report(BudgetError("no"))
        else:
            until(lambda: type(failure(cluster)) is BudgetError)
        cluster.close()
        return shared

    def failure(cluster):
        try:
            cluster.check()
        except TacitError as error:
            return error
        return None

    assert at_once(one, range(2)) == [[0, 1]] * 2


def test_a_port_that_is_taken_is_named():
    with kept_store() as port:
        environment = variables(0, 2, port, TORCHELASTIC_USE_AGENT_STORE="False")
        with pytest.raises(InputError, match=rf"MASTER_PORT = '127.0.0.1:{port}'"):
            connect(environment, timeout=1.0, start_up=1.0)


def test_nobody_at_the_rendezvous_is_said():
    with pytest.raises(PeerError, match=r"nothing answers at MASTER_ADDR:MASTER_PORT = 127\.0"):
        connect(variables(1, 2, free_port()), timeout=0.2, start_up=0.2)


def test_a_store_that_does_not_answer_is_lost_within_the_limit():
    with socket.socket() as silent:  # connections are accepted, and nothing is ever said
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"127.0.0.1:{silent.getsockname()[1]}"

        def never():
            connection = socket.create_connection(silent.getsockname())
            connection.settimeout(5.0)
            return connection.recv(1)

        with pytest.raises(PeerError, match=f"the rendezvous at {place} was lost: it, which keeps"):
            KeyValueStore(never, place=place, keeper="it", opening=0.2, limit=0.2)


def test_a_board_writes_and_reads():
    with kept_store() as port:
        store, other = board_at(port), board_at(port)
        assert store.get("a") is None
        store.put("a", "é")
        assert other.get("a") == "é"
        assert (store.first("b", ""), store.first("b", "x"), other.first("b", "y")) == (
            "",
            "x",
            "x",
        )
        many = [f"k{i}" for i in range(600)]
        for key in many:
            store.put(key, key)
        assert other.get_all(many) == many
        assert not other.has([*many, "none"])
        store.close()
        with pytest.raises(PeerError):
            store.get("a")
        other.close()


PRIVATE = ["127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.7.7", "169.254.1.1", "100.64.0.1"]
PRIVATE6 = ["::1", "fe80::1", "fd12::7", "::ffff:10.0.0.1"]
PUBLIC = ["8.8.8.8", "172.32.0.1", "0.0.0.0", "::", "2606:4700::1", "::ffff:8.8.8.8", "100.128.0.1"]
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


@pytest.mark.parametrize("address", PRIVATE + PRIVATE6)
def test_private_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_and_those_that_stand_for_all_are_public(address):
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_written_as_ipv6_is_as_public_as_itself(address):
    assert is_public(f"::ffff:{address}") == is_public(str(address))


def refused(environment, address):
    with pytest.raises(InputError) as caught:
        network_settings(environment, address, allow_insecure_network=False)
    assert caught.value.where == "--allow-insecure-network"
    return str(caught.value)


@pytest.mark.parametrize("address", ["8.8.8.8", "0.0.0.0"])
def test_a_public_rendezvous_is_refused_unless_asked_for(address):
    line = refused({"GLOO_SOCKET_IFNAME": LOOPBACK}, address)
    assert f"MASTER_ADDR is {address}" in line
    assert "in clear" in line
    assert "WireGuard" in line
    assert "\n" not in line
    allowed = network_settings(
        {"GLOO_SOCKET_IFNAME": LOOPBACK}, address, allow_insecure_network=True
    )
    assert allowed == {"NCCL_SOCKET_IFNAME": f"={LOOPBACK}"}


def test_a_public_address_of_this_host_is_refused(monkeypatch):
    monkeypatch.setattr(rendezvous, "_interface_ipv4", {"wan0": "9.9.9.9"}.get)
    line = refused({"GLOO_SOCKET_IFNAME": "wan0"}, "10.0.0.1")
    assert "this host is 9.9.9.9" in line


def test_gloo_speaks_on_loopback_where_the_rendezvous_is():
    settings = network_settings({}, "127.0.0.1", allow_insecure_network=False)
    assert settings == {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": f"={LOOPBACK}"}


def test_what_the_user_set_stays():
    given = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": "ib0"}
    assert network_settings(given, "127.0.0.1", allow_insecure_network=False) == {}


@pytest.fixture
def machine(monkeypatch):
    """A machine with eth0 = 10.0.0.5, lo, and a default route by eth0."""
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "wg0": "10.9.0.2"}
    routes = {"10.9.0.1": "10.9.0.2", "127.0.1.1": "127.0.0.1", "192.0.2.1": "10.0.0.5"}
    monkeypatch.setattr(rendezvous, "_interface_ipv4", interfaces.get)
    monkeypatch.setattr(rendezvous, "_route_to", routes.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))


@pytest.mark.usefixtures("machine")
def test_gloo_takes_the_interface_by_which_the_rendezvous_is_reached():
    settings = network_settings({}, "10.9.0.1", allow_insecure_network=False)
    assert settings["GLOO_SOCKET_IFNAME"] == "wg0"


@pytest.mark.usefixtures("machine")
def test_an_own_name_that_stands_for_loopback_is_not_followed_between_machines():
    name = {"MASTER_ADDR": "node-a", "WORLD_SIZE": "4"}
    across = {**name, "LOCAL_WORLD_SIZE": "2"}
    here = {**name, "LOCAL_WORLD_SIZE": "4"}
    wanted = [(across, "eth0"), (here, "lo"), ({**across, "MASTER_ADDR": "127.0.1.1"}, "lo")]
    for environment, interface in wanted:
        settings = network_settings(environment, "127.0.1.1", allow_insecure_network=False)
        assert settings["GLOO_SOCKET_IFNAME"] == interface


def test_names_are_resolved():
    assert resolve("localhost") == "127.0.0.1"
    assert resolve("10.2.3.4") == "10.2.3.4"
    assert resolve("::1") == "::1"
    with pytest.raises(InputError, match=r"MASTER_ADDR = 'no such host'"):
        resolve("no such host")


def test_interfaces_and_addresses_agree_on_this_machine():
    assert interface_of("127.0.0.1") == interface_of("127.0.0.53") == LOOPBACK
    assert address_of(LOOPBACK) == "127.0.0.1"
    assert interface_of("203.0.113.77") is None
    assert address_of("no-such0") is None


# Whom a failed wait is put down to, from what heartbeats say.


HOSTS = [[0, 1], [2, 3, 4], [5], [6, 8, 9]]


def seen(*waiting, done=None, dead=None):
    """Ranks that live, each at step 10 + rank, waiting for these; one is done, one is dead."""
    return [
        Seen(Heartbeat(99, 10 + rank, other, rank == done), missed=5 if rank == dead else 0)
        for rank, other in enumerate(waiting)
    ]


def blamed(rank, waiting_for, reason, ranks, hosts):
    progress = {number: one.progress for number, one in enumerate(ranks)}
    names = [describe_rank(number, hosts) for number in progress]
    return str(first_failure(awaited(rank, waiting_for, progress), reason, progress, names))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_of_a_chain_is_blamed_by_all(rank):
    ranks = seen(1, 2, 3, None)
    line = blamed(rank, rank + 1, "nothing for 60 s", ranks, HOSTS)
    assert line.startswith("rank 3 (nodes 6, 8, 9) is alive at step 13, but has sent nothing")
    assert "rank 2 waits for it" in line
    assert "--resume" in line


def test_a_dead_rank_is_blamed_although_its_last_word_was_that_it_waits():
    line = blamed(0, 1, "connection closed", seen(1, 2, None, None, dead=1), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) was lost, last seen at step 11")
    assert "connection closed" in line


def test_a_dead_rank_within_the_chain_is_blamed():
    line = blamed(0, 1, "nothing for 60 s", seen(1, 2, 3, None, dead=2), HOSTS)
    assert line.startswith("rank 2 (node 5) was lost, last seen at step 12")


def test_a_rank_that_has_ended_is_not_called_lost():
    ranks = seen(1, None, None, done=1)
    ranks[1].missed = 50
    line = blamed(0, 1, "connection closed", ranks, ())
    assert line.startswith("rank 1 has ended at step 11, but rank 0 waits for it")


@pytest.mark.parametrize("waiting", [(1, 0), (1, 2, 0), (1, 2, 1)])
def test_a_circle_is_put_down_to_the_link(waiting):
    line = blamed(0, 1, "nothing for 60 s", seen(*waiting), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) is alive at step 11, but nothing comes")
    assert "to rank 0 (nodes 0 to 1) (nothing for 60 s)" in line


def test_a_rank_that_claims_to_wait_for_nobody_known_is_blamed_itself():
    line = blamed(0, 1, "nothing", seen(1, 77), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) is alive at step 11")


def test_a_rank_that_never_began_has_no_step():
    ranks = [Seen(Heartbeat(1)), Seen(Heartbeat(1))]
    assert blamed(0, 1, "nothing", ranks, ()).startswith("rank 1 is alive, but has sent")


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "[1, 2, 3, 4, 5]", '["a", 1, 2, 3]', "[" * 10**5]
)
def test_a_heartbeat_that_cannot_be_read_is_none(text):
    assert Heartbeat.read(text, 1) == Heartbeat()


def test_a_heartbeat_comes_out_as_it_went_in():
    for heartbeat in (Heartbeat(), Heartbeat(3, 7, 2, True), Heartbeat(1, 0, None, False)):
        assert Heartbeat.read(HEARTBEAT.write(heartbeat), 1) == heartbeat


# Metrics of a rack come together at rank 0, which waits for nobody as long as it can.


NAMES = ["rank 0", "rank 1", "rank 2", "rank 3"]
NUMBERS = [1000, 1001, 0, 1003]  # by rank
STEPS = [0, 10, 20, 30, 40, 50]


def part(rank, step):
    return torch.arange(NUMBERS[rank], dtype=torch.float64) / 3 + 1000 * rank + step


def gatherer(channel, steps):
    """One for which the heartbeats say what stands in `steps`."""
    names = NAMES[: channel.processes]
    return RackGatherer(channel, names, NUMBERS, lambda rank, step: steps[rank] >= step)


@settings(deadline=None, max_examples=10)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.002, 0.01]), min_size=len(STEPS), max_size=len(STEPS)),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_skew_gives_the_same_marks(pauses, told):
    """Whether the heartbeats come at once or never."""
    steps = [-1] * len(pauses)

    def gather(seat):
        own, marks = gatherer(seat.channel, steps), []
        for step, pause in zip(STEPS, pauses[seat.rank], strict=True):
            time.sleep(pause)
            own.put(step, part(seat.rank, step))
            if told:
                steps[seat.rank] = step
            marks += own.ready()
        own.finish()
        marks += own.ready()
        return [[step, [numbers.tolist() for numbers in parts]] for step, parts in marks]

    ranks = range(len(pauses))
    right = [[step, [part(rank, step).tolist() for rank in ranks]] for step in STEPS]
    assert run_threads(gather, len(pauses)) == [Outcome(0, [] if rank else right) for rank in ranks]


@pytest.fixture
def pair():
    """Channels of two ranks, closed in the end so that no thread waits on."""
    hub = Hub(2)
    channels = [ThreadChannel(hub, rank, 20.0) for rank in (0, 1)]
    yield channels
    for channel in channels:
        channel.close()


def test_rank_0_waits_before_a_mark_for_the_parts_of_the_one_before(pair):
    first, second = (gatherer(channel, [-1, -1]) for channel in pair)
    first.put(0, part(0, 0))
    assert first.ready() == []  # whatever has come: nobody is waited for
    later = threading.Timer(0.1, second.put, (0, part(1, 0)))
    later.start()
    first.put(10, part(0, 10))
    later.join(10)
    ((step, parts),) = first.ready()
    assert (step, [len(one) for one in parts]) == (0, NUMBERS[:2])
    assert first.ready() == []


def test_a_lost_rank_is_named_where_the_run_waits(pair):
    first = gatherer(pair[0], [-1, -1])
    first.put(0, part(0, 0))
    pair[1].close()
    assert first.ready() == []
    with pytest.raises(PeerError, match="rank 1 was lost: its connection was closed"):
        first.finish()
