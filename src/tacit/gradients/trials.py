"""Trials of a gradient path by the probe: whether it is right, and whether it mixes records.

What the trials show, and what they cannot: `docs/proofs/clipped-sums.md`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn

from tacit.errors import InputError, describe
from tacit.gradients.contributions import Contribution
from tacit.gradients.inputs import InputPart, Packed
from tacit.gradients.paths import GradientPath, RecordBatch
from tacit.gradients.probe import Probe, mismatch


def mixing(path: GradientPath, probe: Probe, original: nn.Module, exact: nn.Module) -> str:
    """Whether a record reaches what `path` computes of other records; empty if none does.

    `path` is of `exact`, which is `original`, the module as it was given, in float64 and without
    parameters that require grad.
    """
    return (
        _reached(path, probe, _extremes(exact, probe))
        or _joining(path, original, probe)
        or _branching(exact, probe)
    )


def disproof(path: GradientPath, probe: Probe) -> str:
    """Why `path` is not right for the probe's module; empty if it is."""
    try:
        return mismatch(path, probe) or ""
    except InputError as error:
        return f"{error.value}: {error.expected}"
    except Exception as error:
        return describe(error)


def failure(path: GradientPath, probe: Probe) -> str:
    """Why `path` does not run in the dtype of the run, which is the probe's; empty if it does.

    Raises:
        InputError: on `task.model`, if layers compute in another dtype (`precision.taken`).
    """
    try:
        parts_of(path, probe)
    except InputError:
        raise
    except Exception as error:
        return describe(error)
    return ""


def parts_of(path: GradientPath, probe: Probe) -> list[Contribution]:
    """The contributions to the probe of a record for each node."""
    rows = (part[:, : probe.rows] for part in (probe.inputs, probe.targets, probe.coins))
    inputs, targets, coins = rows
    shares = None if probe.shares is None else probe.shares[:, :1]
    batch = RecordBatch(inputs, targets, probe.mask[:, :1], coins, shares)
    return path.contributions(probe.parameters, batch, norms=True)[0]


def _extremes(module: nn.Module, probe: Probe) -> tuple[float, ...]:
    """The values of an extreme record: of integers, the ends of what every embedding takes."""
    if probe.inputs.is_floating_point():
        return 1e30, -1e30, math.inf
    sizes = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return 0, min(sizes) - 1 if sizes else int(probe.inputs.max())


def _reached(path: GradientPath, probe: Probe, extremes: tuple[float, ...]) -> str:
    """Whether an extreme record of one node changes anything of others; empty if it does not."""
    others = torch.ones_like(probe.mask)
    others[0, 0] = False
    try:
        right = _told(path, probe, probe.inputs, others)
        for extreme in extremes:
            inputs = probe.inputs.clone()
            inputs[0, 0] = extreme
            if probe.packed is not None:
                inputs = probe.packed.possible(inputs, probe.inputs)
            if not _alike(_told(path, probe, inputs, others), right):
                return "an extreme record changes what the module makes of other records"
    except Exception as error:
        return f"an extreme record ends its forward pass: {describe(error)}"
    return ""


def _joining(path: GradientPath, original: nn.Module, probe: Probe) -> str:
    """Whether records of several lengths change each other; empty if they do not.

    Sequences that end in padding are where modules look at all of a batch at once: at the longest,
    or at the order of lengths. Dense records do not show that. What the path makes of each record
    in a batch of records that end in zeros, or in the id of a padding, must be what it makes of the
    record alone.
    """
    if probe.inputs.ndim < 3:
        return ""
    packed = probe.packed
    integers = not probe.inputs.is_floating_point() or (packed is not None and packed.has_ids)
    pads = {0} | {
        part.padding_idx
        for part in original.modules()
        if integers and isinstance(part, nn.Embedding) and part.padding_idx is not None
    }
    for pad in sorted(pads):
        inputs = _padded(probe.inputs, pad, packed)
        try:
            together = _told(path, probe, inputs, probe.mask)
            told = []
            for record in range(probe.mask.shape[1]):  # among copies of itself: of the same shape
                own = inputs[:, record * probe.rows : (record + 1) * probe.rows]
                copies = own.repeat(1, probe.mask.shape[1], *(1,) * (own.ndim - 2))
                only = torch.zeros_like(probe.mask)
                only[:, record] = True
                told.append(_told(path, probe, copies, only))
            losses, sizes = (torch.stack(parts, dim=-1) for parts in zip(*told, strict=True))
            alone = losses.flatten(), sizes.flatten(1)
        except Exception as error:
            return f"records that end in zeros end its forward pass: {describe(error)}"
        if not _alike(together, alone, rtol=1e-6):
            return "records of other lengths change what the module makes of a record"
    return ""


def _padded(inputs: Tensor, pad: int, packed: Packed | None) -> Tensor:
    """Records `[nodes, b, positions, ...]` of several lengths, in no order, that end in `pad`.

    Of several inputs each ends so; floating ones in zeros.
    """
    nodes, many = inputs.shape[:2]
    whole = [InputPart(0, tuple(inputs.shape[2:]), "integer")]
    padded, start = inputs.flatten(2).clone(), 0
    for part in whole if packed is None else packed.parts:
        stop, positions = start + part.size, part.shape[0] if part.shape else 1
        for place in range(nodes * many):
            # 2, 5, 1, 4, 0, 3 of six: neither rising nor falling, and no two the same.
            share = (3 * place + 2) % (nodes * many + 1)
            length = max(1, positions * (share + 1) // (nodes * many + 1))
            tail = slice(start + length * (part.size // max(1, positions)), stop)
            padded[place // many, place % many, tail] = pad if part.kind == "integer" else 0
        start = stop
    return padded.view(inputs.shape)


def _alike(found: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], rtol: float = 1e-9) -> bool:
    """Whether two batches of one shape tell the same of some records, but for the order of sums."""
    if found[0].dtype != torch.float64:
        rtol = 1e-5
    return all(
        torch.allclose(one, other, rtol=rtol, atol=1e-3 * rtol * _largest(other), equal_nan=True)
        for one, other in zip(found, right, strict=True)
    )


def _largest(values: Tensor) -> float:
    return float(values.nan_to_num(posinf=0.0, neginf=0.0).abs().max())


def _branching(module: nn.Module, probe: Probe) -> str:
    """Whether the values of records decide what is computed; empty if none do.

    Such a decision is about the whole batch, so that each record may change it for all others.
    `torch.func.vmap` refuses it.
    """
    records = probe.inputs[0]

    def alone(record: Tensor) -> object:
        return module(record.unsqueeze(0))

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.func.vmap(alone, randomness="different")(records)
    except Exception as error:
        if any(words in str(error) for words in _DECISIONS):
            return "the values of records decide what it computes for the whole batch"
    return ""


# How torch.func.vmap says that a value is read, or that a shape depends on values.
_DECISIONS = ("calling .item()", "data-dependent control flow", "output dynamic shape")


def _told(
    path: GradientPath, probe: Probe, inputs: Tensor, others: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses and sizes of the gradients of some records `[nodes, b]` of the probe's batch."""
    batch = replace(probe.batch, inputs=inputs)
    parts, losses = path.contributions(probe.parameters, batch, norms=True)
    sizes = torch.stack([part.sizes().bounds[others] for part in parts])
    return losses[others], sizes
