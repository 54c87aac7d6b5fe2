"""Sums of rows: compiled, on a device, with the step before them; and the mean of a server."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixings import weights_of
from tacit.communication.colours import Private, Public, Released
from tacit.communication.exchange import InProcessExchange, rows
from tacit.communication.exchange.protocol import Descent
from tacit.communication.exchange.rows import Server, compile_rows, mean_of_rows
from tacit.errors import LeakError
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def _three_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def mixer_of(graph, nodes, dtype=torch.float32):
    weights = build_mixing(build_schedule(graph, nodes)).at(0)
    return compile_rows(weights, nodes=range(nodes), dtype=dtype, device=CPU)


def one_by_one(weights, x, direction, step):
    """The sums by the definition, every product and sum rounded to the dtype of x."""
    kind = x.dtype.type
    if direction is not None:
        x = x - kind(step) * direction
    mixed = np.zeros_like(x)
    for target in range(weights.nodes):
        for entry in range(weights.starts[target], weights.starts[target + 1]):
            read = kind(weights.values[entry]) * x[weights.sources[entry]]
            first = entry == weights.starts[target]
            mixed[target] = read if first else mixed[target] + read
    return mixed


@given(
    nodes=st.integers(1, 12),
    length=st.sampled_from([1, 2, 63, 64, 65, 1_000]),
    step=st.sampled_from([None, 0.0, 0.3, -1e3]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1_000),
)
def test_sums_are_rounded_one_by_one_in_the_order_of_the_sources(nodes, length, step, dtype, seed):
    generator = np.random.default_rng(seed)
    matrix = np.zeros((nodes, nodes))
    for target in range(nodes):  # some have no in-neighbour at all
        for source in generator.choice(nodes, generator.integers(min(nodes, 4) + 1), replace=False):
            matrix[target, source] = generator.uniform(0.1, 1)
    weights = weights_of(matrix)
    x, direction = (drawn(nodes, length, dtype=dtype, seed=seed + i) for i in range(2))
    mixer = compile_rows(weights, nodes=range(nodes), dtype=dtype, device=CPU)
    mixed = mixer.begin(x, None if step is None else Descent(direction, step))
    along = None if step is None else direction.numpy()
    assert np.array_equal(mixed.numpy(), one_by_one(weights, x.numpy(), along, step or 0.0))


@pytest.mark.parametrize("graph", ["exponential", "ring", "complete"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_descent_is_the_step_and_then_the_mixing(graph, dtype):
    x, direction = drawn(9, 70, dtype=dtype), drawn(9, 70, dtype=dtype, seed=1)
    mixer, descent = mixer_of(graph, 9, dtype), Descent(direction, 0.37)
    before = x.clone(), direction.clone()
    at_once, in_turn = mixer.begin(x, descent), mixer.begin(descent.of(x))
    assert torch.equal(at_once, in_turn)
    assert torch.equal(x, before[0])
    assert torch.equal(direction, before[1])
    torch.testing.assert_close(descent.of(x), x - 0.37 * direction)


@pytest.mark.usefixtures("_three_threads")
@pytest.mark.parametrize("length", [1, 5, 40_000])
def test_threads_change_nothing(length, monkeypatch):
    x, descent = drawn(6, length), Descent(drawn(6, length, seed=1), 0.1)
    mixer = mixer_of("exponential", 6)
    torch.set_num_threads(1)
    alone = mixer.begin(x, descent)
    torch.set_num_threads(3)
    monkeypatch.setattr(rows, "_THREAD_NUMBERS", 1)
    assert torch.equal(mixer.begin(x, descent), alone)


@pytest.mark.parametrize("graph", ["exponential", "ring"])
def test_another_device_mixes_the_same(graph, monkeypatch):
    """The way of devices, run on the processor."""
    x, descent = drawn(7, 3, 5), Descent(drawn(7, 3, 5, seed=1), 0.2)
    expected = mixer_of(graph, 7).begin(x, descent)
    monkeypatch.setattr(rows, "_LOOPED", frozenset())
    torch.testing.assert_close(mixer_of(graph, 7).begin(x, descent), expected)


@pytest.mark.slow
def test_values_of_any_layout_are_mixed():
    x = drawn(70, 9).t()
    descent = Descent(drawn(70, 9, seed=1).t(), 0.2)
    mixer = mixer_of("exponential", 9)
    contiguous = Descent(descent.direction.contiguous(), 0.2)
    assert torch.equal(mixer.begin(x, descent), mixer.begin(x.contiguous(), contiguous))


def test_only_the_first_value_descends_and_a_private_direction_is_refused():
    weights = build_mixing(build_schedule("ring", 4)).at(0)
    exchange = InProcessExchange([weights], dtype=torch.float32, device=CPU)
    x, w, direction = drawn(4, 6), drawn(4, seed=2), drawn(4, 6, seed=1)
    mixed = exchange.mix(0, Released(x), Public(w), descent=(Released(direction), 0.5))
    plain = exchange.mix(0, Released(x - 0.5 * direction), Public(w))
    for one, other in zip(mixed, plain, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(LeakError, match="is a Private"):
        exchange.mix(0, Released(x), descent=(Private(direction), 0.5))  # type: ignore[arg-type]


EVERYONE = np.arange(4)


def numbered(first):
    return torch.arange(8, dtype=torch.float64).view(4, 2) + first


def test_the_mean_of_rows():
    assert torch.equal(mean_of_rows(numbered(0)), torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    assert torch.equal(mean_of_rows(numbered(0)[:0]), torch.zeros(1, 2, dtype=torch.float64))


def test_a_lost_message_is_left_out_of_the_mean_of_this_step():
    arrived = np.array([True, False, True, True])
    found = Server(4).mean(0, numbered(0), EVERYONE, arrived, latest=False)
    torch.testing.assert_close(found, numbered(0)[[0, 2, 3]].mean(0, keepdim=True))


@pytest.mark.parametrize("sparse", [True, False])
def test_of_a_lost_message_the_server_keeps_the_one_before(sparse):
    """Whether it is given the rows of everyone, or only of those that send."""
    server = Server(4)
    server.mean(0, numbered(0), EVERYONE, None, latest=True)
    sending = EVERYONE[[1, 2]] if sparse else EVERYONE
    arrived = np.array([False, True, False, False])
    found = server.mean(0, numbered(100)[sending], sending, arrived, latest=True)
    right = numbered(0)
    right[1] = numbered(100)[1]
    torch.testing.assert_close(found, right.mean(0, keepdim=True))
    found = server.mean(0, numbered(200)[[2]], EVERYONE[[2]], None, latest=True)
    right[2] = numbered(200)[2]
    torch.testing.assert_close(found, right.mean(0, keepdim=True))


def test_what_it_is_given_is_not_changed():
    server, given = Server(4), numbered(0)
    server.mean(0, given, EVERYONE, np.ones(4, bool), latest=True)
    server.mean(0, numbered(9)[[0]], EVERYONE[[0]], np.ones(4, bool), latest=True)
    assert torch.equal(given, numbered(0))
