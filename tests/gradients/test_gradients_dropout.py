"""Dropout: masks of the records' own, the same sums however the batch is made, and the bound."""

import pytest
import torch
from gradient_problems import OwnNorm, assert_moved_at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tacit
from tacit.errors import InputError
from tacit.gradients import LOSSES, Dropout, build, record_coins
from tacit.gradients.dropout import dropping

NODES, RECORDS, WIDTH = 3, 6, 8
SEED = 5


def network(normalise=nn.LayerNorm):
    """With `OwnNorm` there are no taps."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(WIDTH, 7), normalise(7), nn.Tanh(), Dropout(0.4), nn.Linear(7, 5), Dropout(0.2),
        nn.Linear(5, 3),
    )  # fmt: skip


def images():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 1), nn.ReLU(),
        Dropout(0.5, whole_channels=True), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


MAKES = {
    "taps": lambda: network(),
    "functional": lambda: network(OwnNorm),
    "whole channels": images,
}
EVERY_MAKE = pytest.mark.parametrize("name", MAKES)


def stacked(module, **options):
    draws = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(4, WIDTH, generator=draws), torch.tensor([0, 1, 2, 0])
    return build(
        module, LOSSES["cross-entropy"], inputs, targets, dtype=torch.float64, device="cpu",
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


def batch(nodes=NODES):
    draws = torch.Generator().manual_seed(4)
    inputs = torch.randn(nodes, RECORDS, WIDTH, generator=draws, dtype=torch.float64)
    targets = torch.randint(0, 3, (nodes, RECORDS), generator=draws)
    numbers = torch.stack([torch.randperm(50, generator=draws)[:RECORDS] for _ in range(nodes)])
    return inputs, targets, torch.ones(nodes, RECORDS, dtype=torch.bool), numbers


def coins_of(numbers, k=0, part=0):
    return record_coins(SEED, k, part, torch.arange(len(numbers)), numbers)


@EVERY_MAKE
def test_sums_are_those_of_plain_autograd_one_record_at_a_time(name):
    module = MAKES[name]()
    model = stacked(module)
    assert model.path == ("functional" if name == "functional" else "taps")
    inputs, targets, mask, numbers = batch()
    mask[1, 2] = False
    coins, at = coins_of(numbers), model.start(NODES, torch.float64, "cpu")
    clip = 0.7
    found = model.gradient(at, inputs, targets, mask, clip, coins=coins)
    alone = module.double().train()
    aim = model.aimed(clip, mask.sum(1), torch.float64)
    for node in range(NODES):
        right = torch.zeros_like(at[node])
        for record in mask[node].nonzero().flatten().tolist():
            with dropping(alone, coins[node, record : record + 1]):
                outputs = alone(inputs[node, record : record + 1])
            loss = nn.functional.cross_entropy(outputs, targets[node, record : record + 1])
            parts = torch.autograd.grad(loss, list(alone.parameters()))
            flat = torch.cat([part.flatten() for part in parts])
            assert isinstance(aim, Tensor)
            right += flat * min(1.0, float(aim[node] / flat.norm()))
            torch.testing.assert_close(found.losses[node, record], loss.detach())
        torch.testing.assert_close(found.total[node], right, rtol=1e-9, atol=1e-12)


@EVERY_MAKE
def test_a_record_has_its_mask_wherever_it_stands_and_whoever_else_is_there(name):
    model = stacked(MAKES[name]())
    inputs, targets, mask, numbers = batch()
    at, coins = model.start(NODES, torch.float64, "cpu"), coins_of(numbers)
    whole = model.gradient(at, inputs, targets, mask, 1.0, coins=coins)
    order = torch.tensor([4, 0, 5, 2])
    part = tuple(values[:, order] for values in (inputs, targets, mask, coins))
    moved = model.gradient(at, *part[:3], 1.0, coins=part[3])
    torch.testing.assert_close(moved.losses, whole.losses[:, order])
    torch.testing.assert_close(moved.norms, whole.norms[:, order])


@EVERY_MAKE
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_memory_bound_and_a_process_of_its_own_change_nothing(name, clip):
    module = MAKES[name]()
    model, small = stacked(module), stacked(module, memory_bytes=2_000)
    inputs, targets, mask, numbers = batch()
    at, coins = model.start(NODES, torch.float64, "cpu"), coins_of(numbers)
    whole = model.gradient(at, inputs, targets, mask, clip, coins=coins).total
    cut = small.gradient(at, inputs, targets, mask, clip, coins=coins).total
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-12)
    own = record_coins(SEED, 0, 0, torch.tensor([2]), numbers[2:])
    alone = model.gradient(at[2:], inputs[2:], targets[2:], mask[2:], clip, coins=own).total
    torch.testing.assert_close(alone, whole[2:], rtol=1e-9, atol=1e-12)


def test_steps_parts_nodes_and_records_have_masks_of_their_own():
    numbers = torch.arange(40).expand(30, -1)
    found = [coins_of(numbers, k, part) for k in range(4) for part in range(3)]
    assert len(torch.unique(torch.stack(found))) == 12 * 30 * 40


def test_layers_do_not_share_a_mask():
    pair = nn.ModuleList([Dropout(0.5), Dropout(0.5)]).train()
    ones = torch.ones(1, 4096)
    with dropping(pair, torch.tensor([3])):
        first, second = pair[0](ones), pair[1](ones)
    assert 0.45 < float((first == second).double().mean()) < 0.55


@settings(max_examples=20, deadline=None)
@given(p=st.floats(0.01, 0.95), seed=st.integers(0, 2**63 - 1))
def test_a_share_p_of_the_numbers_is_dropped_and_the_mean_is_kept(p, seed):
    layer = Dropout(p)
    coins = record_coins(seed, 0, 0, torch.arange(8), torch.arange(8).expand(8, -1)).flatten()
    with dropping(layer, coins):
        found = layer(torch.ones(64, 1024, dtype=torch.float64))
    share = (found == 0).double().mean()
    deviation = (p * (1 - p) / found.numel()) ** 0.5
    assert abs(float(share) - p) < 6 * deviation  # of 65,536 numbers: one in 10^9
    assert torch.allclose(found[found != 0], torch.tensor(1 / (1 - p), dtype=torch.float64))
    # Neither records nor places are alike: no column, no row is far from p.
    assert (found == 0).double().mean(0).sub(p).abs().max() < 8 * (p * (1 - p) / 64) ** 0.5
    assert (found == 0).double().mean(1).sub(p).abs().max() < 8 * (p * (1 - p) / 1024) ** 0.5


def test_neighbouring_masks_are_not_correlated():
    coins = record_coins(0, 0, 0, torch.arange(1), torch.arange(512)[None]).flatten()
    layer = Dropout(0.5)
    with dropping(layer, coins):
        kept = (layer(torch.ones(512, 512, dtype=torch.float64)) != 0).double() - 0.5
    for pair in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert abs(float((pair[0] * pair[1]).mean())) * 4 < 6 / 512


@EVERY_MAKE
def test_one_record_moves_the_sum_by_the_clip_at_most(name):
    model = stacked(MAKES[name]())
    inputs, targets, mask, numbers = batch(1)
    at, coins = model.start(1, torch.float64, "cpu"), coins_of(numbers)
    clip, draws = 0.3, torch.Generator().manual_seed(9)
    before = model.gradient(at, inputs, targets, mask, clip, coins=coins).total
    for size in (0.0, 1.0, 1e3, 1e30, float("inf")):
        other = inputs.clone()
        other[0, 2] = torch.randn(WIDTH, generator=draws, dtype=torch.float64) * size
        after = model.gradient(at, other, targets, mask, clip, coins=coins).total
        gone = mask.clone()
        gone[0, 2] = False
        without = model.gradient(at, other, targets, gone, clip, coins=coins).total
        for right, bound in ((before, 2 * clip), (without, clip)):
            assert_moved_at_most(after, right, bound)


def test_in_evaluation_nothing_is_dropped():
    module = network()
    model, inputs = stacked(module), batch(1)[0][0]
    found = model.outputs(model.start(1, torch.float64, "cpu"), inputs)[0]
    torch.testing.assert_close(found, module.double().eval()(inputs))


def test_without_coins_the_engine_refuses():
    model = stacked(network())
    inputs, targets, mask, _ = batch()
    with pytest.raises(ValueError, match="coins"):
        model.gradient(model.start(NODES, torch.float64, "cpu"), inputs, targets, mask, 1.0)


def test_an_axis_that_is_not_of_records_is_refused():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dropout = nn.Linear(WIDTH, 3), Dropout(0.5)

        def forward(self, inputs):
            return self.dropout(self.layer(inputs).T).T

    with pytest.raises(InputError, match="the first axis must be the 4 records") as caught:
        stacked(Turned())
    assert caught.value.where == "task.model"


def test_a_mask_by_the_place_in_the_batch_is_still_found_out():
    """Such a layer mixes records: who comes before decides the mask. Alone, each is the first."""

    class Placed(nn.Module):
        def forward(self, inputs):
            places = torch.arange(len(inputs)).unsqueeze(1) + torch.arange(inputs.shape[1])
            return inputs * (places % 2)

    model = stacked(nn.Sequential(nn.Linear(WIDTH, 5), Placed(), nn.Linear(5, 3)))
    assert model.path == "functional"
    assert "differ from those of its records alone" in model.reason


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_chance_that_is_none_is_refused(p):
    with pytest.raises(InputError, match=r"below 1"):
        Dropout(p)


def experiment(**algorithm):
    return {
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0, **algorithm},
        "topology": {} if "state" in algorithm else {"graph": "ring"},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 1},
        "train": {"steps": 4, "batch": 5, "dtype": "float64"},
    }


def nodes():
    draws = torch.Generator().manual_seed(3)
    return [
        (torch.randn(count, WIDTH, generator=draws), torch.randint(0, 3, (count,), generator=draws))
        for count in (20, 30, 25)
    ]


def test_a_run_can_be_repeated_and_dropout_does_something():
    state = torch.get_rng_state()
    first = tacit.train(experiment(), model=network(), nodes=nodes())
    torch.manual_seed(99)
    again = tacit.train(experiment(), model=network(), nodes=nodes())
    assert first.parameters.equal(again.parameters)
    plain = network()
    for layer in plain.modules():
        if isinstance(layer, Dropout):
            layer.p = 0.0
    assert not tacit.train(experiment(), model=plain, nodes=nodes()).parameters.equal(
        first.parameters
    )
    torch.set_rng_state(state)


@pytest.mark.parametrize(("name", "state"), [("privsgp-vr", "public"), ("privsgp-vr", "private")])
def test_algorithms_that_keep_gradients_refuse_dropout(name, state):
    config = experiment(name=name, state=state)
    with pytest.raises(InputError, match="masks change from step to step"):
        tacit.train(config, model=network(), nodes=nodes())
