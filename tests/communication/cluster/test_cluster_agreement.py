"""What processes must have in common, what they say where they have not, and record counts."""

import copy
import json
import signal
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from communication.cluster.crew import charged, checkpoints, crew, result_of, simulated, train
from communication.cluster.tampering import at_step, lie, raise_signal
from experiments import write_experiment
from planning_cases import plan_of
from tacit import __version__
from tacit.analysis.ledger_report import ledger_document
from tacit.communication.peers import Placement, place
from tacit.communication.received import EXPERIMENT, IDENTITY
from tacit.config import load_config, site_keys
from tacit.data import Dataset, record_layout
from tacit.errors import InputError, PeerError
from tacit.training.processes.agreement import compare, counts, identity, planned

LAYOUT = {"weight": (2, 3), "bias": (2,)}
START = torch.linspace(-1, 1, 8, dtype=torch.float64)
TABLE = {"name": "privsgp-vr", "learning_rate": 0.1, "state": "private"}
SITE = {
    "algorithm": {"table_directory": "/scratch/here"},
    "nodes": {"data": "by-rank", "source": "/data/here.npz"},
    "privacy": {"ledger": "/var/ledger-here.sqlite", "ledger_source": "here"},
    "task": {"data_dir": "/data", "features": "scattering", "features_cache": "/scratch/features"},
    "train": {"device": "cuda:1", "timeout": 7.0, "patience": 60.0},
}


def config_with(**changes):
    sections = {
        "task": {"dataset": "digits"},
        "nodes": {"count": 4},
        "algorithm": {"name": "privsgp", "learning_rate": 0.1},
        "train": {"steps": 500},
    }
    for name, section in changes.items():
        sections[name] = {**sections.get(name, {}), **section}
    return load_config(sections)


def said(layout=LAYOUT, start=START, dtype=torch.float64, **changes):
    """What a process says of itself, as the others read it."""
    whole = identity(config_with(**changes), layout=layout, start=start, dtype=dtype)
    return json.loads(json.dumps(whole, allow_nan=False))


def refusal(*identities):
    with pytest.raises(InputError) as caught:
        compare(identities)
    assert "\n" not in str(caught.value)
    return caught.value


def test_one_experiment_is_the_same_everywhere():
    compare([said()])
    compare([said(), said(), said()])


def test_what_a_process_says_is_flat_and_resolved():
    whole = said()
    assert whole["train.steps"] == 500
    assert whole["train.batch"] == "auto"  # a default
    assert whole["algorithm.name"] == "privsgp"
    assert whole["algorithm.learning_rate"] == 0.1
    assert whole["faults.tolerate"] == "false"
    assert whole["tacit version"] == __version__
    assert whole["torch version"] == torch.__version__.split("+")[0]
    assert whole["model size"] == 8
    assert whole["model dtype"] == "float64"
    assert "privacy.noise_seed" not in whole
    assert {type(value) for value in whole.values()} <= {str, int, float}


def test_each_site_keeps_its_own_things_where_it_likes():
    algorithm = {**TABLE, "table_directory": "/mnt/a"}
    sites = [
        said(algorithm=algorithm, task={"features": "scattering"}),
        said(**{**SITE, "algorithm": {**TABLE, **SITE["algorithm"]}, "nodes": {}}),
    ]
    compare(sites)
    own = [{"data": "by-rank", "source": f"/data/{site}.npz"} for site in "ab"]
    compare([said(nodes=nodes) for nodes in own])
    keys = {f"{section}.{key}" for section, values in SITE.items() for key in values}
    local = site_keys(config_with(algorithm=algorithm))
    assert keys - {"nodes.data", "task.features"} == local
    for whole in sites:
        assert not local & whole.keys()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train": {"steps": 400}}, "train.steps = 400: on rank 1, but 500 on rank 0"),
        ({"train": {"seed": 1}}, "train.seed = 1: on rank 1, but 0 on rank 0"),
        ({"train": {"evaluate_every": 9}}, "train.evaluate_every = 9: on rank 1, but None on"),
        ({"privacy": {"noise_seed": 5}}, "privacy.noise_seed = 5: on rank 1, but None on rank 0"),
        ({"privacy": {"epsilon": 1.0}}, "privacy.epsilon = 1.0: on rank 1, but 3.0 on rank 0"),
        ({"topology": {"graph": "ring"}}, "topology.graph = 'ring': on rank 1, but 'exponential'"),
        ({"algorithm": {"clip": 2.0}}, "algorithm.clip = 2.0: on rank 1, but "),
        ({"nodes": {"placement": [0, 1, 0, 1]}}, "nodes.placement = '[0, 1, 0, 1]': on rank 1"),
        ({"faults": {"tolerate": True}}, "faults.tolerate = 'true': on rank 1, but 'false'"),
        ({"task": {"loss": "mse"}}, "task.loss = 'mse': on rank 1, but 'cross-entropy' on rank 0"),
    ],
)
def test_a_key_that_differs_is_named(changes, expected):
    error = refusal(said(), said(**changes))
    assert str(error).startswith(expected)
    assert str(error).endswith("; all processes must run the same experiment")
    assert error.where == next(f"{name}.{key}" for name in changes for key in changes[name])


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"layout": {"weight": (3, 2), "bias": (2,)}}, "model layout"),
        ({"layout": {"bias": (2,), "weight": (2, 3)}}, "model layout"),
        ({"layout": {"weights": (2, 3), "bias": (2,)}}, "model layout"),
        ({"start": START.nextafter(torch.tensor(9.0, dtype=torch.float64))}, "model start"),
        ({"start": START.flip(0)}, "model start"),
    ],
)
def test_a_model_that_differs_is_named(changes, where):
    assert refusal(said(), said(**changes)).where == where


def test_the_start_counts_as_numbers_and_not_by_where_they_lie():
    spread = torch.zeros(8, 3, dtype=torch.float64)
    spread[:, 1] = START
    compare([said(), said(start=spread[:, 1].requires_grad_())])
    narrow = START.float()
    compare(
        [said(start=narrow, dtype=torch.float32), said(start=narrow.double(), dtype=torch.float32)]
    )


@pytest.mark.parametrize(
    ("name", "value"), [("tacit version", "0.0.1"), ("torch version", "1.2.3")]
)
def test_versions_come_before_what_follows_from_them(name, value):
    other = {**said(train={"steps": 400}), name: value}
    error = refusal(said(), other)
    assert error.where == name
    assert "; also train.steps = 400: on rank 1, but 500 on rank 0; all" in str(error)


def test_the_first_two_are_named_and_the_others_counted():
    other = said(train={"steps": 400, "batch": 32}, nodes={"count": 5}, start=START[:7])
    assert str(refusal(said(), said(), other)) == (
        "nodes.count = 5: on rank 2, but 4 on ranks 0 and 1; also train.batch = 32: on rank 2, "
        "but 'auto' on ranks 0 and 1; and 3 more; all processes must run the same experiment"
    )


def test_who_has_what():
    steps = [500, 400, 500, 300, 400, 500, 200, 100, 500, 500]
    ranks = [said() | {"train.steps": value} for value in steps]
    assert str(refusal(*ranks)).startswith(
        "train.steps = 400: on ranks 1 and 4, but 500 on ranks 0, 2, 5 and 2 more, "
        "300 on rank 3, others on ranks 6 and 7; all"
    )
    assert str(refusal(*ranks[3:5])).startswith("train.steps = 400: on rank 1, but 300 on rank 0;")


def test_the_order_in_which_things_are_said_does_not_matter():
    other = said(train={"steps": 400, "batch": 32})
    turned = dict(reversed(other.items()))
    compare([other, turned])
    assert str(refusal(said(), other)) == str(refusal(said(), turned))


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["train.steps", "nodes.count", "model size", "tacit version"]),
            st.one_of(
                st.integers(-(2**63) + 1, 2**63 - 1),
                st.floats(allow_nan=False, allow_infinity=False),
                st.text(st.characters(codec="utf-8"), max_size=200),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_said_is_refused_where_it_differs_and_in_one_line(identities):
    texts = {json.dumps(one, sort_keys=True) for one in identities}
    if len(texts) == 1:
        compare(identities)
    else:
        assert len(str(refusal(*identities))) < 1000


def test_numbers_of_another_kind_differ():
    for one, other in [(1, 1.0), (1, "1"), (0.0, -0.0)]:
        assert refusal({"train.steps": one}, {"train.steps": other}).where == "train.steps"


def test_long_lists_are_bounded_and_still_told_apart():
    values = [1.0 + node / 1000 for node in range(1000)]
    changed = [*values[:-1], 9.0]
    whole, other = (
        said(nodes={"count": 1000}, privacy={"epsilon": list(chosen)})
        for chosen in (values, changed)
    )
    assert len(whole["privacy.epsilon"]) <= 200
    assert whole["privacy.epsilon"].startswith("[1.0, 1.001, ")
    compare([whole, copy.deepcopy(whole)])
    assert refusal(whole, other).where == "privacy.epsilon"


@pytest.mark.parametrize(
    "bad",
    [
        "null",
        "[]",
        '"train.steps"',
        "7",
        '{"train.steps": null}',
        '{"train.steps": true}',
        '{"train.steps": [500]}',
        '{"train.steps": {"a": 1}}',
        '{"train.steps": NaN}',
        '{"train.steps": Infinity}',
        json.dumps({"train.steps": "5" * 201}),
        '{"": 5}',
        '{"train.steps\\nall is well": 5}',
        '{"\\u001b[2J": 5}',
        json.dumps({"k" * 81: 5}),
        json.dumps({f"train.key{number}": 1 for number in range(1001)}),
    ],
    ids=lambda bad: bad[:30],
)
def test_what_is_no_identity_is_refused_with_the_rank(bad):
    with pytest.raises(PeerError, match=r"^rank 1 sent a wrong plan") as caught:
        IDENTITY.read(bad, 1, "plan")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_what_a_process_says_passes_the_border():
    whole = said(train={"seed": 7}, nodes={"placement": [0, 1, 0, 1]})
    assert IDENTITY.read(IDENTITY.write(whole), 1, "plan") == whole


def test_records_of_another_layout_are_named_before_the_model_that_follows_from_them():
    narrow, wide = (
        record_layout(Dataset(torch.zeros(5, width), torch.zeros(5))) for width in (30, 64)
    )
    error = refusal({**said(), **wide}, {**said(start=START[:3]), **narrow})
    assert str(error).startswith(
        "record inputs = 'floating [30]': on rank 1, but 'floating [64]' on rank 0; also model "
    )
    labels = record_layout(Dataset(torch.zeros(5, 64), torch.zeros(5, dtype=torch.int64)))
    assert str(refusal(wide, labels)) == (
        "record targets = 'integer []': on rank 1, but 'floating []' on rank 0; all processes "
        "must run the same experiment"
    )


RECORDS = (50, 60, 70, 80)


def test_plans_of_one_experiment_agree():
    plans = [planned(plan_of(RECORDS, noise_std=0.1)) for _ in range(2)]
    compare(plans)
    assert json.loads(json.dumps(plans[0])) == plans[0]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"topology": {"graph": "directed-ring"}}, {"plan graph schedule"}),
        ({"noise_std": 0.2}, {"plan noise"}),
        ({"algorithm": {"clip": 2.0}}, {"plan clip", "plan noise"}),
        ({"train": {"batch": 10, "sampling": "poisson"}}, {"plan batches"}),
    ],
)
def test_a_plan_that_differs_is_named(settings, names):
    base, other = (
        planned(plan_of(RECORDS, **{"noise_std": 0.1, **chosen})) for chosen in ({}, settings)
    )
    differing = {name for name in base if base[name] != other[name]}
    assert names <= differing
    assert "plan activity" not in differing
    assert refusal(base, other).where == min(differing)


def test_who_takes_part_when_must_be_equal():
    plans = [
        plan_of(
            RECORDS,
            algorithm={"name": "fedavg", "clients_per_round": 2},
            topology={"graph": "star"},
            train={"seed": seed},
        )
        for seed in (0, 1)
    ]
    assert not np.array_equal(plans[0].release.activity.active, plans[1].release.activity.active)
    assert refusal(*map(planned, plans)).where == "plan activity"
    activity = plans[0].release.activity

    def with_activity(changed):
        return replace(plans[0], release=replace(plans[0].release, activity=changed))

    paired = [
        with_activity(replace(activity, partner=np.full(activity.active.shape, whom)))
        for whom in (0, 1)
    ]
    assert refusal(*map(planned, paired)).where == "plan activity"
    everybody = with_activity(None)
    assert refusal(planned(plans[0]), planned(everybody)).where == "plan activity"


def test_a_graph_file_that_says_something_else_is_found(tmp_path):
    path = tmp_path / "graph.txt"
    found = []
    for edges in ("0 1\n1 2\n2 3\n3 0\n", "0 1\n1 2\n2 3\n3 0\n0 2\n"):
        path.write_text(edges)
        found.append(planned(plan_of(RECORDS, topology={"graph": f"file:{path}"}, noise_std=0.1)))
    assert refusal(*found).where == "plan graph schedule"


def test_the_last_bits_of_noise_may_be_rounded_otherwise_but_no_more():
    plan = plan_of(RECORDS, noise_std=0.1)

    def scaled(factor):
        nodes = [replace(node, noise_scale=node.noise_scale * factor) for node in plan.nodes]
        return dict(planned(replace(plan, nodes=tuple(nodes))))

    compare([scaled(1.0), scaled(1.0 + 1e-12), scaled(1.0 - 1e-12)])
    for factor in (1.0 + 1e-4, 1.0 - 1e-4, 2.0, 0.0):
        assert refusal(scaled(1.0), scaled(factor)).where == "plan noise"


@given(
    st.integers(1, 30).flatmap(
        lambda count: st.tuples(
            st.lists(st.integers(1, 2**53), min_size=count, max_size=count),
            st.integers(1, count),
            st.randoms(use_true_random=False),
        )
    )
)
def test_counts_come_back_by_node(case):
    records, processes, random = case
    blocks = place(len(records), processes)
    ranks = list(blocks.ranks)
    random.shuffle(ranks)
    for placement in (blocks, place(len(records), processes, ranks)):
        shared = [[records[node] for node in placement.hosted(rank)] for rank in range(processes)]
        assert counts(shared, placement) == records


@pytest.mark.parametrize("shared", [[], [7], [7, 8, 9]])
def test_a_rank_that_speaks_of_more_or_fewer_nodes_than_it_has_is_named(shared):
    with pytest.raises(PeerError, match=rf"^rank 1 gave {len(shared)} record counts, and has 2"):
        counts([[5, 6], shared], Placement((0, 0, 1, 1)))


@pytest.mark.parametrize(
    "count", ["-1", "-8", "7.0", "true", '"7"', "[7]", "9007199254740993", "null"]
)
def test_what_is_no_record_count_is_refused(count):
    with pytest.raises(PeerError, match=r"^rank 1 sent a wrong experiment"):
        EXPERIMENT.read(f'{{"identity": {{}}, "records": [{count}]}}', 1, "experiment")


def test_every_rank_must_give_its_counts():
    with pytest.raises(PeerError, match="record counts came from 1 of 2 ranks"):
        counts([[5, 6]], Placement((0, 0, 1, 1)))
    with pytest.raises(PeerError, match="rank 2 gave 1 record counts, and has 0 nodes"):
        counts([[5], [6], [7]], Placement((0, 1)))


# A peer that lies changes nothing of another's ledgers, budget, checkpoints or paths.


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


@pytest.mark.process
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


@pytest.mark.process
def test_ends_that_a_peer_makes_up_are_refused_or_named(tmp_path):
    file, run = write_experiment(tmp_path, **SMALL), tmp_path / "run"
    for word in ("-1000000000", "1000000000000000", "Infinity", "11"):
        answers = train(tmp_path, file, run, 2, tamper={1: partial(lie, {"last step": word})})
        assert [answer.code for answer in answers] == [4, 4], answers
        assert "rank 1 " in answers[0].refusal
        assert not (run / "result.json").exists()
        assert all(not steps for steps in charged(run).values())
        run = run.with_name(f"{run.name}-again")


@pytest.mark.process
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


@pytest.mark.process
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
