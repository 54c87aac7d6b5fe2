"""The ledgers of nodes' data: budgets on file, many runs, one at a time, and what they compose to.

Oracles: Gaussian steps of noise multiplier z compose to one Gaussian with mu^2 = the sum of 1/z^2,
and Balle and Wang's delta of it; dp_accounting where batches are sampled.
"""

import math
import multiprocessing
import secrets
import shutil
import sqlite3
import stat
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from few import few
from forks import forked_process
from tacit.analysis.ledger_report import ledger_document
from tacit.errors import InputError
from tacit.privacy import (
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    SampledGaussian,
    to_statement,
)
from tacit.privacy.ledger.file import KEY_FILE
from tacit.privacy.ledger.ledger import (
    DataAccount,
    Interval,
    Ledger,
    StepRun,
    read_ledger,
    step_runs,
)
from tacit.privacy.ledger.shared import (
    SharedLedgers,
    Strangers,
    WantedAccount,
    account_file,
    account_files,
    folder_key,
)
from tacit.privacy.ledger.spent import check_agreement, combined, cost, released, run_mechanism

STEPS = 10
MECHANISM = Gaussian(5.0, STEPS)
OTHER = Gaussian(8.0, STEPS)


def delta_of(epsilon, mu):
    low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high))


def digests(node, count=10):
    """Those of the records of a node: no two nodes share one."""
    return np.arange(100 * node, 100 * node + count, dtype=np.uint64)


def wanted(count, epsilon=None, **more):
    rest = {"delta": None, "new_epsilon": 2.0, "new_delta": 1e-5, **more}
    return [
        WantedAccount(node, (f"node {node}",), digests(node), epsilon, **rest)
        for node in range(count)
    ]


def holding(node, source, records):
    """A node whose records are of one source, or of several joined by a plus."""
    return WantedAccount(node, tuple(source.split("+")), records, None, None, 2.0, 1e-5)


def opened(folder, accounts, session="", *, apart=False):
    folder_key(folder)
    name = session or secrets.token_hex(8)
    return SharedLedgers.open(folder, accounts, session=name, apart=apart)


def ledgers(folder, node):
    return read_ledger(account_file(folder, f"node {node}", node))


def spent(snapshot, node, without=None):
    return combined(run_mechanism(run, node) for run in snapshot.runs if run.run_id != without)


def enter(shared, run, mechanism=MECHANISM, sent=None):
    numbers = {node for nodes in shared.nodes.values() for node in nodes}
    statements = {node: to_statement(mechanism) for node in numbers}
    shared.enter(run, digest=f"plan of {run}", statements=statements, sent=sent or {})


def ran(folder, run, *, steps=STEPS, mechanism=MECHANISM):
    """A whole run on two nodes, stopped cleanly."""
    with opened(folder, wanted(2)) as shared:
        enter(shared, run, mechanism)
        shared.reserve(0, STEPS)
        shared.settle(steps)


# One run after the other.


def test_runs_share_the_books_of_a_node(tmp_path):
    folder = tmp_path / "deep" / "ledgers"
    ran(folder, "one")
    ran(folder, "two", steps=4, mechanism=OTHER)
    for node in range(2):
        content = ledgers(folder, node)
        assert content.data == DataAccount(f"node {node}", node, 2.0, 1e-5)
        assert content.digests == digests(node).astype("<u8").tobytes()
        assert [(run.run_id, run.digest) for run in content.runs] == [
            ("one", "plan of one"),
            ("two", "plan of two"),
        ]
        assert [run.charged[node] for run in content.runs] == [((0, 10),), ((0, 4),)]
        total = cost(spent(content, node), 1e-5)
        mu = math.sqrt(STEPS / 5.0**2 + 4 / 8.0**2)
        assert delta_of(total, mu) == pytest.approx(1e-5, rel=1e-6)
        alone = cost(spent(content, node, "one"), 1e-5)
        assert delta_of(alone, math.sqrt(4) / 8) == pytest.approx(1e-5, rel=1e-6)
    kept = sorted(path.name for path in folder.iterdir())
    files = [path.name for path in account_files(folder)]
    assert kept == ["admission.lock", *files, KEY_FILE]
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_killed_run_counts_in_full_and_goes_on_under_its_name(tmp_path):
    with opened(tmp_path, wanted(2)) as shared:
        enter(shared, "one")
        shared.reserve(0, 6)
    with opened(tmp_path, wanted(2)) as shared:
        assert shared.reserved("node 1", "one") == ((0, 6),)
        assert shared.reserved("node 1", "two") == ()
        enter(shared, "one", sent={0: (Interval(0, 6),), 1: (Interval(0, 5),)})
        shared.reserve(3, 8)
        shared.settle(7)
    content = ledgers(tmp_path, 1)
    assert content.runs[0].charged[1] == ((0, 6), (3, 7))
    mu = math.sqrt(10) / 5
    assert delta_of(cost(spent(content, 1), 1e-5), mu) == pytest.approx(1e-5, rel=1e-6)


def test_no_account_is_made_before_a_run_is_entered(tmp_path):
    folder = tmp_path / "ledgers"
    with opened(folder, wanted(2)) as shared:
        assert [account[1:] for account in shared.accounts.values()] == [
            (node, 2.0, 1e-5) for node in range(2)
        ]
        assert not any(shared.snapshots.values())
    assert sorted(path.name for path in folder.iterdir()) == ["admission.lock", KEY_FILE]


def test_without_nodes_it_does_nothing(tmp_path):
    with SharedLedgers(tmp_path / "none") as shared:
        shared.enter("run", digest="d", statements={}, sent={})
        shared.reserve(0, 3)
        shared.settle(3)
    assert list(tmp_path.iterdir()) == []


def test_a_node_may_join_later(tmp_path):
    ran(tmp_path, "one")
    with opened(tmp_path, wanted(3)) as shared:
        enter(shared, "two")
    assert [len(ledgers(tmp_path, node).runs) for node in range(3)] == [2, 2, 1]


# Budgets.


def test_the_budget_is_that_of_the_file(tmp_path):
    ran(tmp_path, "one")
    with opened(tmp_path, wanted(2, new_epsilon=7.0, new_delta=0.1)) as shared:
        assert shared.accounts["node 1"][1:] == (1, 2.0, 1e-5)
    with opened(tmp_path, wanted(2, 2.0, delta=1e-5)) as shared:
        assert shared.accounts["node 1"][1:] == (1, 2.0, 1e-5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"epsilon": 2.5},
            r"privacy\.ledger_epsilon = 2\.5: the budget of 'node 0' in .* was set to 2\.0",
        ),
        ({"epsilon": 2.0, "delta": 1e-6}, r"privacy\.ledger_delta = 1e-06: .* set to 1e-05"),
    ],
)
def test_another_budget_is_refused(tmp_path, asked, said):
    ran(tmp_path, "one")
    with pytest.raises(InputError, match=said):
        opened(tmp_path, wanted(2, **asked))
    opened(tmp_path, wanted(2)).close()  # and left unlocked


def test_a_new_file_needs_a_budget(tmp_path):
    with pytest.raises(InputError, match=r"privacy\.ledger_epsilon = None: is needed for"):
        opened(tmp_path, wanted(1, new_epsilon=None))
    with opened(tmp_path, wanted(1, 4.0, new_epsilon=None)) as shared:
        assert shared.accounts["node 0"].epsilon_budget == 4.0


# One at a time, and only in the ledger where it began.


def test_two_runs_cannot_draw_on_one_budget(tmp_path):
    ran(tmp_path, "one")
    with opened(tmp_path, wanted(1)), pytest.raises(InputError, match="one is running it now"):
        opened(tmp_path, wanted(2))
    opened(tmp_path, wanted(2)).close()


def test_a_run_is_kept_out_before_the_other_has_made_a_file(tmp_path):
    """By the source's name; one record under another name makes its node a stranger."""
    folder_key(tmp_path)
    one = [holding(0, "a", digests(0))]
    other = [holding(0, "b", digests(0, 20)[9:])]
    apart = [holding(0, "c", digests(0, 20)[10:])]
    with opened(tmp_path, one) as first:
        for _ in range(2):
            with opened(tmp_path, other) as second:
                assert second.strangers == [Strangers(0, 1, 11, ("a", "b"))]
            with pytest.raises(InputError, match=r"ledger_source = 'a': .*is running it now"):
                opened(tmp_path, [holding(3, "a", digests(7))])
            if not first.snapshots["a"] and not account_files(tmp_path):
                enter(first, "one")
        with opened(tmp_path, apart) as second:
            assert not second.strangers
            enter(second, "two")
            second.reserve(0, 1)
    opened(tmp_path, one).close()


def test_a_busy_source_says_of_records_that_it_held_before(tmp_path):
    """Its file cannot be read while it is in use; its run has other records now."""
    with opened(tmp_path, [holding(0, "a", digests(0))]) as shared:
        enter(shared, "one")
    with opened(tmp_path, [holding(0, "a", digests(1))]) as shared:
        enter(shared, "two")
        with opened(tmp_path, [holding(0, "b", digests(0))]) as other:
            assert other.strangers == [Strangers(0, 10, 10, ("a",))]


# Sources: who holds a record, and who pays.

PERSONS = 6
runs_of_nodes = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "c", "a+b", "b+a", "b+c"]),
                st.sets(st.integers(0, PERSONS - 1), min_size=1),
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@few(15, 40)
@given(runs_of_nodes)
def test_every_source_that_holds_a_record_has_paid_for_every_run_it_was_in(tmp_path_factory, runs):
    """The theorem of docs/proofs/ledgers.md: whatever is declared, dealt, joined and moved."""
    folder = tmp_path_factory.mktemp("ledgers")
    paid = {who: [] for who in range(PERSONS)}
    for number, (apart, nodes) in enumerate(runs):
        run, seen = f"run {number}", set[int]()
        accounts = []
        for node, (source, drawn) in enumerate(nodes):
            here = drawn - seen if apart else drawn
            seen |= here
            if here:
                accounts.append(holding(node, source, np.array(sorted(here), np.uint64)))
        with opened(folder, accounts, apart=apart) as shared:
            if shared.strangers:
                continue
            enter(shared, run, Gaussian(2.0 + number, 1))
            shared.reserve(0, 1)
        for account in accounts:
            for who in account.digests.tolist():
                paid[who].append(run)
    held = {who: set() for who in range(PERSONS)}
    for path in account_files(folder):
        content = read_ledger(path)
        assert content.data is not None
        for who in np.frombuffer(content.digests, "<u8").tolist():
            held[who].add(content.data.source)
    spent = (
        {row.data: row.epsilon for row in ledger_document(folder).nodes}
        if any(held.values())
        else {}
    )
    for who, made in paid.items():
        assert bool(made) == bool(held[who])
        precision = sum((2.0 + int(run.split()[1])) ** -2 for run in made)
        for source in held[who]:
            assert delta_of(spent[source], math.sqrt(precision)) <= 1e-5 * (1 + 1e-6)


def test_processes_of_one_run_share_a_folder(tmp_path):
    """They look through the same accounts, also each other's, before one of them enters."""
    ran(tmp_path, "before")
    halves = [[one] for one in wanted(2)]
    with ExitStack() as stack:
        both = [stack.enter_context(opened(tmp_path, half, "session")) for half in halves]
        with pytest.raises(InputError, match="one is running it now"):
            opened(tmp_path, halves[0], "another")
        # Not even under the same session may a node run twice, or its data at another node.
        with pytest.raises(InputError, match="one is running it now"):
            opened(tmp_path, halves[0], "session")
        with pytest.raises(InputError, match="that a single process of a run draws on"):
            opened(tmp_path, [replace(halves[0][0], node=7)], "session")
        for shared in both:
            enter(shared, "now")
            shared.reserve(0, 4)
    assert [len(ledgers(tmp_path, node).runs) for node in range(2)] == [2, 2]


def hold(folder, ready):
    with opened(folder, wanted(1)):
        ready.send_bytes(b"held")
        time.sleep(60)


@pytest.mark.process
def test_what_a_killed_process_drew_on_is_free(tmp_path):
    folder_key(tmp_path)
    receiving, sending = multiprocessing.Pipe(duplex=False)
    holder = forked_process(hold, tmp_path, sending)
    holder.start()
    try:
        assert receiving.poll(60)
        receiving.recv_bytes()
        with pytest.raises(InputError, match="one is running it now"):
            opened(tmp_path, wanted(2))
    finally:
        holder.kill()
        holder.join()
    assert list(tmp_path.glob("in-use-*"))
    opened(tmp_path, wanted(2)).close()
    assert not list(tmp_path.glob("in-use-*"))


def test_a_reader_does_not_disturb_a_run(tmp_path):
    with opened(tmp_path, wanted(1)) as shared:
        enter(shared, "one")
        shared.reserve(0, 3)
        with pytest.raises(InputError, match="one is running it now"):
            read_ledger(shared.file("node 0"))
        with pytest.raises(InputError, match="one is running it now"):
            Ledger.open_account(shared.file("node 0"))
        shared.reserve(3, 6)
        shared.settle(5)
    assert ledgers(tmp_path, 0).runs[0].charged[0] == ((0, 3), (3, 5))


def test_a_run_goes_on_only_where_it_is_booked(tmp_path):
    ran(tmp_path / "ledgers", "one")
    sent = {node: (Interval(0, STEPS),) for node in range(2)}
    with (
        opened(tmp_path / "elsewhere", wanted(2)) as shared,
        pytest.raises(InputError, match="they have 0 of the 10 steps"),
    ):
        enter(shared, "one", sent=sent)
    assert account_files(tmp_path / "elsewhere") == []
    # A copy that was made before the last steps were reserved.
    ran(tmp_path / "older", "one", steps=9)
    with (
        opened(tmp_path / "older", wanted(2)) as shared,
        pytest.raises(InputError, match="they have 9 of the 10 steps"),
    ):
        enter(shared, "one", sent=sent)


def test_a_run_keeps_its_plan_and_mechanism(tmp_path):
    ran(tmp_path, "one")
    with (
        opened(tmp_path, wanted(2)) as shared,
        pytest.raises(InputError, match="its plan has changed"),
    ):
        enter(shared, "one", OTHER)


def test_books_are_found_by_their_data(tmp_path):
    """Whatever number a node has, and in whatever order its records come: by the source's name."""
    ran(tmp_path, "one")
    turned = [replace(holding(5, "node 1", digests(1)[::-1]), new_epsilon=9.0)]
    with opened(tmp_path, turned) as shared:
        assert shared.accounts["node 1"] == DataAccount("node 1", 5, 2.0, 1e-5)
        assert not shared.strangers
        enter(shared, "two")
        shared.reserve(0, 3)
    row = next(row for row in ledger_document(tmp_path).nodes if row.data == "node 1")
    assert sorted(release.node for release in row.releases) == [1, 5]
    mu = math.sqrt(STEPS + 3) / 5
    assert delta_of(row.epsilon, mu) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("apart", [False, True])
def test_nodes_of_one_source_add_up_unless_each_record_is_at_one(tmp_path, apart):
    twins = [holding(node, "all", digests(0)) for node in range(2)]
    with opened(tmp_path, twins, apart=apart) as shared:
        assert not shared.strangers
        enter(shared, "one")
        shared.reserve(0, STEPS)
    (row,) = ledger_document(tmp_path).nodes
    assert [release.node for release in row.releases] == [0, 1]
    mu = math.sqrt((1 if apart else 2) * STEPS) / 5
    assert delta_of(row.epsilon, mu) == pytest.approx(1e-5, rel=1e-6)
    with opened(tmp_path / "elsewhere", [twins[0], holding(1, "other", digests(0))]) as shared:
        assert [one.sources for one in shared.strangers] == [("all", "other")] * 2
    unlike = [replace(one, new_epsilon=2.0 + one.node) for one in twins]
    with pytest.raises(InputError, match="one budget for nodes 0, 1"):
        opened(tmp_path / "elsewhere", unlike)


def test_a_file_under_another_name_is_refused(tmp_path):
    ran(tmp_path, "one")
    one, _ = account_files(tmp_path)
    one.rename(account_file(tmp_path, "another", 0))
    with pytest.raises(InputError, match="the data that it is named after"):
        opened(tmp_path, wanted(3))


def test_ledgers_without_their_key_are_refused(tmp_path):
    ran(tmp_path, "one")
    (tmp_path / KEY_FILE).rename(tmp_path / "aside")
    with pytest.raises(InputError, match=r"privacy\.ledger .* without ledger\.key no record"):
        opened(tmp_path, wanted(2))
    folder_key(tmp_path / "other")
    shutil.copy(tmp_path / "other" / KEY_FILE, tmp_path)
    with pytest.raises(InputError, match="signed with another"):
        opened(tmp_path, wanted(2))


def test_an_edited_budget_is_refused(tmp_path):
    ran(tmp_path, "one")
    with sqlite3.connect(account_files(tmp_path)[0]) as connection:
        edit = "UPDATE entry SET content = replace(content, '_budget\": 2.0', '_budget\": 20.0')"
        connection.execute(edit)
        connection.execute("UPDATE seal SET image = zeroblob(32)")
    connection.close()
    with pytest.raises(InputError, match="an unedited ledger: entry 2, or what stands before"):
        opened(tmp_path, wanted(2))


@pytest.mark.parametrize("edit", ["zeroblob(80)", "substr(digests, 9)", "x''"])
def test_edited_records_are_refused(tmp_path, edit):
    """Else the same records could spend again."""
    ran(tmp_path, "one")
    with sqlite3.connect(account_files(tmp_path)[0]) as connection:
        connection.execute(f"UPDATE records SET digests = {edit}")
        connection.execute("UPDATE seal SET image = zeroblob(32)")
    connection.close()
    with pytest.raises(InputError, match="its records were changed"):
        opened(tmp_path, wanted(2))


def test_a_ledger_books_for_no_run_before_it_is_entered(tmp_path):
    key = folder_key(tmp_path)
    path, account = tmp_path / "data-0.sqlite", DataAccount("digits", 0, 1.0, 1e-5)
    Ledger.create_account(path, key, account)
    with Ledger.open_account(path) as ledger, pytest.raises(InputError, match="enter it"):
        ledger.reserve(0, 1)
    with pytest.raises(InputError, match="the ledger of one run; it has 0"):
        Ledger.open(path, digest=None)
    with Ledger.open_account(path) as ledger, pytest.raises(InputError, match="a mechanism for"):
        ledger.enter("run", digest="d", statements={})
    with pytest.raises(InputError, match="does not exist yet"):
        Ledger.create_account(path, key, account)
    with pytest.raises(InputError, match="can be written"):
        Ledger.create_account(tmp_path / "no folder" / "x", key, account)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data-0.sqlite", KEY_FILE]


# What steps in the ledger release.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 5)).map(
            lambda pair: Interval(pair[0], min(pair[0] + pair[1], 10))
        ),
        max_size=6,
    )
)
def test_what_is_released_is_every_charged_step(intervals):
    multipliers = [1.0 + step / 8 for step in range(STEPS)]
    mechanism = released(SampledGaussian(0.1, multipliers), step_runs(intervals))
    expected = sorted(multipliers[step] for one in intervals for step in range(*one))
    if not expected:
        assert mechanism is None
    else:
        assert isinstance(mechanism, SampledGaussian)
        assert sorted(mechanism.noise_multiplier) == expected  # type: ignore[arg-type]
        assert mechanism.sample_rate == 0.1


def test_all_steps_once_are_the_mechanism_itself():
    whole = [StepRun(0, STEPS, 1)]
    for mechanism in (
        MECHANISM,
        SampledGaussian(0.1, [1.0 + step / 8 for step in range(STEPS)]),
        FixedBatchGaussian(3, 30, 2.0, STEPS),
    ):
        assert released(mechanism, whole) == mechanism


@pytest.mark.parametrize(
    "mechanism",
    [
        ClientSampling(Gaussian(4.0, 2), rate=0.5, rounds=5),
        Composed([Gaussian([10.0, 20.0]), SampledGaussian(0.25, [2.0, 2.5, 3.0])]),
    ],
)
def test_what_cannot_be_told_apart_is_charged_in_full(mechanism):
    assert released(mechanism, [StepRun(3, 4, 1)]) == mechanism
    twice = [StepRun(0, 2, 1), StepRun(2, 3, 2)]
    assert released(mechanism, twice) == combined([mechanism, mechanism])
    assert released(mechanism, []) is None


def test_steps_beyond_the_plan_are_refused():
    with pytest.raises(InputError, match="must lie below 10"):
        released(MECHANISM, [StepRun(9, 11, 1)])
    assert released(MECHANISM, []) is None


def test_schedules_are_joined_where_nothing_else_differs():
    poisson, faster = SampledGaussian(0.1, 1.0, 2), SampledGaussian(0.2, 1.0, 3)
    assert combined([]) is None
    assert combined([None, None]) is None
    assert combined([None, poisson]) == poisson
    assert combined([poisson, SampledGaussian(0.1, 2.0, 1)]) == SampledGaussian(
        0.1, [1.0, 1.0, 2.0]
    )
    assert combined([poisson, faster, poisson]) == Composed([SampledGaussian(0.1, 1.0, 4), faster])
    assert combined([Composed([poisson, faster]), faster]) == Composed(
        [poisson, SampledGaussian(0.2, 1.0, 6)]
    )


def test_runs_of_different_kinds_are_composed(tmp_path):
    ran(tmp_path, "one", mechanism=SampledGaussian(0.2, 1.0, STEPS))
    ran(tmp_path, "two", steps=4, mechanism=SampledGaussian(0.05, 0.8, STEPS))
    ran(tmp_path, "three", steps=8, mechanism=MECHANISM)
    epsilon = cost(spent(ledgers(tmp_path, 0), 0), 1e-5)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for rate, z, steps in ((0.2, 1.0, STEPS), (0.05, 0.8, 4), (1.0, 5.0, 8)):
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(event, steps))
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_what_does_not_add_up_is_refused(tmp_path):
    ran(tmp_path, "1" * 32)
    (run,) = ledgers(tmp_path, 0).runs
    check_agreement(OTHER, "record", run, 7, "ledgers")
    with pytest.raises(
        InputError, match=r"relation of node 7 .* run 11111111 in ledgers .*'add-or"
    ):
        check_agreement(Gaussian(5.0, 1, "replace-one"), "record", run, 7, "ledgers")
    with pytest.raises(InputError, match=r"unit of node 7 = 'client'"):
        check_agreement(Gaussian(5.0, 1, unit="client"), "record", run, 7, "ledgers")


@pytest.mark.parametrize(
    ("before", "now", "known"),
    [
        ("record", "record", True),
        ("column:zper", "column:zper", True),
        ("column:zper", "record", True),
        ("record", "column:zper", False),
        ("column:family", "column:zper", False),
    ],
)
def test_what_a_run_cost_a_person_it_cost_each_record_and_not_the_other_way(
    tmp_path, before, now, known
):
    folder_key(tmp_path)
    with SharedLedgers.open(tmp_path, wanted(1), session="one", unit=before) as shared:
        enter(shared, "one")
        shared.reserve(0, STEPS)
    (run,) = ledgers(tmp_path, 0).runs
    assert run.unit == before
    if known:
        check_agreement(OTHER, now, run, 7, "ledgers")
    else:
        with pytest.raises(InputError, match=f"was by '{before}': how many records of a unit"):
            check_agreement(OTHER, now, run, 7, "ledgers")
