"""`tacit.fix`: what it changes, what it keeps, and that what it gives can be trained."""

import logging
import re

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import InputError
from tacit.gradients import Recurrent


class Last(nn.Module):
    """A score from the last output of a recurrent layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.inner(inputs)[0][:, -1])


def images(*layers):
    return nn.Sequential(nn.Conv2d(1, 6, 3), *layers, nn.Flatten(), nn.Linear(24, 2))


# What is refused as it is, the shape of a record, and what it becomes, in words.
REFUSED = {
    "batch norm 1d": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)),
        (5,),
        r"1: BatchNorm1d became GroupNorm\(1, 6\)",
    ),
    "batch norm 2d": (
        lambda: images(nn.BatchNorm2d(6, affine=False)),
        (1, 4, 4),
        r"1: BatchNorm2d became GroupNorm\(3, 6\)",
    ),
    "batch norm of processes": (
        lambda: images(nn.SyncBatchNorm(6)),
        (1, 4, 4),
        r"1: SyncBatchNorm became GroupNorm\(3, 6\)",
    ),
    "instance norm": (
        lambda: images(nn.InstanceNorm2d(6, affine=True, track_running_stats=True)),
        (1, 4, 4),
        "InstanceNorm2d became one without running statistics",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.3), nn.Linear(6, 2)),
        (5,),
        r"1: Dropout became tacit\.Dropout\(0\.3\)",
    ),
    "dropout of channels": (
        lambda: images(nn.Dropout2d(0.25)),
        (1, 4, 4),
        r"Dropout2d became tacit\.Dropout\(0\.25\)",
    ),
    "alpha dropout": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.AlphaDropout(0.3), nn.Linear(6, 2)),
        (5,),
        "AlphaDropout became one with p = 0",
    ),
    "LSTM": (
        lambda: Last(nn.LSTM(3, 4, 2, batch_first=True, dropout=0.2)),
        (4, 3),
        "inner: LSTM became a Recurrent",
    ),
    "GRU": (lambda: Last(nn.GRU(3, 4, batch_first=True)), (4, 3), "inner: GRU became a Recurrent"),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 2)
        ),
        (3, 4),
        r"0\.self_attn: MultiheadAttention became one with dropout = 0",
    ),
}
EVERY_REFUSED = pytest.mark.parametrize("name", REFUSED)


def train(module, shape):
    draws = torch.Generator().manual_seed(1)
    nodes = [
        (torch.randn(6, *shape, generator=draws), torch.tensor([0, 1, 0, 1, 1, 0]))
        for _ in range(2)
    ]
    config = {
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.1, "clip": 1.0},
        "topology": {"graph": "complete"},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 1},
        "train": {"steps": 1, "batch": "all"},
    }
    return tacit.train(config, model=module, nodes=nodes, test=nodes[0])


@EVERY_REFUSED
def test_what_is_refused_names_fix_and_is_trained_once_fixed(name, caplog):
    make, shape, change = REFUSED[name]
    torch.manual_seed(0)
    module = make()
    with pytest.raises(InputError, match=r"tacit\.fix\(module\)"):
        train(module, shape)
    with caplog.at_level(logging.WARNING, logger="tacit.fix"):
        fixed = tacit.fix(module)
    assert any(re.search(change, line) for line in caplog.messages)
    assert any(re.search(change, line) for line in fixed.tacit_changes)
    result = train(fixed, shape)
    assert torch.isfinite(result.consensus).all()
    assert result.test_loss is not None
    assert type(result.model()) is type(module)


def test_the_module_is_left_as_it_is():
    module = images(nn.BatchNorm2d(6), nn.Dropout(0.5))
    before = {name: values.clone() for name, values in module.state_dict().items()}
    tacit.fix(module)
    assert [type(part).__name__ for part in module[1:3]] == ["BatchNorm2d", "Dropout"]
    for name, values in module.state_dict().items():
        assert values.equal(before[name])


def test_scale_shift_and_what_is_frozen_are_kept():
    norm = nn.BatchNorm2d(6, eps=1e-3)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    norm.bias.requires_grad_(False)
    fixed = tacit.fix(images(norm).eval())[1]  # type: ignore[index]
    assert isinstance(fixed, nn.GroupNorm)
    assert (fixed.eps, fixed.training) == (1e-3, False)
    assert fixed.weight.equal(norm.weight)
    assert fixed.bias.equal(norm.bias)
    assert (fixed.weight.requires_grad, fixed.bias.requires_grad) == (True, False)


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 1), (12, 6), (64, 32), (96, 32)]
)
def test_groups_divide_the_channels(channels, groups):
    fixed = tacit.fix(nn.BatchNorm2d(channels))
    assert isinstance(fixed, nn.GroupNorm)
    assert fixed.num_groups == groups


def test_an_lstm_keeps_its_weights_and_its_outputs():
    torch.manual_seed(0)
    module = Last(nn.LSTM(3, 4, batch_first=True))
    fixed, inputs = tacit.fix(module), torch.randn(2, 5, 3)
    assert list(fixed.state_dict()) == list(module.state_dict())
    torch.testing.assert_close(fixed(inputs), module(inputs))
    assert isinstance(fixed.inner, Recurrent)


def test_a_trained_model_loads_into_the_users_own_module():
    torch.manual_seed(0)
    module = Last(nn.GRU(3, 4, batch_first=True))
    result = train(tacit.fix(module), (4, 3))
    trained, inputs = result.model(), torch.randn(2, 4, 3)
    module.load_state_dict(trained.state_dict())
    torch.testing.assert_close(module.eval()(inputs), trained(inputs))


def test_a_part_that_stands_in_two_places_stays_one():
    shared = nn.BatchNorm1d(4)
    fixed = tacit.fix(nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared))
    assert fixed[1] is fixed[3]  # type: ignore[index]
    assert isinstance(fixed[1], nn.GroupNorm)  # type: ignore[index]
    assert len(fixed.tacit_changes) == 1  # type: ignore[arg-type]


def test_each_part_is_listed_and_each_kind_of_change_is_logged_once(caplog):
    fixed = tacit.fix(nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2), nn.Dropout(0.1)))
    change = "Dropout became tacit.Dropout(0.1), with a mask of each record's own"
    assert fixed.tacit_changes == (f"0: {change}", f"2: {change}")
    assert caplog.messages == [f"0: {change} (2 of them)"]


def test_nothing_to_change_is_a_copy(caplog):
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout(0.0))
    fixed = tacit.fix(module)
    assert fixed is not module
    assert (fixed.tacit_changes, caplog.messages) == ((), [])
    assert [type(part) for part in fixed.modules()] == [type(part) for part in module.modules()]


@pytest.mark.parametrize(
    ("module", "text"),
    [(3, "must be a torch"), (nn.Sequential(nn.LazyBatchNorm1d()), r"0 \(LazyBatchNorm1d\).*once")],
)
def test_what_cannot_be_fixed_is_refused(module, text):
    with pytest.raises(InputError, match=text):
        tacit.fix(module)
