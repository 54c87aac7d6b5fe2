"""Records of several inputs, and targets of any shape: packed, trained, and taken apart again."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import tacit
from tacit.analysis.audit.records import CHANGES, candidates, other_records
from tacit.data import as_dataset
from tacit.data.own import load_own, record_digests
from tacit.errors import InputError, RecordsError
from tacit.gradients import LOSSES, build, loss_from_mean
from tacit.gradients.inputs import pack

DRAWS = torch.Generator().manual_seed(3)
NUMBERS = torch.randn(24, 5, generator=DRAWS)
CODES = torch.randint(724, (24, 2), generator=DRAWS)
FLAGS = torch.rand(24, generator=DRAWS) > 0.5
LABELS = (NUMBERS[:, 0] > 0).long()
EXPERIMENT = {
    "task": {"outputs": 2},
    "topology": {"graph": "ring"},
    "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 5},
    "train": {"steps": 2, "batch": 4},
}


class Beside(nn.Module):
    """An embedding beside numbers, and a flag that turns the sign."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(724, 3), nn.Linear(11, 2)

    def forward(self, numbers, codes, flag):
        assert (codes.dtype, flag.dtype) == (torch.int64, torch.bool)
        rows = torch.cat([numbers, self.table(codes).flatten(1)], dim=1)
        return self.layer(rows) * torch.where(flag, 1.0, -1.0).unsqueeze(1).to(rows)


class Whole(Beside):
    """The same of one dictionary, or one tuple."""

    def forward(self, record):
        values = record.values() if isinstance(record, dict) else record
        by_name = dict(zip(("codes", "flag", "numbers"), values, strict=True))
        return super().forward(**(by_name if isinstance(record, dict) else record_of(record)))


def record_of(values):
    return dict(zip(("numbers", "codes", "flag"), values, strict=True))


class Items(TorchDataset):
    """Records as dictionaries with their label, as tokenised texts are."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        row = self.rows[place]
        named = {"numbers": NUMBERS[row], "codes": CODES[row], "flag": FLAGS[row]}
        return {**named, "labels": int(LABELS[row])}


def named(rows):
    return {"numbers": NUMBERS[rows], "codes": CODES[rows], "flag": FLAGS[rows]}


def ordered(rows):
    return NUMBERS[rows], CODES[rows], FLAGS[rows]


FORMS = {
    "dictionary": lambda rows: (named(rows), LABELS[rows]),
    "arrays": lambda rows: ({k: v.numpy() for k, v in named(rows).items()}, LABELS[rows].numpy()),
    "with labels": lambda rows: {**named(rows), "labels": LABELS[rows]},
    "items": lambda rows: Items(rows),
    "tuple": lambda rows: (ordered(rows), LABELS[rows]),
    "TensorDataset": lambda rows: TensorDataset(*ordered(rows), LABELS[rows]),
    "Dataset": lambda rows: tacit.Dataset(named(rows), LABELS[rows]),
}


def parts(form):
    return [FORMS[form](torch.arange(node, 24, 3).tolist()) for node in range(3)]


def trained(nodes, module, test=None, **changes):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = {key: {**value, **changes.get(key, {})} for key, value in EXPERIMENT.items()}
        return tacit.train(experiment, model=module(), nodes=nodes, test=test)


@cache
def of_dictionaries():
    return trained(parts("dictionary"), Beside, FORMS["dictionary"](list(range(24))))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_run_and_the_model_takes_what_was_given(form):
    everyone = list(range(24))
    result = trained(parts(form), Beside, FORMS[form](everyone))
    right = of_dictionaries()
    assert result.job.model.path == "taps"
    assert torch.allclose(result.parameters, right.parameters, atol=1e-6)
    made = result.model("consensus")(**named(everyone))
    share = float((made.argmax(1) == LABELS).double().mean())
    assert result.metrics["test_accuracy"][-1]["consensus"] == pytest.approx(share)
    whole = trained(parts(form), Whole)
    assert torch.allclose(whole.parameters, right.parameters, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", ["taps", "functional"])
def test_sums_are_those_of_records_alone(path, dtype):
    torch.manual_seed(2)
    module = Beside()
    if path == "functional":
        module.layer = nn.utils.parametrizations.weight_norm(module.layer)
    rows, packed = pack(named(slice(None)), "inputs")
    loss = LOSSES["cross-entropy"]
    model = build(module, loss, rows[:8], LABELS[:8], dtype=dtype, device="cpu", packed=packed)
    assert model.path == path
    at, mask = model.start(2, dtype, "cpu"), torch.ones(2, 12, dtype=torch.bool)
    found = model.gradient(at, rows.view(2, 12, -1), LABELS.view(2, 12), mask, 0.5)
    right = torch.zeros_like(at)
    plain = model.module(at[0])
    for record in range(24):
        plain.zero_grad()
        row = slice(record, record + 1)
        given = {**named(row), "numbers": NUMBERS[row].to(dtype)}
        nn.functional.cross_entropy(plain(**given), LABELS[row]).backward()
        gradient = torch.cat([part.grad.flatten() for part in plain.parameters()])
        right[record // 12] += gradient * min(1.0, 0.5 / float(gradient.norm()))
    assert torch.allclose(found.total, right, atol=1e-4)


def test_what_cannot_be_is_refused():
    nodes = parts("dictionary")
    with pytest.raises(RecordsError, match=r"1 of 24 records.*integers of codes.*16,777,216"):
        as_dataset(
            ({"codes": torch.where(torch.arange(24)[:, None] == 3, 2**24, CODES)}, LABELS),
            "nodes[0]",
        )
    with pytest.raises(InputError, match=r"same number of records"):
        as_dataset(({"a": NUMBERS[:3], "b": CODES}, LABELS), "nodes[0]")
    with pytest.raises(
        InputError, match=r"its forward.*numbers\) must take the inputs.*by name or in order"
    ):
        trained(nodes, lambda: Narrow("numbers"))
    with pytest.raises(InputError, match=r"nodes\[2\].*must be as node 0.*codes integer \[2\]"):
        trained(
            [*nodes[:2], ({**nodes[2][0], "codes": CODES[2::3].double()}, LABELS[2::3])], Beside
        )
    wrong = {**nodes[1][0], "codes": nodes[1][0]["codes"] + 724}
    with pytest.raises(RecordsError, match=r"nodes\[1\].*8 of 8 records.*every id"):
        trained([nodes[0], (wrong, LABELS[1::3]), nodes[2]], Beside)
    for key, value in (("input_bound", 1.0), ("augmentation", "shift"), ("features", "scattering")):
        with pytest.raises(InputError, match=rf"task\.{key}.*one input"):
            trained(nodes, Beside, task={key: value})


class Narrow(nn.Module):
    """Takes one of the inputs, by a keyword that has no other place."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, *, numbers):
        return self.layer(numbers)


def test_files_of_arrays_by_name(tmp_path):
    np.savez(
        tmp_path / "0.npz",
        targets=LABELS.numpy(),
        **{f"inputs.{name}": values.numpy() for name, values in named(slice(None)).items()},
    )
    (found,) = load_own(str(tmp_path / "{node}.npz"), [0])
    right = as_dataset(FORMS["dictionary"](slice(None)), "right")
    assert found.packed == right.packed
    assert torch.equal(found.inputs, right.inputs)
    key = b"key"
    assert (record_digests(found.inputs, key) == record_digests(right.inputs, key)).all()


def test_an_audit_puts_records_that_can_exist_in_the_place_of_others():
    result = trained(parts("dictionary"), Beside)
    job, data = result.job, result.job.train
    for change in CHANGES.values():
        other = other_records(job, change)
        assert other is not None, change.words
        codes = job.model.packed.unpacked(other.inputs)["codes"]
        assert bool(((codes >= 0) & (codes < 724)).all())
    batch = data.inputs[:4], data.targets[:4], data.inputs[4:8], data.targets[4:8]
    kinds = list(candidates(job, batch, result.parameters[0], seed=0))
    assert len(kinds) > 6
    for kind in kinds:
        codes = job.model.packed.unpacked(kind.inputs)["codes"]
        assert bool(((codes >= 0) & (codes < 724)).all())


IMAGES = torch.randn(24, 1, 4, 4, generator=DRAWS)
MASKS = torch.randint(3, (24, 4, 4), generator=DRAWS)
TOKENS = torch.randint(11, (24, 5), generator=DRAWS)
SEVERAL = (torch.rand(24, 3, generator=DRAWS) > 0.5).float()


class Reader(nn.Module):
    """Scores of the next token at every place, classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, tokens):
        return self.layer(self.table(tokens))


def ignoring(targets):
    """Targets of which some are not there, and none of the first record."""
    some = torch.where(torch.rand(targets.shape, generator=DRAWS) < 0.3, -100, targets)
    some[0] = -100
    return some


TASKS = {
    "masks": (lambda: nn.Conv2d(1, 3, 3, padding=1), IMAGES, ignoring(MASKS), 3, "cross-entropy"),
    "next tokens": (Reader, TOKENS, ignoring(TOKENS.roll(-1, 1)), 11, "cross-entropy"),
    "labels": (lambda: nn.Linear(5, 3), NUMBERS, SEVERAL, 3, "logistic"),
    "images": (
        lambda: nn.Conv2d(1, 1, 3, padding=1),
        IMAGES,
        torch.randn(24, 1, 4, 4, generator=DRAWS),
        None,
        "mse",
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_record_of_several_targets_has_the_mean_loss_of_its_own(task):
    make, inputs, targets, outputs, loss = TASKS[task]
    metric = {"images": ["mae"], "labels": ["auc", "accuracy"]}.get(task, ["f1", "accuracy"])
    nodes = [(inputs[node::3], targets[node::3]) for node in range(3)]
    changes = {"outputs": outputs, "loss": loss, "metric": metric}
    given = {key: value for key, value in changes.items() if value is not None}
    sections = {**EXPERIMENT, "task": given}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = tacit.train(sections, model=make(), nodes=nodes, test=(inputs, targets))
    assert bool(torch.isfinite(result.parameters).all())
    last = {key: values[-1] for key, values in result.metrics.items()}
    assert last["test_metrics"][metric[0]]["consensus"] >= 0
    model = result.model("consensus")
    means = []
    for record in range(24):
        row = slice(record, record + 1)
        made, own = model(inputs[row]), targets[row]
        made = made.movedim(-1, 1) if task == "next tokens" else made
        if loss == "cross-entropy" and not bool((own != -100).any()):
            means.append(0.0)
        elif loss == "cross-entropy":
            means.append(float(nn.functional.cross_entropy(made, own)))
        elif loss == "logistic":
            means.append(float(nn.functional.binary_cross_entropy_with_logits(made, own)))
        else:
            means.append(float(nn.functional.mse_loss(made, own)))
    assert last["test_loss"]["consensus"] == pytest.approx(sum(means) / 24, rel=1e-4)


def test_a_record_without_targets_has_gradient_zero_by_torchs_own_loss_too():
    targets = ignoring(MASKS)
    for loss in (LOSSES["cross-entropy"], loss_from_mean("own", nn.CrossEntropyLoss())):
        module = nn.Conv2d(1, 3, 3, padding=1)
        model = build(module, loss, IMAGES, targets, dtype=torch.float32, device="cpu")
        at, mask = model.start(1, torch.float32, "cpu"), torch.ones(1, 24, dtype=torch.bool)
        for clip in (1.0, None):
            found = model.gradient(at, IMAGES[None], targets[None], mask, clip)
            assert bool(torch.isfinite(found.total).all())
        alone = model.gradient(at, IMAGES[None, :1], targets[None, :1], mask[:, :1], 1.0)
        assert not alone.total.any()
        assert float(alone.norms) < 1e-15  # an upper bound
        assert float(alone.losses) == 0


@pytest.mark.filterwarnings("ignore")
def test_estimators_take_inputs_by_name_and_several_numbers():
    given = {name: values.numpy() for name, values in named(slice(None)).items()}
    settings = {"epsilon": "none", "algorithm": "dp2-sgd", "steps": 2, "batch": 4, "n_nodes": 2}
    torch.manual_seed(1)
    classifier = tacit.TacitClassifier(model=Beside(), classes=[0, 1], **settings)
    classes = classifier.fit(given, LABELS.numpy()).predict(given)
    trained_one = classifier.result_.model("consensus").double()
    right = trained_one(NUMBERS.double(), CODES, FLAGS).argmax(1)
    assert np.array_equal(classes, right.numpy())
    regressor = tacit.TacitRegressor(model="linear", **settings)
    numbers = regressor.fit(NUMBERS.numpy(), SEVERAL.numpy()).predict(NUMBERS.numpy())
    assert numbers.shape == (24, 3)
    with pytest.raises(InputError, match="must be an array of numbers"):
        classifier.fit({**given, "codes": np.array(["a"] * 24)}, LABELS.numpy())


@pytest.mark.filterwarnings("ignore")
def test_persons_of_several_rows_with_several_inputs_are_stacked():
    privacy = {**EXPERIMENT["privacy"], "unit": "column:person", "unit_rows": 3}
    units = [[f"{node}-{row // 2}" for row in range(8)] for node in range(3)]
    sections = {**EXPERIMENT, "privacy": privacy}
    result = tacit.train(sections, model=Beside(), nodes=parts("tuple"), units=units)
    assert (result.job.model.path, result.job.model.unit_rows) == ("taps", 3)
