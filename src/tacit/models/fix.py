"""A module that cannot be trained privately, changed into one that can.

| found | becomes |
|---|---|
| `BatchNorm1d`, `2d`, `3d`, `SyncBatchNorm` | `GroupNorm` with the same scale and shift |
| `InstanceNorm` with running statistics | the same without |
| `Dropout`, `Dropout1d`, `2d`, `3d` | `tacit.Dropout`, whose masks are the records' own |
| other dropout, and that of `MultiheadAttention` | p = 0 |
| `nn.LSTM`, `nn.GRU`, `nn.RNN` | the same computed record by record, from the same parameters |

Why these are refused: `tacit.gradients.probe`.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from tacit.errors import InputError
from tacit.gradients import Dropout, Recurrent
from tacit.gradients.probe import KEEPS_COMPUTED

GROUPS = 32
"""Groups of a normalisation at most, as in Wu and He 2018 (arXiv:1803.08494)."""

_LOG = logging.getLogger("tacit.fix")


def fix(module: nn.Module) -> nn.Module:
    """A copy of a module in which the parts that keep it from being trained privately are replaced.

    What was changed is logged (logger `tacit.fix`, a line for each kind of change), and stands, a
    line for each part, in the attribute `tacit_changes` of the copy. Weights are kept where they
    fit: a `GroupNorm` has the scale and the shift of its `BatchNorm`, whose running statistics are
    dropped, so that a trained network needs some training after it. An LSTM computes what it did
    before. The module itself is left as it is; without anything to change the copy is a plain one.

    Raises:
        InputError: on `module` if it is no `nn.Module`, or a part of it has no shape yet or keeps
            what was computed from its parameters.
    """
    if not isinstance(module, nn.Module):
        raise InputError("module", module, "must be a torch.nn.Module")
    for name, part in module.named_modules():
        if any(map(is_lazy, (*part.parameters(recurse=False), *part.buffers(recurse=False)))):
            where = f"{name} ({_kind(part)})" if name else _kind(part)
            raise InputError("module", where, "has no shape yet: call it once on an example")
        if any(getattr(value, "grad_fn", None) is not None for value in vars(part).values()):
            raise InputError("module", name or _kind(part), KEEPS_COMPUTED)
    fixed = copy.deepcopy(module)
    changes: dict[str, str] = {}
    made: dict[int, nn.Module] = {}  # of a part that stands in two places, one replacement
    kept = []  # so that no number of `made` is given twice
    for name, part in list(fixed.named_modules(remove_duplicate=False)):
        rule = next((rule for rule in _FIXES if rule.applies(part)), None)
        if id(part) not in made:
            if rule is None:
                continue
            kept.append(part)
            made[id(part)] = rule.replace(part).train(part.training)
            changes[name or "the module"] = f"{_kind(part)} became {rule.became(part)}"
        if name:
            fixed.set_submodule(name, made[id(part)])
        else:
            fixed = made[id(part)]
    for change, count in Counter(changes.values()).items():
        places = [name for name, found in changes.items() if found == change]
        _LOG.warning("%s: %s%s", places[0], change, f" ({count} of them)" if count > 1 else "")
    lines = (f"{name}: {change}" for name, change in changes.items())
    fixed.tacit_changes = tuple(lines)  # type: ignore[assignment]
    return fixed


@dataclass(frozen=True)
class _Fix:
    """What replaces the modules that it `applies` to, and what they became, in words."""

    applies: Callable[[nn.Module], bool]
    replace: Callable[[Any], nn.Module]
    became: Callable[[Any], str]


def _kind(part: nn.Module) -> str:
    return type(part).__name__


def _groups(norm: _BatchNorm) -> int:
    """As many groups as divide the channels, up to 32, and at least two channels in each.

    One group for `BatchNorm1d`, whose records may have one number a channel.
    """
    if isinstance(norm, nn.BatchNorm1d):
        return 1
    most = min(GROUPS, norm.num_features // 2)
    return next((count for count in range(most, 1, -1) if norm.num_features % count == 0), 1)


def _group_norm(norm: _BatchNorm) -> nn.Module:
    found = nn.GroupNorm(_groups(norm), norm.num_features, norm.eps, norm.affine)
    for name, values in norm.named_parameters():
        setattr(found, name, nn.Parameter(values.detach().clone(), values.requires_grad))
    return found


def _changed(**changes: Any) -> Callable[[nn.Module], nn.Module]:
    """The same module, with other attributes."""

    def changed(part: nn.Module) -> nn.Module:
        for name, value in changes.items():
            setattr(part, name, value)
        return part

    return changed


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)

_FIXES = (
    _Fix(
        lambda part: isinstance(part, _BatchNorm),
        _group_norm,
        lambda part: f"GroupNorm({_groups(part)}, {part.num_features})",
    ),
    _Fix(
        lambda part: isinstance(part, _InstanceNorm) and bool(part.track_running_stats),
        _changed(
            track_running_stats=False, running_mean=None, running_var=None, num_batches_tracked=None
        ),
        lambda part: "one without running statistics",
    ),
    _Fix(
        lambda part: isinstance(part, _DROPOUTS) and 0 < part.p < 1,
        lambda part: Dropout(part.p, whole_channels=type(part) is not nn.Dropout),
        lambda part: f"tacit.Dropout({part.p:g}), with a mask of each record's own",
    ),
    _Fix(
        lambda part: isinstance(part, _DropoutNd) and part.p > 0,
        _changed(p=0.0),
        lambda part: "one with p = 0: it has no per-record form",
    ),
    _Fix(
        lambda part: isinstance(part, nn.MultiheadAttention) and part.dropout > 0,
        _changed(dropout=0.0),
        lambda part: "one with dropout = 0: its dropout has no per-record form",
    ),
    _Fix(
        lambda part: type(part) in _RECURRENT,
        Recurrent,
        lambda part: "a Recurrent of the same parameters, computed record by record",
    ),
)
