"""Noise of ChaCha20 on a CUDA device: what its kernels are given.

Keys, lattices and lists lie on the device from the first call on. A call launches two kernels and
waits for nothing; a step that lies on the device too lets a CUDA graph of the call be replayed.
What is released is, to the bit, what the host releases of the same keys
(`tacit.privacy.noise.gaussian`; but for lattice points on which the last bits of logarithm, sine
and cosine decide, one in some 10^12). Tested in Triton's interpreter; not yet run on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.kernels import chacha, normals
from tacit.privacy.noise.draws import NodeKeys, position
from tacit.privacy.noise.lattice import GROUP_PAIRS, Offsets, lattice_spacing

_LANE_VALUES = 16
_GROUP_VALUES = GROUP_PAIRS * _LANE_VALUES
_SETTINGS = {"num_warps": 1, "enable_fp_fusion": False}
_SETTLED_LANES = 32  # of a program
_MOST_PROGRAMS = 32  # of a list
_MOST_KEPT = 4  # each has lists that take a quarter of a byte a value


def noise_of(
    keys: NodeKeys, nodes: tuple[int, ...], purpose: str, length: int, device: torch.device
) -> DeviceNoise:
    """What noises rows of a length on the device's current stream; it is kept with the keys."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    name = (nodes, purpose, length, device, stream)
    if name not in keys.on_devices:
        while len(keys.on_devices) >= _MOST_KEPT:
            keys.on_devices.pop(next(iter(keys.on_devices)))
        keys.on_devices[name] = DeviceNoise(keys, nodes, purpose, length, device)
    found: DeviceNoise = keys.on_devices[name]
    return found


class DeviceNoise:
    """Gaussian noise for rows `[nodes, length]`, on one stream.

    The keys are of at least these nodes, which go by rows, and their cipher is ChaCha20. Whoever
    records a CUDA graph has one of its own, made before, and calls `add` once before.
    """

    def __init__(
        self,
        keys: NodeKeys,
        nodes: Sequence[int],
        purpose: str,
        length: int,
        device: torch.device,
        *,
        capacity: int | None = None,
    ) -> None:
        rows = len(nodes)
        self._length, self._device = length, device
        purposes = (purpose, f"{purpose}, more bits", f"{purpose}, tails")
        self._keys = _keys_on(device, keys, nodes, purposes)
        self._steps = torch.zeros(rows, dtype=torch.int64, device=device)
        self._width = -(-length // _GROUP_VALUES) * GROUP_PAIRS
        lists = normals.LISTS.value
        # Where a deviation is 128 points, a value is in doubt so often: rounding, and its radius.
        share = 2 * (normals.SINGLE_ERROR.value + 128 * normals.FAST_ERROR.value) + 2.0**-13
        lanes = rows * self._width / lists + normals.SHARE.value
        expected = int(2 * _LANE_VALUES * share * lanes) + 64
        self._capacity = expected if capacity is None else capacity
        self._listed = torch.empty(lists, self._capacity, dtype=torch.int64, device=device)
        shape = (lists + 1, normals.LINE.value)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._spilt = torch.zeros(rows, self._width, dtype=torch.int32, device=device)
        self._sizes: tuple[tuple[float, ...], ...] = ()
        self._lock = threading.Lock()
        self._lattices = torch.empty(0)

    def add(
        self,
        total: Tensor,
        stds: Sequence[float],
        step: int | Tensor,
        part: int = 0,
        offsets: Offsets | None = None,
    ) -> None:
        """Release `total` in place, as `tacit.privacy.noise.gaussian.add_normal` does.

        Args:
            total: float32 or float64 `[nodes, length]`, on the device.
            stds: of the rows; what they make is sent to the device when they change.
            step: a number, or one for each row on the device, int64 `[nodes]`, 0 .. 2^48 - 1.
            part: 0 .. 2^16 - 1.
            offsets: on the device; where one is too large, the value becomes NaN.

        Raises:
            InputError: a step or part is out of range, or a deviation is unusable.
        """
        if not len(self._steps) or not self._length:
            return
        # Two threads would write their steps into one place; and Triton launches where PyTorch is.
        with self._lock, torch.cuda.device_of(total):  # type: ignore[no-untyped-call]
            self._add(total, stds, step, part, offsets)

    def _add(
        self,
        total: Tensor,
        stds: Sequence[float],
        step: int | Tensor,
        part: int,
        offsets: Offsets | None,
    ) -> None:
        rows, sizes = len(self._steps), (tuple(stds), () if offsets is None else offsets.units)
        if sizes != self._sizes:
            self._lattices, self._sizes = _lattices(*sizes, self._device), sizes
        place = total if total.is_contiguous() else total.contiguous()
        points = place if offsets is None else offsets.points.contiguous()
        steps = _steps(step, part, self._steps)
        lists = (self._listed, self._counts, self._spilt)
        sizes_of_lists = (self._length, self._capacity, self._width)
        given = (place, points, self._keys, steps, part, self._lattices, *lists, *sizes_of_lists)
        moves, programs = offsets is not None, -(-self._width // chacha.BLOCK)
        normals.decide[(rows * programs,)](
            *given,
            programs,
            MOVES=moves,
            APPROXIMATE=self._device.type == "cuda",
            BLOCK=chacha.BLOCK,
            **chacha.SETTINGS,
        )
        each = min(-(-self._capacity // (2 * _SETTLED_LANES)), _MOST_PROGRAMS)
        normals.settle[(each, normals.LISTS.value)](
            *given, rows, MOVES=moves, BLOCK=_SETTLED_LANES, **_SETTINGS
        )
        if place is not total:
            total.copy_(place)


def _steps(step: int | Tensor, part: int, own: Tensor) -> Tensor:
    """The steps of all rows on the device: those given, or the number in the memory `own`."""
    if isinstance(step, Tensor):
        position(0, part)
        if step.dtype != torch.int64 or step.shape != own.shape or not step.is_contiguous():
            expected = f"int64 {tuple(own.shape)}, one after the other in memory"
            raise InputError("step", (step.dtype, tuple(step.shape)), expected)
        return step
    position(step, part)
    if own.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InputError("step", step, "must lie on the device: replays would repeat the noise")
    return own.fill_(step)


def _keys_on(
    device: torch.device, keys: NodeKeys, nodes: Sequence[int], purposes: Sequence[str]
) -> Tensor:
    """The keys of purposes, int32 `[nodes, purposes, 8]`."""
    if keys.cipher != "chacha20":
        raise InputError("privacy.keystream", keys.cipher, "must be 'chacha20' on a device")
    own = [keys.chacha_key(node, purpose) for node in nodes for purpose in purposes]
    words = np.frombuffer(b"".join(own), "<i4").reshape(len(nodes), len(purposes), 8)
    return _sent(words.copy(), device)


def _lattices(stds: tuple[float, ...], units: tuple[float, ...], device: torch.device) -> Tensor:
    """Of each row its spacing, its deviation in points, and its unit in two parts: `[rows, 4]`."""
    numbers: NDArray[Any] = np.zeros((len(stds), 4))
    numbers[:, 0] = [lattice_spacing("noise standard deviation", std) for std in stds]
    numbers[:, 1] = np.array(stds) / numbers[:, 0]
    if units:
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.array(units) / numbers[:, 0]
            numbers[:, 2] = ratios.astype(np.float32)
            numbers[:, 3] = ratios - numbers[:, 2]
    return _sent(numbers, device)


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, without waiting for it."""
    host = torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
