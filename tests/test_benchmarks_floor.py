"""What the speed benchmarks count, fit and clock, against counting by hand."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

SPEED = Path(__file__).resolve().parents[1] / "benchmarks" / "speed"
sys.path.append(str(SPEED))

import profile_step  # noqa: E402
from floor import PARTS, Layer, layers_of, parts_of  # noqa: E402
from scaling import line_through, linearity, table_bytes, tables_built  # noqa: E402
from workloads import Workload  # noqa: E402

from models import model_of  # noqa: E402


def test_layers_are_found_in_order_with_their_sizes():
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 20, 7)
    )
    assert layers_of(model, (2, 4, 5)) == [
        Layer(inputs=9, outputs=6, positions=20, read=40),
        Layer(inputs=120, outputs=7, positions=1, read=120),
    ]


@pytest.mark.parametrize(("batch", "records"), [(1, 12), (8, 40)])
def test_a_step_is_counted_as_by_hand(batch, records):
    workload = Workload("w", nodes=50, batch=batch, records=records)
    layers = layers_of(model_of(workload), workload.shape)
    parameters = 784 * 128 + 128 + 128 * 10 + 10
    found = parts_of(workload, layers, parameters)
    assert tuple(found) == PARTS
    products = 2 * 50 * batch * (784 * 128 + 128 * 10)
    assert found["forward"].operations == products
    assert found["backward"].operations == 2 * 50 * batch * 128 * 10
    norms = 2 * 50 * batch * (784 + 128 + 128 + 10)
    assert found["norms and clipped sum"].operations == products + norms
    assert found["noise"].keystream == 4 * 50 * parameters
    assert found["mix"].bytes == 3 * 4 * 50 * parameters
    assert found["gather"].bytes == 2 * 4 * 50 * batch * 784
    plain = parts_of(workload.plain(), layers, parameters)
    assert plain["noise"].bytes == 0
    assert plain["norms and clipped sum"].operations == products


def test_a_round_counts_active_clients_and_their_local_steps():
    workload = Workload("w", nodes=100, active=20, local_steps=5, batch=10, shape=(6,))
    layers = [Layer(6, 3, 1, 6)]
    found = parts_of(workload, layers, 21)
    assert found["forward"].operations == 20 * 5 * 10 * 2 * 6 * 3
    assert found["noise"].keystream == 4 * 20 * 21
    assert found["update"].bytes == 4 * 20 * 21 * 3 * 5


def test_a_convolution_takes_the_cheaper_way_to_its_norm():
    assert Layer(9, 6, 20, 40).norm == 2 * 9 * 6
    assert Layer(900, 600, 2, 40).norm == 2 * 2 * 2 * 1500


def test_a_line_is_found_and_what_bends_is_seen():
    sizes = (10, 20, 50, 100, 1000)
    fixed, each = line_through({nodes: 300.0 + 4.0 * nodes for nodes in sizes})
    assert (fixed, each) == pytest.approx((300.0, 4.0))
    bent = {nodes: 300.0 + 0.05 * nodes**2 for nodes in sizes}
    fixed, each = line_through(bent)
    assert max(linearity((cost, fixed + nodes * each)) for nodes, cost in bent.items()) > 1.3
    assert linearity([2.0, 3.0, 2.5]) == 1.5
    assert linearity([0.0, 1.0]) == float("inf")


def test_a_part_within_a_part_is_clocked_once(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(profile_step.time, "perf_counter", lambda: next(now))
    clocks = profile_step.Clocks()  # 0
    with clocks.during("gather"), clocks.during("forward"):  # from 1, and from 3 to 6
        pass
    # the outer one to 10
    assert clocks.reset() == {"update": 1.0 + 5.0, "gather": 2.0 + 4.0, "forward": 3.0}


def test_a_profile_adds_up_to_the_step():
    workload = Workload(
        "w", nodes=3, batch=4, records=20, shape=(6,), dataset="generated", data_dir="none"
    )
    plain = torch.autograd.grad
    found = profile_step.profile(workload, steps=3)
    assert torch.autograd.grad is plain
    assert found["steps"] == 3
    assert set(found["parts"]) == set(PARTS)
    assert all(part["seconds"] > 0 for part in found["parts"].values())


@pytest.mark.slow
def test_a_table_is_counted_and_really_built():
    workload = Workload(
        "w", nodes=2, batch=1, records=12, shape=(30,), dataset="generated", data_dir="none"
    )
    kept, dense, parameters = table_bytes(workload)
    assert parameters == 30 * 128 + 128 + 1290
    assert dense == (4 * 24 + 8 * 2) * parameters
    # Factors: input and output gradient of both layers; the first input is the record itself.
    assert kept < 4 * 24 * (30 + 128 + 128 + 10 + 128 + 10) + 8 * 2 * parameters + 1
    assert tables_built(workload)["value"] == pytest.approx(kept / dense)
