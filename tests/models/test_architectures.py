"""The models by name and by `module:factory`.

A task's loss and metric by name and by `module:function`, from the file to the evaluation.
"""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tacit
from experiments import experiment, write_experiment, write_module
from experiments import tacit as command_line
from tacit.config import load_config
from tacit.config.schema import LOSS_NAMES
from tacit.errors import InputError
from tacit.gradients import LOSSES, build
from tacit.gradients.paths import FunctionalPath, RecordBatch, accumulate
from tacit.models import MODELS, build_model, resnet18
from tacit.models.architectures import find_loss
from tacit.report.wording import number_text


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        ("logistic", (5,), 1, 6),
        ("linear", (2, 3), 4, 28),
        ("mlp", (1, 28, 28), 10, 101_770),
        ("mlp", (64,), 10, 128 * 65 + 1290),
        ("cnn", (1, 28, 28), 10, 26_010),
        ("cnn", (1, 8, 8), 10, 160 + 4640 + 32 * (32 * 36 + 1) + 330),
        ("cnn", (3, 32, 32), 10, 3088 + 8224 + 32 * (32 * 25 + 1) + 330),
        ("cnn", (1, 4, 4), 2, 160 + 4640 + 32 * (32 * 4 + 1) + 66),
        ("cnn", (1, 19, 40), 2, None),
        ("cnn", (1, 20, 20), 2, None),
        ("cnn3", (1, 28, 28), 10, 26_362),
        ("cnn3", (3, 32, 32), 10, 448 + 4640 + 13_872 + 48 * 16 * 10 + 10),
        ("cnn3", (1, 4, 5), 2, None),
        ("cnn3", (2, 9, 7), 3, None),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (1, 8, 13), 2, 11_173_962 - 2 * 9 * 64 - 8 * 513),
    ],
)
def test_shapes_and_sizes(name, shape, outputs, parameters):
    model = build_model(name, input_shape=shape, outputs=outputs, seed=1)
    assert model(torch.zeros(3, *shape)).shape == (3, outputs)
    if parameters is not None:
        assert size(model) == parameters


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_start_depends_on_the_seed_alone(name):
    def start(seed):
        model = build_model(name, input_shape=(1, 8, 8), outputs=3, seed=seed)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    before = torch.get_rng_state()
    first = start(7)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, start(7))
    if name in {"linear", "logistic"}:
        assert not first.any()
    else:
        assert not torch.equal(first, start(8))


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cnn", (64,), 4),
        ("cnn", (8, 8), 4),
        ("cnn", (1, 3, 8), 4),
        ("cnn", (1, 2, 2), 4),
        ("cnn3", (1, 8, 3), 4),
        ("resnet18", (3, 1024), 8),
        ("resnet18", (3, 7, 32), 8),
    ],
)
def test_networks_of_convolutions_need_images(name, shape, smallest):
    text = rf"task\.model = '{name}'.*at least {smallest} x {smallest}; .*shape \("
    with pytest.raises(InputError, match=text):
        build_model(name, input_shape=shape, outputs=2, seed=0)


def test_resnet18_is_that_of_its_paper_with_groups_for_batches():
    """Layer by layer, from shapes and a plain forward pass written out once more."""
    model = resnet18((3, 12, 16), 5, width=4).double()
    kernels = [tuple(p.shape) for p in model.parameters() if p.ndim == 4]
    stages = [[(c, a, 3, 3), (c, c, 3, 3)] for a, c in ((4, 4), (4, 4))]
    for made in (8, 16, 32):
        stages += [
            [(made, made // 2, 3, 3), (made, made, 3, 3), (made, made // 2, 1, 1)],
            [(made, made, 3, 3), (made, made, 3, 3)],
        ]
    assert kernels == [(4, 3, 3, 3), *(kernel for stage in stages for kernel in stage)]
    assert [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] == [
        kernel[0] // 2 for kernel in kernels
    ]
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws).double())
    weights = iter([p.detach() for p in model.parameters()])

    def normalised(x, stride, given):
        kernel, scale, shift = given
        x = nn.functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)
        pairs = x.reshape(2, len(scale) // 2, -1)
        mean, variance = pairs.mean(2, keepdim=True), pairs.var(2, keepdim=True, correction=0)
        x = ((pairs - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
        return x * scale[:, None, None] + shift[:, None, None]

    def three():
        return [next(weights) for _ in range(3)]

    inputs = torch.randn(2, 3, 12, 16, generator=draws).double()
    x = normalised(inputs, 1, three()).clamp(min=0)
    for number, stage in enumerate(stages):
        stride = 2 if len(stage) == 3 else 1
        given = [three() for _ in stage]
        inner = normalised(normalised(x, stride, given[0]).clamp(min=0), 1, given[1])
        around = normalised(x, stride, given[2]) if len(stage) == 3 else x
        x = (inner + around).clamp(min=0)
        assert x.shape[2:] == [(12, 16), (6, 8), (3, 4), (2, 2)][number // 2]
    right = x.mean((2, 3)) @ next(weights).T + next(weights)
    torch.testing.assert_close(model(inputs).detach(), right, rtol=1e-10, atol=1e-10)
    wide = [m for m in resnet18((3, 8, 8), 2, width=64).modules() if isinstance(m, nn.GroupNorm)]
    assert {norm.num_groups for norm in wide} == {32}


def test_resnet18_is_private_and_its_gradients_are_tapped():
    # Images of 16 pixels: at 8 the last stage has one position, its norms divide by a variance
    # of almost nothing, and rounding grows to more than what is compared here.
    model = resnet18((3, 16, 16), 4, width=2)
    inputs = torch.randn(2, 2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.tensor([[0, 1], [2, 3]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    stacked = build(
        model,
        LOSSES["cross-entropy"],
        inputs[0],
        targets[0],
        dtype=torch.float64,
        device="cpu",
        memory_bytes=1,
    )
    assert (stacked.path, stacked.reason) == ("taps", "")
    assert stacked.parameters_count == size(model)
    shift = torch.randn(2, stacked.parameters_count, generator=torch.Generator().manual_seed(2))
    parameters = stacked.start(2, torch.float64, "cpu") + 0.1 * shift.double()
    other = FunctionalPath(
        copy.deepcopy(model).double().requires_grad_(False), stacked.loss, stacked.layout
    )
    for clip in (None, 0.5):
        found = stacked.gradient(parameters, inputs, targets, mask, clip)
        total = torch.empty_like(parameters)
        batch = RecordBatch(inputs, targets, mask)
        norms, losses = accumulate(other, parameters, batch, clip, total, 0)
        torch.testing.assert_close(found.total, total, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.norms, norms, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.losses, losses, rtol=1e-10, atol=1e-10)


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'mlp'\?"):
        build_model("mpl", input_shape=(2,), outputs=2, seed=0)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_of_resnet18_on_images_of_cifar10s_shape(clip):
    draws = torch.Generator().manual_seed(3)
    nodes = [
        (torch.rand(2, 3, 32, 32, generator=draws), torch.randint(0, 10, (2,), generator=draws))
        for _ in range(2)
    ]
    model = resnet18((3, 32, 32), 10, width=4)
    result = tacit.train(
        {
            "algorithm": {"name": "sgp", "learning_rate": 0.05, **({"clip": clip} if clip else {})},
            "train": {"steps": 1, "batch": "all"},
        },
        model=model,
        nodes=nodes,
    )
    assert result.job.model.path == "taps"
    assert result.parameters.shape == (2, size(model))
    assert bool(torch.isfinite(result.parameters).all())
    moved = result.parameters - nn.utils.parameters_to_vector(model.parameters()).detach()
    assert bool((moved.norm(dim=1) > 1e-4).all())
    if clip:
        assert bool((moved.norm(dim=1) <= 0.05 * clip).all())


FACTORIES = """
import torch
from torch import nn

value = 3

def network(input_shape, outputs):
    return nn.Linear(input_shape[0], outputs)

def only_outputs(*, outputs, bias=True):
    return nn.Linear(5, outputs, bias=bias)

def anything(**given):
    return nn.Linear(given["input_shape"][0], given["outputs"])

def nothing():
    return nn.Linear(2, 2)

def number():
    return 3

def broken():
    raise RuntimeError("out of\\nluck")

def needs_more(width):
    return nn.Linear(width, 2)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A module of factories in the current directory; its name."""
    name = f"factories_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    (tmp_path / f"{name}_broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("factory", "parameters"),
    [("network", 12), ("only_outputs", 18), ("anything", 12), ("nothing", 6)],
)
def test_a_users_factory(here, factory, parameters):
    name = f"{here}:{factory}"
    first = build_model(name, input_shape=(3,), outputs=3, seed=5)
    again = build_model(name, input_shape=(3,), outputs=3, seed=5)
    assert size(first) == parameters
    assert torch.equal(
        nn.utils.parameters_to_vector(first.parameters()),
        nn.utils.parameters_to_vector(again.parameters()),
    )


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (":netwrk", "has no function 'netwrk'; did you mean 'network'"),
        (":value", "has no function 'value'"),
        (":number", "must return a torch.nn.Module; it returned a int"),
        (":broken", "the function raised RuntimeError: out of"),
        (":needs_more", "the function raised TypeError"),
        (":", "must be module:function"),
        ("_broken:network", "importing the module raised ZeroDivisionError"),
        ("_missing:network", "there is no module"),
    ],
)
def test_a_factory_that_fails_is_one_line_on_task_model(here, suffix, text):
    with pytest.raises(InputError, match=text) as caught:
        build_model(here + suffix, input_shape=(3,), outputs=3, seed=0)
    assert caught.value.where == "task.model"
    assert "\n" not in str(caught.value)


SOURCE = """
    value = 3

    def numbers():
        inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        targets = torch.stack([inputs.sum(1), inputs[:, 0]], 1)
        return (inputs[:40], targets[:40]), (inputs[40:], targets[40:])

    def squares(outputs, targets):
        return (outputs - targets).square().mean()

    def summed(outputs, targets):
        return (outputs - targets).square().sum()

    def near(outputs, targets):
        return ((outputs - targets).abs().amax(1) < 1).double().mean()

    def each(outputs, targets):
        return (outputs - targets).abs().amax(1) < 1

    def overall(outputs, targets):
        return (outputs - targets).abs().mean()

    def margin(outputs, targets):
        gaps = (1 - outputs.gather(1, targets[:, None]) + outputs).clamp(min=0)
        return (gaps.sum(1) - 1).mean() / 10

    def second(outputs, targets):
        return (outputs.topk(2).indices == targets[:, None]).any(1).double().mean()

    def signs():
        (inputs, targets), test = numbers()
        return (inputs, (targets[:, 0] > 0).long()), (test[0], (test[1][:, 0] > 0).long())
"""


@pytest.fixture
def losses_module(tmp_path, monkeypatch):
    """A module in the current directory; its name."""
    monkeypatch.chdir(tmp_path)
    return write_module(tmp_path, SOURCE)


def regression(losses_module, **task):
    given = {"dataset": f"{losses_module}:numbers", "model": "linear", **task}
    return experiment(task=given, algorithm={"learning_rate": 0.1, "clip": 1.0})


def test_a_name_is_the_loss_of_the_table():
    assert find_loss("mse") is LOSSES["mse"]
    with pytest.raises(InputError, match=r"task\.loss = 'mes'.*did you mean 'mse'.*module:func"):
        find_loss("mes")


def test_an_experiment_knows_the_names_of_the_table():
    assert tuple(LOSSES) == LOSS_NAMES
    with pytest.raises(InputError, match=r"task\.loss = 'hinge'.*module:function"):
        load_config(experiment(task={"loss": "hinge"}))


def test_a_users_loss_trains_as_the_built_in_of_the_same_formula(losses_module):
    own = tacit.train(regression(losses_module, loss=f"{losses_module}:squares"))
    right = tacit.train(regression(losses_module, loss="mse"))
    assert own.plan.parameters == right.plan.parameters == 2 * 5
    assert own.epsilon == right.epsilon
    torch.testing.assert_close(own.parameters, right.parameters, rtol=1e-5, atol=1e-6)
    known = dict(right.test_loss)
    assert known.pop("baseline") > 0  # which is not known of a loss of one's own
    assert own.test_loss == pytest.approx(known, rel=1e-5)
    assert own.test_accuracy is right.test_accuracy is None


def test_a_users_loss_and_metric_from_the_file_to_the_evaluation(losses_module, tmp_path):
    task = {
        "model": "linear",
        "loss": f"{losses_module}:margin",
        "metric": f"{losses_module}:second",
    }
    file = write_experiment(tmp_path, task=task)
    answer = command_line("train", file, "--out", tmp_path / "run", "--quiet")
    assert answer.code == 0, answer.err
    score = command_line("evaluate", tmp_path / "run", "--trust", "--json").json

    test = tacit.data.load("digits", data_dir=tmp_path, seed=0).test
    weights = load_file(tmp_path / "run" / "model.safetensors")
    outputs = (test.inputs.flatten(1) @ weights["1.weight"].T + weights["1.bias"]).numpy()
    assert outputs.shape == (360, 10)
    hits = losses = 0.0
    for row, label in zip(outputs, test.targets.tolist(), strict=True):
        hits += sorted(row, reverse=True).index(row[label]) < 2
        losses += sum(max(0.0, 1 - row[label] + row[j]) for j in range(10) if j != label) / 10
    assert score["metrics"][task["metric"]] == pytest.approx(hits / 360)
    assert score["accuracy"] is None
    assert score["loss"] == pytest.approx(losses / 360, rel=1e-4)
    saved = command_line("evaluate", tmp_path / "run", "--trust")
    assert saved.out.startswith(f"digits: second {number_text(hits / 360)}, baseline ")


def test_a_metric_serves_a_loss_without_accuracy(losses_module):
    name = f"{losses_module}:near"
    result = tacit.train(regression(losses_module, loss="mse", metric=name))
    model, (inputs, targets) = result.model(), (result.job.test.inputs, result.job.test.targets)
    right = [
        max(abs(o - t) for o, t in zip(*pair, strict=True)) < 1
        for pair in zip(model(inputs).tolist(), targets.tolist(), strict=True)
    ]
    assert result.test_metrics[name].consensus == pytest.approx(sum(right) / 20)
    assert result.test_accuracy is None


def test_logistic_takes_integer_labels_from_0(losses_module):
    task = {"dataset": f"{losses_module}:signs", "model": "logistic", "loss": "logistic"}
    result = tacit.train(experiment(task=task, algorithm={"learning_rate": 1.0}))
    assert result.plan.parameters == 5
    outputs = result.model()(result.job.test.inputs).flatten().tolist()
    labels = result.job.test.targets.tolist()
    right = [(output > 0) == (label == 1) for output, label in zip(outputs, labels, strict=True)]
    assert result.test_accuracy["consensus"] == pytest.approx(sum(right) / len(right))
    assert sum(right) > 12


@pytest.mark.parametrize(
    ("key", "reference", "text"),
    [
        ("loss", ":squars", "has no function 'squars'; did you mean 'squares'"),
        ("loss", ":value", "has no function 'value'"),
        ("loss", "_missing:squares", "there is no module"),
        ("loss", ":", "must be module:function"),
        ("loss", ":summed", "each alone is"),
        ("loss", ":each", r"returned a tensor of shape \[1\]"),
        ("loss", ":numbers", "failed: TypeError"),
        ("metric", ":neer", "has no function 'neer'; did you mean 'near'"),
        ("metric", "_missing:near", "there is no module"),
        ("metric", ":each", r"one number for all of them; it returned a Tensor of shape \[20\]"),
        ("metric", ":numbers", "TypeError"),
    ],
)
def test_what_cannot_be_used_is_one_line_on_its_key(losses_module, tmp_path, key, reference, text):
    sections = regression(losses_module, **{"loss": "mse", key: losses_module + reference})
    with pytest.raises(InputError, match=text) as caught:
        tacit.train(sections, out=tmp_path / "run")
    assert (caught.value.where, caught.value.value) == (f"task.{key}", losses_module + reference)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
