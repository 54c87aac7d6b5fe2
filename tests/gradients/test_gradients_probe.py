"""Modules that are refused, with the module's path and what to use instead."""

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import InputError
from tacit.gradients import LOSSES, build

INPUTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 1, 0, 1])


def built(model, inputs=INPUTS):
    return build(model, LOSSES["cross-entropy"], inputs, TARGETS, dtype=torch.float32, device="cpu")


def nested(module):
    return nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Tanh(), module))


def frozen():
    return nn.Linear(3, 2).requires_grad_(False)


class Noisy(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)


class Counting(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Branching(nn.Linear):
    """Which weights are used depends on the record: nothing `torch.func` can batch."""

    def forward(self, x):
        y = super().forward(x)
        return y if bool(y.sum() > 0) else 2 * y


class Summed(nn.Linear):
    def forward(self, x):
        return super().forward(x).sum(dim=0)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nested(nn.BatchNorm1d(2)), r"1\.1 \(BatchNorm1d\).*GroupNorm or LayerNorm"),
        (nested(nn.BatchNorm2d(2)), r"BatchNorm2d.*GroupNorm.*tacit\.fix\(module\)"),
        (nested(nn.BatchNorm3d(2, track_running_stats=False)), "BatchNorm3d.*GroupNorm"),
        (nested(nn.SyncBatchNorm(2)), "SyncBatchNorm.*GroupNorm"),
        (nested(nn.LazyBatchNorm1d()), "LazyBatchNorm1d.*GroupNorm"),
        (
            nested(nn.InstanceNorm1d(2, track_running_stats=True)),
            r"1\.1 \(InstanceNorm1d\).*track_running_stats=False",
        ),
        (nested(nn.Dropout(0.1)), r"1\.1 \(Dropout\).*p=0, or tacit\.fix"),
        (nested(nn.AlphaDropout(0.1)), "AlphaDropout.*p=0"),
        (nested(nn.Dropout2d(0.1)), "Dropout2d.*p=0"),
        (nested(nn.Embedding(3, 2, max_norm=1.0)), "Embedding.*max_norm=None"),
        (nested(nn.EmbeddingBag(3, 2, max_norm=1.0)), "EmbeddingBag.*max_norm=None"),
        (nested(nn.Embedding(3, 2, scale_grad_by_freq=True)), "other records"),
        (nested(nn.LSTM(2, 2, 2, dropout=0.5)), r"LSTM.*dropout=0 or tacit\.fix"),
        (nested(nn.LSTMCell(2, 2)), r"LSTMCell.*nn\.Linear"),
        (nested(nn.GRU(2, 2)), r"1\.1 \(GRU\).*one record at a time; tacit\.fix\(module\)"),
        (nested(nn.MultiheadAttention(2, 1, dropout=0.5)), "MultiheadAttention.*dropout=0"),
        (nn.Sequential(nn.LazyLinear(2)), r"0 \(LazyLinear\).*no shape yet"),
        (nn.Sequential(nn.ReLU()), "no trainable parameters"),
        (frozen(), "no trainable parameters"),
        (Noisy(3, 2), "draws from torch's global generator"),
        (Counting(3, 2), r"calls \(buffer\).*must be constant"),
        (Pair(3, 2), "one tensor.*tuple"),
        (Summed(3, 2), r"a row a record, \[4, ...\]; it returned \[2\]"),
        (nn.Linear(5, 2), r"records of shape \[3\].*RuntimeError"),
        (nn.Unflatten(1, (3, 1)), "no trainable parameters"),
        (nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2))), r"\[2, 2\].*classes\]"),
        (nn.Sequential(nn.Linear(3, 2), nn.Softplus(), nn.Threshold(1e9, torch.inf)), "finite"),
    ],
)
def test_refused(model, text):
    with pytest.raises(InputError, match=text) as caught:
        built(model)
    assert caught.value.where == "task.model"
    assert "\n" not in str(caught.value)


def test_what_torch_func_cannot_batch_is_refused_in_one_line():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.branching = nn.LayerNorm(3), Branching(3, 2)

        def forward(self, x):
            return self.branching(self.norm(x))

    with pytest.raises(InputError, match=r"torch\.func") as caught:
        built(Normed())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "module", [nn.Dropout(0.0), nn.InstanceNorm1d(2), nn.Softmax(dim=1), nn.LayerNorm(2)]
)
def test_harmless_modules_are_accepted(module):
    model = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), module, nn.Flatten())
    assert built(model).parameters_count >= 16


def test_random_forward_leaves_the_global_generator_alone():
    model = Noisy(3, 2)
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="global generator"):
        built(model)
    assert torch.equal(before, torch.get_rng_state())


# Padding: records of several lengths, which modules are tempted to look at together.

SEQUENCES = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))


def lengths(x):
    return (x.abs().sum(2) > 0).sum(1)


class Padded(nn.Module):
    """A GRU on sequences that end in zeros."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        """Each record by itself: what is padding weighs nothing."""
        hidden, _ = self.gru(x)
        inside = torch.arange(x.shape[1], device=x.device) < lengths(x).unsqueeze(1)
        return self.head((hidden * inside.unsqueeze(2)).sum(1))


class SortedByLength(Padded):
    """Sorted for the recurrent layer, and put back: it mixes which record is whose."""

    def forward(self, x):
        order = torch.argsort(lengths(x), descending=True)
        return super().forward(x[order])[torch.argsort(order)]


class CutToTheLongest(Padded):
    """What a record is cut to depends on the longest of the batch."""

    def forward(self, x):
        hidden, _ = self.gru(x[:, : int(lengths(x).max())])
        return self.head(hidden[:, -1])


class WeighedByTheLongest(Padded):
    """The same without reading a value: a mean over the longest length of the batch."""

    def forward(self, x):
        hidden, _ = self.gru(x)
        return self.head(hidden.sum(1) / lengths(x).max())


def test_a_module_that_masks_its_padding_is_computed_by_taps():
    assert built(tacit.fix(Padded()), SEQUENCES).path == "taps"


def test_records_that_are_sorted_by_length_are_computed_one_at_a_time():
    engine = built(tacit.fix(SortedByLength()), SEQUENCES)
    assert engine.path == "functional"
    assert "other lengths" in engine.reason


def test_what_is_cut_to_the_longest_of_a_batch_is_refused():
    with pytest.raises(InputError, match="one record at a time"):
        built(tacit.fix(CutToTheLongest()), SEQUENCES)


def test_one_record_does_not_change_what_is_made_of_others():
    """A mean over the longest length is computed record by record: never by taps that mix."""
    torch.manual_seed(0)
    engine = built(tacit.fix(WeighedByTheLongest()), SEQUENCES)
    assert engine.path == "functional"
    weights = engine.start(1, torch.float64, "cpu")
    records = SEQUENCES.double().unsqueeze(0).clone()
    records[:, :, 3:] = 0
    changed = records.clone()
    changed[0, 0] = SEQUENCES[0].double()
    mask = torch.ones(1, 4, dtype=torch.bool)
    before, after = (
        engine.gradient(weights, x, TARGETS.unsqueeze(0), mask, 1.0).total
        for x in (records, changed)
    )
    assert (after - before).norm() <= 2.0


def test_values_that_decide_for_the_whole_batch_are_refused():
    """Also where no record of the trial shows it."""

    class Shifted(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y + 1 if bool((x > 1e6).any()) else y

    with pytest.raises(InputError, match="one record at a time"):
        built(Shifted(3, 2))
