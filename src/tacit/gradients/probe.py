"""Which modules can be trained with a clipped gradient for each record: refused, or proved.

Clipping bounds what one record does to a step only if a record's gradient is a function of that
record alone, and a run can be repeated only if nothing but the run draws random numbers.
`refuse_module` and `refuse_outputs` name what breaks that, and what to use instead.

`mismatch` then proves, on a few records, that a gradient path computes what autograd computes for
each alone. The test is exact in kind and cheap: two nodes with different weights, a few records
each, float64: three, and of models with more than a million parameters two, since each costs such a
model a quarter of a second. Two suffice for all that is listed here: whatever one record does to
another, or one node to another, shows in values, and no two weights, inputs or norms are equal.

It finds whatever a static look at a module cannot: records that mix, a layer called twice, a
parameter used outside its layer, a view that assumes the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from tacit.errors import InputError, describe
from tacit.gradients.contributions import Layout
from tacit.gradients.dropout import dropping, record_coins
from tacit.gradients.inputs import Packed, described
from tacit.gradients.losses import Loss
from tacit.gradients.paths import GradientPath, RecordBatch, accumulate

_NODES = 2
_RECORDS = 3
_LARGE = 1_000_000  # parameters
_RECORDS_OF_LARGE = 2
_SPREAD = 0.05
_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Probe:
    """A small batch and what is right for it, in float64.

    Inputs, targets and coins are `[nodes, b * rows, ...]`, and shares `[nodes, b, rows]`, where a
    record is more than one row. `packed` says how their inputs lie, where they have several.
    """

    parameters: Tensor
    inputs: Tensor
    targets: Tensor
    clip: float
    total: Tensor
    norms: Tensor
    losses: Tensor
    coins: Tensor
    shares: Tensor | None = None
    packed: Packed | None = None

    def single(self) -> Probe:
        """The same batch in single precision, for which nothing is known to be right."""
        single: dict[str, Any] = {
            name: values.float()
            for name, values in vars(self).items()
            if isinstance(values, Tensor) and values.is_floating_point()
        }
        return replace(self, **single)

    @property
    def rows(self) -> int:
        """Rows of a record."""
        return 1 if self.shares is None else self.shares.shape[2]

    @property
    def mask(self) -> Tensor:
        """All True, `[nodes, b]`."""
        return torch.ones_like(self.norms, dtype=torch.bool)

    @property
    def batch(self) -> RecordBatch:
        """All of it, as a path takes it."""
        return RecordBatch(self.inputs, self.targets, self.mask, self.coins, self.shares)


def probe_of(
    module: nn.Module,
    loss: Loss,
    layout: Layout,
    inputs: Tensor,
    targets: Tensor,
    rows: int = 1,
    packed: Packed | None = None,
) -> Probe:
    """Two nodes' batch from examples `[few, ...]`, solved one record at a time by plain autograd.

    A record is the weighted sum over `rows` rows, no two of which are equal.

    `module` is in float64. Weights and inputs are perturbed, so that neither equal weights nor
    equal records hide a mistake; each input is scaled, which keeps signs and zeros. What may be a
    code stays as it is: integers, and what is whole in all examples and not 0 or 1.
    """
    device = inputs.device
    generator = torch.Generator().manual_seed(20)
    many = _RECORDS_OF_LARGE if layout.size > _LARGE else _RECORDS
    count = _NODES * many * rows
    order = torch.arange(count, device=device) % inputs.shape[0]
    records, labels = inputs[order], targets[order]
    if records.is_floating_point():
        scales = 0.5 + torch.rand(records.shape, generator=generator, dtype=torch.float64)
        records = _scaled(records.double(), scales.to(device), inputs, many * rows)
        records = records if packed is None else packed.possible(records, inputs)
    if labels.is_floating_point():
        labels = labels.double()
    # Uniform, since 22 million normals take as long as a whole backward pass of ResNet-18.
    noise = torch.rand(_NODES, layout.size, generator=generator, dtype=torch.float64)
    parameters = noise.to(device).sub_(0.5).mul_(math.sqrt(12) * _SPREAD)
    parameters += layout.flatten(module)
    records = records.view(_NODES, many * rows, *records.shape[1:])
    labels = labels.view(_NODES, many * rows, *labels.shape[1:])

    # Kept as autograd gives them: for large models a copy is what takes the time.
    gradients: dict[tuple[int, int], tuple[Tensor, ...]] = {}
    norms = torch.zeros(_NODES, many, dtype=torch.float64, device=device)
    losses = torch.zeros(_NODES, many, dtype=torch.float64, device=device)
    coins = _coins(_NODES, many * rows, device)
    shares = torch.rand(_NODES, many, rows, generator=generator, dtype=torch.float64).to(device)
    shares = shares.add_(0.5).div_(rows) if rows > 1 else torch.ones_like(shares)
    for node in range(_NODES):
        weights = {
            slot.name: slot.view(parameters)[node].detach().requires_grad_()
            for slot in layout.slots
        }
        for record in range(many):
            with torch.enable_grad():
                each = []
                for row in range(record * rows, (record + 1) * rows):
                    with dropping(module, coins[node, row].unsqueeze(0)):
                        shown = records[node, row].unsqueeze(0)
                        outputs = functional_call(module, weights, (shown,))
                    each.append(loss.per_record(outputs, labels[node, row].unsqueeze(0))[0])
                value = (torch.stack(each) * shares[node, record]).sum()
                found = torch.autograd.grad(
                    value, list(weights.values()), allow_unused=True, materialize_grads=True
                )
            losses[node, record] = value.detach()
            gradients[node, record] = found
            norms[node, record] = torch.stack([part.norm() for part in found]).norm()

    finite = norms[torch.isfinite(norms) & (norms > 0)]
    clip = finite.median().item() if finite.numel() else 1.0
    total = torch.zeros_like(parameters)
    for node, record in torch.isfinite(norms).nonzero().tolist():
        factor = clip / max(norms[node, record].item(), clip)
        for slot, part in zip(layout.slots, gradients[node, record], strict=True):
            total[node, slot.start : slot.stop].add_(part.reshape(-1), alpha=factor)
    own = shares if rows > 1 else None
    return Probe(parameters, records, labels, clip, total, norms, losses, coins, own, packed)


def _scaled(records: Tensor, scales: Tensor, examples: Tensor, each: int) -> Tensor:
    """Records times scales, but where examples may be codes, unless two of a node become equal."""
    whole = ((examples == examples.round()).all(dim=0)) & (examples.abs() > 1).any(dim=0)
    kept = torch.where(whole, records, records * scales)
    if any(
        len(torch.unique(part, dim=0)) < len(part) for part in torch.split(kept.flatten(1), each)
    ):
        return records * scales
    return kept


def mismatch(path: GradientPath, probe: Probe) -> str | None:
    """In what `path` differs from the truth of `probe`, or None if in nothing.

    Whatever `path` raises passes through.
    """
    total = torch.empty_like(probe.total)
    norms, losses = accumulate(path, probe.parameters, probe.batch, probe.clip, total, 0)
    for what, found, right in (
        ("losses", losses, probe.losses),
        ("norms", norms, probe.norms),
        ("clipped sums", total, probe.total),
    ):
        if not _close(found, right):
            return f"its {what} for a batch differ from those of its records alone"
    return None


def _close(found: Tensor, right: Tensor) -> bool:
    # Without NaN and infinity, in two passes: for ResNet-18, `allclose` and what it needs took a
    # third of the whole proof.
    if right.numel():
        scale = max(bound.abs().item() for bound in torch.aminmax(right))
        furthest = (found - right).abs_().max().item()
        if math.isfinite(scale) and math.isfinite(furthest):
            return furthest <= _TOLERANCE * scale + 1e-300
    sizes = torch.nan_to_num(right, nan=0.0, posinf=0.0, neginf=0.0).abs_()
    scale = sizes.max().item() if right.numel() else 0.0
    return torch.allclose(
        found, right, rtol=_TOLERANCE, atol=_TOLERANCE * scale + 1e-300, equal_nan=True
    )


KEEPS_COMPUTED = (
    "it keeps a tensor that was computed from its parameters before training (as weight_norm, "
    "spectral_norm and prune of torch.nn.utils do); use "
    "torch.nn.utils.parametrizations.weight_norm, call prune.remove, or compute it in forward"
)


@dataclass(frozen=True)
class _Rule:
    """Modules of these types to which `applies` are refused with the advice `instead`."""

    types: tuple[type[nn.Module], ...]
    applies: Callable[[nn.Module], bool]
    instead: str


_RULES = (
    _Rule(
        (_BatchNorm,),
        lambda module: True,
        "batch statistics mix records, so a record's gradient cannot be clipped; "
        "use GroupNorm or LayerNorm, or tacit.fix(module)",
    ),
    _Rule(
        (_InstanceNorm,),
        lambda module: bool(module.track_running_stats),
        "running statistics of private records would be kept without noise; "
        "use track_running_stats=False, GroupNorm or LayerNorm, or tacit.fix(module)",
    ),
    _Rule(
        (_DropoutNd,),
        lambda module: float(getattr(module, "p", 0.0)) > 0,
        "it draws from torch's global generator, so a run could not be repeated; "
        "use tacit.Dropout, p=0, or tacit.fix(module)",
    ),
    _Rule(
        (nn.RNNBase, nn.MultiheadAttention),
        lambda module: float(getattr(module, "dropout", 0.0)) > 0,
        "its dropout draws from torch's global generator, so a run could not be repeated; "
        "use dropout=0 or tacit.fix(module)",
    ),
    _Rule(
        (nn.RNNBase,),
        lambda module: any(parameter.requires_grad for parameter in module.parameters()),
        "torch cannot differentiate it one record at a time; tacit.fix(module) computes the same "
        "from the same parameters in a way that it can",
    ),
    _Rule(
        (nn.RNNCellBase,),
        lambda module: any(parameter.requires_grad for parameter in module.parameters()),
        "torch cannot differentiate it one record at a time; use nn.LSTM, nn.GRU or nn.RNN with "
        "tacit.fix, or write the cell with nn.Linear",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: bool(module.scale_grad_by_freq),
        "a record's gradient would depend on how often its ids are in other records; "
        "use scale_grad_by_freq=False",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: module.max_norm is not None,
        "it changes its weight in a forward pass; use max_norm=None",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: bool(module.sparse),
        "sparse gradients cannot be added up with noise; use sparse=False (only the rows that a "
        "record looks up are kept anyway)",
    ),
    _Rule(
        (nn.RReLU,),
        lambda module: True,
        "it draws its slopes from torch's global generator, so a run could not be repeated; use "
        "LeakyReLU or PReLU",
    ),
    _Rule(
        (nn.Module,),
        lambda module: any(
            isinstance(value, Tensor) and value.grad_fn is not None
            for value in vars(module).values()
        ),
        KEEPS_COMPUTED,
    ),
    _Rule(
        (nn.Module,),
        lambda module: any(
            is_lazy(tensor)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        ),
        "it has no shape yet; call the model once on an example, or give the sizes",
    ),
)


def refuse_module(module: nn.Module) -> None:
    """Raise `InputError` on `task.model` for a module that cannot be trained privately.

    Refused are batch normalisation, instance normalisation with running statistics, torch's dropout
    where it is not zero, torch's LSTM, GRU and RNN where they are trained, embeddings that count
    ids over a batch or change in a forward pass, modules that keep what was computed from
    parameters, lazy modules, and a model without trainable parameters.
    """
    for name, child in module.named_modules():
        for rule in _RULES:
            if isinstance(child, rule.types) and rule.applies(child):
                kind = type(child).__name__
                raise InputError("task.model", f"{name} ({kind})" if name else kind, rule.instead)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        expected = "it has no trainable parameters; set requires_grad on those to be trained"
        raise InputError("task.model", type(module).__name__, expected)


def refuse_outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs of `module` for the examples `inputs` `[few, ...]`, if they can be used.

    Raises `InputError` on `task.model` if the forward pass fails, draws random numbers, changes a
    buffer, or does not return one finite tensor `[few, ...]`. The global generators are left as
    they were.
    """

    def refused(expected: str, where: str = type(module).__name__) -> InputError:
        return InputError("task.model", where, expected)

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [inputs.device.index or 0] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        before = _generator_states(inputs.device)
        coins = _coins(1, len(inputs), inputs.device)[0]
        try:
            with dropping(module, coins):
                outputs: object = module(inputs)
        except InputError:
            raise
        except Exception as error:
            raise refused(
                f"it must accept the data, records of shape {list(inputs.shape[1:])} and type "
                f"{inputs.dtype}; {describe(error)}"
            ) from error
        drawn = any(
            not torch.equal(old, new)
            for old, new in zip(before, _generator_states(inputs.device), strict=True)
        )
    if drawn:
        raise refused(
            "its forward pass draws from torch's global generator, so a run could not be "
            "repeated; remove what is random in it, or use tacit.Dropout (of a Hugging Face model, "
            "set the attention dropout in its configuration to 0)"
        )
    for name, buffer in module.named_buffers():
        if name not in buffers or not _same(buffer, buffers[name]):
            raise refused(
                "the forward pass changes this buffer, which would keep traces of private records "
                "without noise; buffers must be constant",
                f"{name} (buffer)",
            )
    if not isinstance(outputs, Tensor):
        raise refused(
            f"it must return one tensor with a row a record, [{inputs.shape[0]}, ...]; it returned "
            f"a {described(outputs)}: say which part is the prediction, as output= in tacit.train "
            "or task.output in the file"
        )
    if outputs.shape[:1] != inputs.shape[:1]:
        raise refused(
            f"it must return one tensor with a row a record, [{inputs.shape[0]}, ...]; "
            f"it returned {list(outputs.shape)}"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise refused("its output for the first records must be finite numbers")
    return outputs


def _coins(nodes: int, records: int, device: torch.device) -> Tensor:
    """Coins of made-up records, `[nodes, records]`, no two the same."""
    rows = torch.arange(nodes, device=device)
    return record_coins(0, 0, 0, rows, torch.arange(records, device=device).expand(nodes, -1))


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)


def _generator_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
