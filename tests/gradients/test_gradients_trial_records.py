"""Modules are tried in the run's dtype, on records that can exist; what they cannot be is said."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import tacit
from tacit.errors import InputError
from tacit.gradients import LOSSES, build

torch.manual_seed(4)
NUMBERS = torch.randn(12, 6)
LABELS = torch.arange(12) % 2


def built(module, inputs=NUMBERS, dtype=torch.float32):
    return build(module, LOSSES["cross-entropy"], inputs, LABELS, dtype=dtype, device="cpu")


class Tutorial(nn.Module):
    """An LSTM as tutorials have it: its first state is made in `forward`."""

    def __init__(self, dtype=None):
        super().__init__()
        self.read, self.last, self.dtype = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2), dtype

    def forward(self, inputs):
        states = [torch.zeros(1, inputs.size(0), 5, dtype=self.dtype) for _ in range(2)]
        found, _ = self.read(inputs.view(-1, 2, 3), tuple(states))
        return self.last(found[:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_forward_makes_is_of_the_run(dtype):
    model = built(tacit.fix(Tutorial()), dtype=dtype)
    assert (model.path, model.in_dtype) == ("taps", True)
    at, mask = model.start(1, dtype, "cpu"), torch.ones(1, 12, dtype=torch.bool)
    for kind in (dtype, torch.float64):
        found = model.gradient(at.to(kind), NUMBERS[None], LABELS[None], mask, 1.0)
        assert bool(torch.isfinite(found.total).all())
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(InputError, match=r"dtype=x\.dtype, device=x\.device"):
        built(tacit.fix(Tutorial(torch.float32)))
    assert torch.get_default_dtype() == torch.float32


class Coded(nn.Module):
    """An embedding of a code that stands among floating-point numbers."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(724, 4), nn.Linear(9, 2)

    def forward(self, inputs):
        return self.last(torch.cat([inputs[:, :5], self.table(inputs[:, 5].long())], dim=1))


def test_codes_among_numbers_stay_codes():
    records = NUMBERS.clone()
    records[:, 5] = torch.arange(12) * 60 + 63  # up to 723
    assert built(Coded(), records).path == "functional"


def test_made_up_records_are_said_to_be_made_up():
    experiment = {
        "task": {"outputs": 2},
        "algorithm": {"name": "dp2-sgd"},
        "privacy": {"epsilon": 8.0},
        "train": {"steps": 1, "batch": 4},
    }
    with pytest.raises(InputError, match=r"made up.*no public ones.*integers, an input of its own"):
        tacit.train(experiment, model=Coded(), nodes=[(NUMBERS, LABELS)] * 2)


@pytest.mark.parametrize(
    "layer",
    [nn.PReLU(), nn.PReLU(4), nn.RMSNorm(4), nn.RMSNorm(4, eps=1e-3)],
    ids=["PReLU", "PReLU of channels", "RMSNorm", "RMSNorm with eps"],
)
@pytest.mark.parametrize("path", ["taps", "functional"])
def test_rules_of_layers(layer, path):
    first = nn.Linear(6, 4)
    if path == "functional":
        first = parametrizations.weight_norm(first)
    module = nn.Sequential(first, layer, nn.Linear(4, 2))
    with torch.no_grad():
        module[2].bias.fill_(0.1)
    model = built(module)
    assert model.path == path
    at, mask = model.start(1, torch.float64, "cpu"), torch.ones(1, 12, dtype=torch.bool)
    inputs = torch.cat([torch.zeros(1, 6), NUMBERS[1:]]).double()  # at 0 too
    found = model.gradient(at, inputs[None], LABELS[None], mask, None)
    plain = model.module(at[0])
    nn.functional.cross_entropy(plain(inputs), LABELS, reduction="sum").backward()
    right = torch.cat([part.grad.flatten() for part in plain.parameters()])
    assert torch.allclose(found.total[0], right, rtol=1e-9)
    assert type(plain[1]) is type(layer)


@pytest.mark.parametrize(
    "changed",
    [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 2)],
    ids=["weight_norm", "prune"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensors_from_before_training_are_refused(changed):
    module = nn.Sequential(changed(nn.Linear(6, 4)), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"0 \(Linear\).*parametrizations\.weight_norm"):
        built(module)
    with pytest.raises(InputError, match=r"parametrizations\.weight_norm"):
        tacit.fix(module)


def test_random_slopes_are_refused_whatever_the_records():
    module = nn.Sequential(nn.RReLU(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="LeakyReLU or PReLU"):
        built(module, NUMBERS.abs())
