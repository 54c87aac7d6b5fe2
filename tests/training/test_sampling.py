"""Which records join a step: the planned rates are realised, and nothing else decides."""

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

import tacit
from experiments import experiment
from plain_noise import normals
from planning_cases import config_of
from tacit.config import load_config
from tacit.privacy.noise import draws as noise
from tacit.training import sampling
from tacit.training.planner import build_plan
from tacit.training.settled import automatic_batch

CPU = torch.device("cpu")
RECORDS = (40, 8, 25, 5, 1)
BATCH = 8


def plan_of(records=RECORDS, **train):
    config = load_config(
        {
            "algorithm": {"name": "privsgp"},
            "privacy": {"epsilon": "none"},
            "train": {"batch": BATCH, **train},
        },
        count=len(records),
    )
    return build_plan(config, records, 3)


def with_local_steps(plan, local_steps):
    return replace(plan, release=replace(plan.release, local_steps=local_steps))


def keys_of(plan, seed=11):
    return noise.seeded_keys(seed, range(len(plan.nodes)))


def chosen(batch):
    """The record numbers of each node."""
    return [indices[mask].tolist() for indices, mask in zip(batch.indices, batch.mask, strict=True)]


def inclusions(plan, steps):
    """For each node, which record joined which step: `[steps, records]` of 0 and 1."""
    keys = keys_of(plan)
    found = [np.zeros((steps, node.records)) for node in plan.nodes]
    for k in range(steps):
        for node, records in enumerate(chosen(sampling.draw(plan, keys, k, CPU))):
            found[node][k, records] += 1
    return found


def test_poisson_coins_have_the_planned_rate_for_every_record():
    plan, steps = plan_of(), 1500
    for node, joined in zip(plan.nodes, inclusions(plan, steps), strict=True):
        rate = min(BATCH, node.records) / node.records
        assert node.rate == rate
        assert set(np.unique(joined)) <= {0.0, 1.0}
        if rate == 1:
            assert joined.all()
            continue
        error = math.sqrt(rate * (1 - rate) / steps)
        assert np.abs(joined.mean(axis=0) - rate).max() < 4.5 * error
        assert abs(joined.mean() - rate) < 4 * error / math.sqrt(node.records)
        # Independent coins: batch sizes vary as a binomial's.
        sizes = joined.sum(axis=1)
        variance = node.records * rate * (1 - rate)
        assert sizes.mean() == pytest.approx(BATCH, abs=4 * math.sqrt(variance / steps))
        assert sizes.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / steps) + 0.02)


def test_fixed_batches_are_uniform_subsets_of_the_planned_size():
    plan, steps = plan_of(sampling="fixed"), 1500
    for node, joined in zip(plan.nodes, inclusions(plan, steps), strict=True):
        size = min(BATCH, node.records)
        assert joined.max() == 1.0  # no record twice
        assert (joined.sum(axis=1) == size).all()
        rate = size / node.records
        error = math.sqrt(rate * (1 - rate) / steps)
        assert np.abs(joined.mean(axis=0) - rate).max() <= 4.5 * error


def test_allocation_takes_every_record_once_an_epoch_at_a_uniform_step():
    plan, epochs = plan_of((40, 8, 25, 5, 1, 48), sampling="allocation"), 300
    lengths = [node.epoch_steps for node in plan.nodes]
    assert lengths == [5, 1, 4, 1, 1, 6]  # as few steps as keep a batch at 8 in expectation
    assert [node.expected_batch for node in plan.nodes] == [8, 8, 6.25, 5, 1, 8]
    for node, t, joined in zip(plan.nodes, lengths, inclusions(plan, 6 * epochs), strict=True):
        by_epoch = joined[: len(joined) // t * t].reshape(-1, t, node.records)
        assert (by_epoch.sum(axis=1) == 1).all()
        if t == 1:
            continue
        # Each record at each step: a share of 1 / t, within 4.5 deviations, 300 of them.
        error = math.sqrt((1 - 1 / t) / t / len(by_epoch))
        assert np.abs(by_epoch.mean(axis=0) - 1 / t).max() <= 4.5 * error
        steps = by_epoch.argmax(axis=1)
        same = (steps[1:] == steps[:-1]).mean()
        assert abs(same - 1 / t) <= 4.5 * error / math.sqrt(node.records)
        pairs = (steps[:, 1:] == steps[:, :-1]).mean()
        assert abs(pairs - 1 / t) <= 4.5 * error / math.sqrt(node.records - 1)


@pytest.mark.parametrize("method", ["poisson", "fixed", "allocation"])
def test_records_are_distinct_ascending_and_within_the_node(method):
    plan = plan_of(sampling=method)
    for k in range(50):
        for node, records in zip(
            plan.nodes, chosen(sampling.draw(plan, keys_of(plan), k, CPU)), strict=True
        ):
            assert records == sorted(set(records))
            assert all(0 <= record < node.records for record in records)


@pytest.mark.parametrize("method", ["poisson", "fixed", "allocation"])
def test_all_means_every_record_at_every_step(method):
    plan = plan_of(batch="all", sampling=method)
    every = [list(range(count)) for count in RECORDS]
    for k in range(3):
        assert chosen(sampling.draw(plan, keys_of(plan), k, CPU)) == every
    assert chosen(sampling.everything(plan, CPU)) == every
    assert chosen(sampling.everything(plan_of(sampling=method), CPU)) == every


def test_hidden_slots_hold_a_readable_record():
    plan = plan_of()
    batch = sampling.draw(plan, keys_of(plan), 0, CPU)
    assert batch.indices.dtype == torch.int64
    assert batch.mask.dtype == torch.bool
    assert batch.indices.shape == batch.mask.shape
    assert batch.mask.shape[1] == int(batch.mask.sum(dim=1).max())
    assert bool((batch.indices[~batch.mask] == 0).all())
    assert not bool(batch.mask.all())


@pytest.mark.parametrize("method", ["poisson", "fixed", "allocation"])
def test_a_draw_depends_on_key_and_step_and_on_no_other_node(method):
    plan = plan_of((40, 40, 40), sampling=method)
    keys = keys_of(plan)
    draws = [chosen(sampling.draw(plan, keys, k, CPU)) for k in range(4)]
    rows = [tuple(records) for step in draws for records in step]
    assert len(set(rows)) == len(rows)
    assert chosen(sampling.draw(plan, keys, 2, CPU)) == draws[2]
    assert chosen(sampling.draw(plan, keys_of(plan, seed=12), 2, CPU)) != draws[2]
    for node in range(3):
        alone = replace(plan, nodes=(plan.nodes[node],))
        found = chosen(sampling.draw(alone, keys.subset([node]), 2, CPU))
        assert found == [draws[2][node]]


def test_coins_do_not_follow_the_noise():
    """Sampling and noise of one step come from different streams of the node's key."""
    plan = plan_of((4000,), batch=2000)
    keys = keys_of(plan)
    joined = np.zeros(4000)
    joined[chosen(sampling.draw(plan, keys, 0, CPU))[0]] = 1
    drawn = normals(keys, 0, "noise", 0, 4000)
    for values in (drawn, np.abs(drawn)):
        assert abs(np.corrcoef(joined, values)[0, 1]) < 4 / math.sqrt(4000)


def test_a_batch_may_be_empty():
    plan = plan_of((6,), batch=1)
    batches = [sampling.draw(plan, keys_of(plan), k, CPU) for k in range(40)]
    empty = [batch for batch in batches if batch.indices.numel() == 0]
    # (1 - 1/6)^6 is about a third.
    assert 4 <= len(empty) <= 24
    assert all(batch.indices.shape == batch.mask.shape == (1, 0) for batch in empty)


@pytest.mark.parametrize("method", ["poisson", "fixed"])
def test_one_deal_makes_all_mini_batches_of_a_step(method):
    """Disjoint, ascending, each as drawn alone; and by the definition, record by record."""
    plan = with_local_steps(plan_of((60, 41), sampling=method, batch=5), 4)
    keys = keys_of(plan)
    for k in range(20):
        disjoint_batches = sampling.disjoint_batches(plan, keys, k, CPU)
        parts = [chosen(disjoint_batches.batch(part)) for part in range(4)]
        for part in range(4):
            assert parts[part] == chosen(sampling.draw(plan, keys, k, CPU, part=part))
        for row, node in enumerate(plan.nodes):
            batches = [part[row] for part in parts]
            assert all(hand == sorted(hand) for hand in batches)
            together = sorted(record for hand in batches for record in hand)
            assert len(set(together)) == len(together)
            if method == "fixed":
                assert [len(hand) for hand in batches] == [5] * 4
                continue
            coins = noise.coins(keys, row, "sampling", k, node.records, 4 * node.rate)
            dealt = noise.choices(keys, row, "dealing", k, node.records, 4)
            for part, hand in enumerate(batches):
                assert hand == [j for j in range(node.records) if coins[j] and dealt[j] == part]


@pytest.mark.parametrize("sizes", [(60, 60, 60), (60, 41, 23)])
@pytest.mark.parametrize("parts", [1, 4])
def test_subsets_of_many_nodes_are_those_of_each(sizes, parts):
    """Bit for bit what the noise module draws for one node, few nodes at a time or all."""
    plan = plan_of(sizes, sampling="fixed", batch=5)
    keys = keys_of(plan)
    for k in range(5):
        found = sampling._subsets(plan.nodes, keys, k, parts)
        for node, records in zip(plan.nodes, found, strict=True):
            right = noise.subset(keys, node.node, "sampling", k, node.records, parts * 5)
            assert records.tolist() == right.tolist()
        with patch.object(sampling, "_WORDS_AT_ONCE", 1):
            again = sampling._subsets(plan.nodes, keys, k, parts)
        assert [records.tolist() for records in again] == [records.tolist() for records in found]


def test_equal_words_are_settled_as_for_one_node():
    plan = plan_of((8, 8), sampling="fixed", batch=3)
    keys = keys_of(plan)
    tied = np.array([[5, 1, 5, 5, 9, 9, 9, 9], [1, 2, 3, 4, 5, 6, 7, 8]], np.uint64)
    with patch.object(sampling, "_words", return_value=tied):
        found = sampling._subsets(plan.nodes, keys, 2, 1)
    assert found[0].tolist() == noise.subset(keys, 0, "sampling", 2, 8, 3).tolist()
    assert found[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("sizes", [(60, 60), (60, 41)])
def test_a_deal_of_fixed_sizes_follows_the_permutation(sizes):
    plan = with_local_steps(plan_of(sizes, sampling="fixed", batch=5), 4)
    keys = keys_of(plan)
    drawn = sampling.disjoint_batches(plan, keys, 3, CPU)
    for row, node in enumerate(plan.nodes):
        records = noise.subset(keys, node.node, "sampling", 3, node.records, 20)
        dealt = records[noise.permutation(keys, node.node, "dealing", 3, 20)].reshape(4, 5)
        for part in range(4):
            assert chosen(drawn.batch(part))[row] == sorted(dealt[part].tolist())


def test_a_deal_of_some_nodes_is_theirs():
    plan = with_local_steps(plan_of((60, 41, 33), batch=5), 3)
    keys = keys_of(plan)
    whole = sampling.disjoint_batches(plan, keys, 4, CPU)
    some = sampling.disjoint_batches(plan, keys, 4, CPU, nodes=[plan.nodes[2], plan.nodes[0]])
    for part in range(3):
        every = chosen(whole.batch(part))
        assert chosen(some.batch(part)) == [every[2], every[0]]


def test_public_widths_are_few_and_pad_by_a_quarter_at_most():
    widths = [sampling.public_width(records) for records in range(1, 2049)]
    assert len(set(widths)) == 8 + 4 * 8
    assert all(0 <= wide - size <= size / 4 for size, wide in enumerate(widths, 1))
    assert widths == sorted(widths)
    assert sampling.public_width(0) == 0


@pytest.mark.parametrize("method", ["poisson", "fixed"])
def test_on_a_device_drawn_batches_have_public_widths(method):
    """Of no numbers, so that the shapes alone are looked at; and of the same records on the CPU."""
    plan = plan_of(records=(40, 40, 39), sampling=method)
    keys, meta = keys_of(plan), torch.device("meta")
    for k in range(20):
        own = sampling.draw(plan, keys, k, CPU).mask.shape[1]
        found = sampling.draw(plan, keys, k, meta)
        right = own if method == "fixed" else min(40, sampling.public_width(own))
        assert found.indices.shape == found.mask.shape == (3, right)
    width = sampling.public_width(BATCH + 1)
    padded = sampling._padded([np.arange(9), np.arange(4)], CPU, lambda longest: width)
    assert chosen(padded) == [list(range(9)), list(range(4))]
    assert padded.mask.shape == (2, width)


# What a batch that is left open comes to, and that a run writes it down and goes on with it.


THREE_SIZES = [3000, 100, 20]
OTHERS = {
    "no noise": {"epsilon": "none"},
    "a given noise": {"epsilon": None, "noise_std": 0.1},
    "a published noise": {"accounting": "published"},
    "fixed batches": {"train": {"sampling": "fixed"}, "relation": "replace-one"},
    "epochs": {"train": {"sampling": "allocation"}},
    "a gradient table": {"algorithm": {"name": "privsgp-vr", "state": "private"}},
    "anchors": {"algorithm": {"name": "privsgp-vr"}},
    "local steps": {
        "algorithm": {"name": "dp-fedavg", "local_steps": 3},
        "topology": {"graph": "star"},
    },
    "Laplace noise": {"algorithm": {"name": "dpdo"}, "topology": {"graph": "ring"}},
}


def settled(linear, records, **settings):
    train = {"batch": "auto", **settings.pop("train", {})}
    config = config_of(len(records), train=train, **settings)
    assert config.train.batch == "auto"
    found = automatic_batch(config, records, linear)
    plan = build_plan(config, records, 10, linear=linear)
    assert plan.config.train.batch == found[0]
    assert [note for note in plan.notes if "by default" in note] == [n for n in found[1:] if n]
    return found


def test_a_linear_layer_takes_all_records_and_other_models_a_tenth():
    private = {"epsilon": 1.0, "algorithm": {"name": "privsgp"}}
    assert settled(True, THREE_SIZES, **private)[0] == "all"
    batch, reason = settled(False, THREE_SIZES, **private)
    assert batch == 300
    assert reason is not None
    assert reason.startswith("train.batch = 300, by default: a tenth of the largest node's 3,000")
    assert settled(False, [601, 5, 5], **private)[0] == 64
    assert settled(False, [641, 5, 5], **private)[0] == 65
    assert settled(False, [30, 5, 5], **private)[0] == 30


@pytest.mark.parametrize("name", ["noised-moments", "noised-moments-server"])
def test_what_reads_records_once_reads_all_of_them(name):
    graph = "star" if name.endswith("server") else "exponential"
    given = {"algorithm": {"name": name}, "topology": {"graph": graph}}
    assert settled(False, THREE_SIZES, epsilon=1.0, **given)[0] == "all"


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("linear", [True, False])
def test_elsewhere_it_is_64(case, linear):
    given = {"epsilon": 1.0, "algorithm": {"name": "privsgp"}, **OTHERS[case]}
    given = {key: value for key, value in given.items() if value is not None}
    assert settled(linear, THREE_SIZES, **given) == (64, None)


@pytest.mark.parametrize(("model", "batch"), [("logistic", "all"), ("mlp", 64)])
def test_a_run_writes_down_what_it_came_to_and_goes_on_with_it(model, batch, tmp_path):
    given = experiment(
        task={"model": model},
        nodes={"count": 3},
        privacy={"noise_std": None, "epsilon": 2.0},
        train={"steps": 2, "batch": None},
    )
    first = tacit.train(given, out=tmp_path / "run")
    assert first.plan.config.train.batch == batch
    written = (tmp_path / "run" / "config.toml").read_text()
    assert f"batch = {batch!r}".replace("'", '"') in written
    again = tacit.train(tmp_path / "run" / "config.toml")
    assert again.parameters.equal(first.parameters)
