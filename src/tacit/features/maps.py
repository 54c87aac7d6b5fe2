"""A feature map: a fixed public function of one record's inputs, which a model is then trained on.

`[task].features` names one: `scattering`, `scattering:J`, or `module:function` of the user's own.
The function takes the inputs of a few records `[records, ...]` and returns their features
`[records, ...]`. It looks at each record alone and learns nothing, so that another record at a node
is other features of that record and of no other: what is certified of training on records of any
kind is certified of training on features (docs/proofs/features.md).

Two things make that true of what is computed, too. Records go through the map in blocks of one
size, whose last is filled up with zeros, so that the shapes of all computations are the same
however many records there are. And a user's function is tried out, on public or made-up records,
for whatever would mix records or change from call to call (`tacit.features.trial`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.data.datasets import bounded_inputs
from tacit.errors import InputError, RecordsError, nearest
from tacit.features.scattering import Scattering, channels_of
from tacit.features.trial import Function, try_out
from tacit.kernels.threads import over_threads_of_products
from tacit.models.imports import import_function

_WHERE = "task.features"
_SCATTERING = "scattering"
_SCALES = 2
_GROUP = 3  # channels that are normalised together
_OWN_BLOCK = 32  # records of a user's function at a time
_MOST_IMAGES = 32  # that are scattered at a time
_MOST_NUMBERS = 2**15
_PROBES = 20  # the seed of made-up records
_PARTS = 16  # of what a user's function gives, in its identity


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """What `[task].features` names, for records of one shape.

    Args:
        function: inputs `[block, ...]` to features `[block, *shape]`.
        record_shape: of a record's inputs.
        shape: of a record's features.
        block: how many records it is given at a time.
        identity: what tells it from another map; the same in every process that has it.
        threads_safe: whether several threads may call the function at once.
    """

    name: str
    function: Function = field(repr=False)
    record_shape: tuple[int, ...]
    shape: tuple[int, ...]
    block: int
    identity: str
    dtype: torch.dtype
    threads_safe: bool = False

    @property
    def size(self) -> int:
        """How many numbers a record's features are."""
        return math.prod(self.shape)

    def words(self) -> str:
        """Which features they are, and how many."""
        sides = " x ".join(map(str, self.shape))
        return (
            f"{self.name}, {self.size:,} numbers a record ({sides}) in place of "
            f"{math.prod(self.record_shape):,}"
        )

    def note(self) -> str:
        """What people should know of it, in one line."""
        return (
            f"features: {self.words()}: a fixed public map of each record alone, so that "
            "what is stated of epsilon holds for the records that features are made of"
        )

    def __call__(self, inputs: Tensor) -> Tensor:
        """The features of all records: `[records, ...]` to `[records, *shape]`.

        Raises:
            InputError: records have another shape.
        """
        if tuple(inputs.shape[1:]) != self.record_shape:
            expected = f"features are made of records of shape {list(self.record_shape)}"
            raise InputError("inputs", list(inputs.shape), expected)
        inputs = inputs.to(self.dtype) if inputs.is_floating_point() else inputs
        if torch.compiler.is_compiling():  # into a program of others, which has no blocks
            return self.function(inputs)
        made = inputs.new_empty(len(inputs), *self.shape, dtype=self.dtype)
        return self.write(lambda rows: inputs[rows], len(inputs), made)

    def write(self, read: Callable[[slice], Tensor], records: int, out: Tensor) -> Tensor:
        """Write the features of records into `out` `[records, *shape]`, block by block; return it.

        `read` gives the inputs of some records, on the device of the map, and several threads call
        it. Blocks are the same on however many threads, and so are features.

        Raises:
            RecordsError: a user's function fails on some records, or gives them another shape.
        """

        def work(starts: range) -> None:
            for start in starts:
                some = read(slice(start, min(start + self.block, records)))
                missing = self.block - len(some)
                # In memory of its own: what a function writes into its argument is not a record.
                block = torch.cat([some, some.new_zeros(missing, *some.shape[1:])])
                made = self._of_block(block)
                out[start : start + len(some)] = made[: len(some)]

        starts = range(0, records, self.block)
        threads = torch.get_num_threads() if self.threads_safe and out.device.type == "cpu" else 1
        count = max(1, min(threads, len(starts)))
        over_threads_of_products(work, [starts[number::count] for number in range(count)])
        return out

    def _of_block(self, block: Tensor) -> Tensor:
        """What the function gives; why it fails is not told, since that may quote a record."""
        failed = ""
        made: object = None
        try:
            with torch.no_grad():
                made = self.function(block)
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            failed = type(error).__name__
        if failed:  # here, where the error and what it quotes are gone
            rule = "the function of task.features must take every record"
            raise RecordsError(_WHERE, f"{failed} for some records", rule)
        if not isinstance(made, Tensor) or made.shape != (self.block, *self.shape):
            rule = "features must have one shape, whatever the record is"
            raise RecordsError(_WHERE, "another shape for some records", rule)
        return made


class WithFeatures(nn.Module):
    """A model of features as one of the inputs that they are made of.

    A record's features are scaled down to l2 norm `bound` where they are longer; None: there is no
    bound.
    """

    def __init__(self, features: FeatureMap, bound: float | None, model: nn.Module) -> None:
        super().__init__()
        self.features, self.bound, self.model = features, bound, model

    def forward(self, inputs: Tensor) -> Any:
        """Of inputs `[records, ...]`, as they are before features are made of them."""
        made = self.features(inputs)
        return self.model(made if self.bound is None else bounded_inputs(made, self.bound))


def find_features(
    name: str, examples: Tensor, dtype: torch.dtype, device: torch.device
) -> FeatureMap:
    """The map that `[task].features` names: `scattering`, `scattering:J` or `module:function`.

    `examples` are public or made-up inputs `[few, ...]`, shaped and typed as the nodes' records;
    `dtype`, which is that of features too, and `device` are those of the run.

    Raises:
        InputError: on `task.features`, for an unknown name, records that it does not take, or a
            function that fails, mixes records or changes from call to call.
    """
    record = tuple(examples.shape[1:])
    made = known_features(name, record, (), dtype, device)
    if made.identity:
        return made
    shape = try_out(name, made.function, examples.to(device), made.block)
    made = replace(made, shape=shape)
    return replace(made, identity=_identity(made, examples.to(device)))


def known_features(
    name: str,
    record_shape: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> FeatureMap:
    """A map that a run has used already, and that is not tried out again.

    `record_shape` is that of a record's inputs. `shape` is that of its features where the map is a
    user's function, which is returned without an identity; other maps have their own.

    Raises:
        InputError: on `task.features`, for an unknown name or records that it does not take.
    """
    kind, _, argument = name.partition(":")
    if kind == _SCATTERING:
        return scattering_of(name, int(argument or _SCALES), record_shape, dtype, device)
    if not argument:
        expected = f"{nearest(name, [_SCATTERING])} (or 'module:function' for your own)"
        raise InputError(_WHERE, name, expected)
    function = import_function(name, _WHERE)
    return FeatureMap(name, function, record_shape, shape, _OWN_BLOCK, "", dtype)


def _identity(features: FeatureMap, like: Tensor) -> str:
    """What a map gives on made-up records, which all processes make alike, to some three digits."""
    draws = torch.Generator().manual_seed(_PROBES)
    shape = (features.block, *like.shape[1:])
    inputs = torch.rand(shape, generator=draws) if like.is_floating_point() else torch.zeros(shape)
    try:
        made = features(inputs.to(like)).double().nan_to_num(0.0, 0.0, 0.0)
    except RecordsError:  # it takes other records than these
        return f"{list(features.shape)}"
    parts = made.abs().reshape(-1).tensor_split(min(_PARTS, made.numel()))
    sizes = np.array([float(part.mean()) for part in parts])
    digest = hashlib.blake2b(" ".join(f"{size:.3g}" for size in sizes).encode(), digest_size=16)
    return f"{list(features.shape)} {digest.hexdigest()}"


def scattering_of(
    name: str, scales: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> FeatureMap:
    """Scattering of images, every few channels of which are normalised together.

    The coefficients of an image's channel `[81, h, w]` (for J = 2) are divided in groups of 3 that
    follow each other; each group has its mean subtracted and is divided by its standard deviation,
    as `torch.nn.GroupNorm(27, 81, affine=False)` does. J is `scales`. The `shape` of a record is
    `[height, width]` or `[channels, height, width]`; features are `[channels 81, h, w]`.

    Raises:
        InputError: on `task.features`, if records are no images of at least 2^J a side.
    """
    least = 2**scales
    if len(shape) not in (2, 3) or min(shape[-2:]) < least:
        raise InputError(
            _WHERE,
            name,
            f"it needs images (channels, height, width) of at least {least} x {least}; records "
            f"have the shape {shape}",
        )
    *colours, height, width = shape
    channels, each = math.prod(colours), channels_of(scales)
    group = next(size for size in range(_GROUP, each + 1) if each % size == 0)
    transform = Scattering(scales, height, width, dtype, device)

    def features(inputs: Tensor) -> Tensor:
        images = inputs.to(device, dtype).view(-1, channels, height, width)
        found = transform(images).flatten(1, 2)
        return functional.group_norm(found, channels * each // group)

    sides = [side // least for side in (height, width)]
    return FeatureMap(
        name=name,
        function=features,
        record_shape=shape,
        shape=(channels * each, *sides),
        block=max(1, min(_MOST_IMAGES, _MOST_NUMBERS // math.prod(shape))),
        identity=f"{scales} {transform.digest}",
        dtype=dtype,
        threads_safe=True,
    )
