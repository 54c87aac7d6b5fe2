"""The kernels of noise in Triton's interpreter: prints what differs from the host's way, as JSON.

Called as `interpreted_noise.py CASE...`, in a process of its own: the interpreter is chosen before
Triton is imported, for all of a process.
"""

import inspect
import json
import math
import os
import re
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl

from plain_noise import normals as plain_normals
from plain_noise import words_of
from tacit.errors import InputError
from tacit.kernels import normals
from tacit.privacy.noise import fast, gaussian
from tacit.privacy.noise.draws import position, seeded_keys
from tacit.privacy.noise.gaussian import add_normal, spacing
from tacit.privacy.noise.lattice import Offsets
from tacit.privacy.noise.on_device import DeviceNoise

KEYS = seeded_keys(79, range(4), "chacha20")
CPU = torch.device("cpu")
# Steps of node 0 with a radius word below 4, and above 2^32 - 2^10, among the first 256 pairs.
TAIL_STEP, TOP_STEP = 4134563, 15510
ODD = [0.0, -0.0, 3e7, -5e12, 1.1e12, math.nan, math.inf, -math.inf, 3e38]


def totals(rows, length, dtype):
    """Sums of any size, odd ones first."""
    draw = torch.Generator().manual_seed(rows)
    sizes = torch.tensor([[3.0], [1e4], [1e-3]])[:rows]
    found = (torch.randn(rows, length, generator=draw) * sizes).to(dtype)
    found[0, : min(length, len(ODD))] = torch.tensor(ODD, dtype=dtype)[:length]
    return found


def differing(found, expected):
    """How many values differ in a bit; of what is no number, in being none."""
    kind = torch.int32 if found.dtype == torch.float32 else torch.int64
    same = (found.view(kind) == expected.view(kind)) | (found.isnan() & expected.isnan())
    return int((~same).sum())


def released(
    total, stds, step, *, nodes=(0, 2, 3), part=0, capacity=None, offsets=None, twice=False
):
    """What differs between the kernels and the host, and what is left in the lists."""
    nodes = nodes[: len(total)]
    noise = DeviceNoise(KEYS, nodes, "noise", total.shape[1], CPU, capacity=capacity)
    wrong = 0
    for number in range(1 + twice):
        expected, found = total.clone(), total.clone()
        add_normal(expected, stds, KEYS, nodes, "noise", step + number, part=part, offsets=offsets)
        steps = torch.full((len(total),), step + number) if number else step
        noise.add(found, stds, steps, part, offsets)
        wrong += differing(found, expected)
    return {"wrong": wrong, "left": int(noise._counts.sum() + noise._spilt.sum())}


def offsets(total, unit):
    draw = torch.Generator().manual_seed(8)
    points = (300.0 * torch.randn(total.shape, generator=draw)).round().int()
    points[:, :4] = torch.tensor([0, 1, 2**20 - 1, -(2**18) - 3], dtype=torch.int32)
    return Offsets(points, (unit,) * len(total))


def too_large():
    """Of offsets, on a device: no number, where the host refuses them."""
    total, points = torch.zeros(1, 3), torch.tensor([[0, 1 << 20, 1]], dtype=torch.int32)
    wide = Offsets(points, (64 * spacing(1.0),))
    DeviceNoise(KEYS, [0], "noise", 3, CPU).add(total, [1.0], 0, 0, wide)
    return {"wrong": int((total.isnan() != torch.tensor([[False, True, False]])).sum())}


@triton.jit
def _fast(words, angles, radii, firsts, seconds, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + place).to(tl.uint32, bitcast=True)
    angle = tl.load(angles + place).to(tl.uint32, bitcast=True)
    first, second = normals.fast_direction(word, angle)
    tl.store(radii + place, normals.fast_radius(word, False))
    tl.store(firsts + place, first)
    tl.store(seconds + place, second)


@triton.jit
def _series(us, shorts, turns, logs, sines, cosines, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    log = normals.minus_two_log(tl.load(us + place), tl.load(shorts + place))
    sine, cosine = normals.sine_and_cosine(tl.load(turns + place))
    tl.store(logs + place, log)
    tl.store(sines + place, sine)
    tl.store(cosines + place, cosine)


@triton.jit
def _tail_uniforms(key, steps, numbers, mores, us, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    number = tl.load(numbers + place).to(tl.uint32)
    more = tl.load(mores + place).to(tl.uint64, bitcast=True)
    tl.store(us + place, normals.tail_uniform(key, steps, 2, number, more))


def tail_uniforms():
    """U next to 0, where all of the bits behind its first 64 count, beside that of the host."""
    mores = [0, 0, 1, 2**11, 2**12 + 1, 2**40, 2**63, 2**64 - 1]
    source = gaussian._Source(KEYS, (2,), "noise", position(1 << 33, 2))
    expected = [source.tail_uniform(0, more, pair) for pair, more in enumerate(mores)]
    numbers = torch.tensor([int(source.number(pair)) for pair in range(len(mores))])
    words = np.frombuffer(KEYS.chacha_key(2, "noise, tails"), "<i4").copy()
    found = torch.empty(len(mores), dtype=torch.float64)
    given = torch.from_numpy(np.array(mores, np.uint64).view(np.int64))
    steps = torch.tensor([1 << 33])
    _tail_uniforms[(1,)](torch.from_numpy(words), steps, numbers, given, found, BLOCK=8)
    errors = np.abs(found.numpy() / np.array(expected) - 1)
    return {"wrong": int((errors > 3 * 2.0**-53).sum())}


def fast_values():
    """Radius and direction of words in single precision, beside those of the host's loop."""
    from tacit.privacy.noise.fast import fast_direction, fast_radius

    draw = np.random.default_rng(4)
    words = draw.integers(0, 1 << 32, 1 << 12, dtype=np.uint32)
    words[:64] = np.arange(1 << 19, (1 << 19) + 64)
    words[64:128] = np.arange((1 << 32) - (1 << 10) - 64, (1 << 32) - (1 << 10))
    angles = draw.integers(0, 1 << 32, len(words), dtype=np.uint32)
    found = [torch.empty(len(words)) for _ in range(3)]
    given = [torch.from_numpy(values.view(np.int32)) for values in (words, angles)]
    _fast[(len(words) // 1024,)](*given, *found, BLOCK=1024)
    host = [(fast_radius(w), *fast_direction(w, a)) for w, a in zip(words, angles, strict=True)]
    # The interpreter rounds products before sums: a few units in the last place.
    errors = np.abs(np.stack(found, axis=1) - np.array(host)) / np.maximum(
        1, np.abs(np.array(host))
    )
    return {"wrong": int((errors > 2.0**-22).sum())}


def series_values():
    """The largest error of the series, in units of 2^-53 of the value; logarithm, sine, cosine."""
    import mpmath

    draw = np.random.default_rng(5)
    short = draw.uniform(0, 1 - math.sqrt(0.5), 400) * 2.0 ** -draw.integers(0, 90, 400)
    low = np.concatenate([draw.uniform(0, 1, 300), 2.0 ** -draw.uniform(0.5, 607, 200)])
    root = math.sqrt(0.5) * 2.0 ** -np.arange(50.0)  # where it changes to another power
    low = np.concatenate([low, root, np.nextafter(root, 0)])
    least = np.nextafter(math.sqrt(0.5), 0)  # of those whose logarithm is that of 1 - short
    low = low[low < least]
    us, shorts = np.concatenate([1 - short, low]), np.concatenate([short, np.zeros(len(low))])
    turns = np.concatenate([draw.uniform(-1, 1, 1000), [1.0, -1.0, 2.0**-33, 2.0**-80]])
    size = 2048
    us, shorts, turns = (
        np.concatenate([values, np.full(size - len(values), 0.5)])
        for values in (us, shorts, turns * math.pi / 4)
    )
    found = [torch.empty(size, dtype=torch.float64) for _ in range(3)]
    _series[(1,)](*map(torch.from_numpy, (us, shorts, turns)), *found, BLOCK=size)
    worst = [0.0, 0.0, 0.0]
    with mpmath.workdps(60):
        for i in range(size):
            upper = us[i] >= least
            log = mpmath.log1p(-mpmath.mpf(shorts[i])) if upper else mpmath.log(us[i])
            exact = (-2 * log, mpmath.sin(turns[i]), mpmath.cos(turns[i]))
            for j, (value, true) in enumerate(zip(found, exact, strict=True)):
                worst[j] = max(worst[j], float(abs(value[i].item() - true) / abs(true)) * 2.0**53)
    return {"worst": worst}


def tails():
    """Radii below 2^-30 and next to 0, at steps that have them."""
    assert (words_of(KEYS, 0, "noise", TAIL_STEP, 512).word < 4).any()
    assert (words_of(KEYS, 0, "noise", TOP_STEP, 512).word >= (1 << 32) - (1 << 10)).any()
    found = [released(torch.zeros(1, 512), [1.9], step) for step in (TAIL_STEP, TOP_STEP)]
    return {"wrong": sum(each["wrong"] for each in found)}


def close():
    """Sums next to the middle between two points, about as far as the bound on errors."""
    std, count = 1.96875, 3000
    exact = torch.from_numpy(plain_normals(KEYS, 0, "noise", 5, count))
    draw, step = np.random.default_rng(7), spacing(std)
    width = normals.FAST_ERROR.value * std / step + normals.SINGLE_ERROR.value
    near = 0.5 + draw.uniform(-1, 1, count) * width * draw.choice([0.02, 1.0, 2.0], count)
    total = (draw.integers(-40, 40, count) + near) * step - std * exact.numpy()
    return released(torch.from_numpy(total).unsqueeze(0), [std], 5, nodes=[0])


def bound():
    return {"normal": normals.FAST_ERROR.value, "sum": normals.SINGLE_ERROR.value}


def dispatched():
    """By the function that a run calls, as on a device."""
    total = totals(2, 70, torch.float32).T.contiguous().T  # of another layout
    expected = add_normal(total.clone(), [1.0, 2.0], KEYS, [1, 3], "noise", 5, part=2)
    gaussian._DEVICE_TYPES = frozenset({"cpu"})
    for _ in range(2):
        found = total.clone()
        assert add_normal(found, [1.0, 2.0], KEYS, [1, 3], "noise", 5, part=2) is found
    gaussian._DEVICE_TYPES = frozenset({"cuda"})
    return {"wrong": differing(found, expected), "left": len(KEYS.on_devices) - 1}


def constants():
    """That the formulas of single precision have the constants of the host's."""
    written = inspect.getsource(normals.fast_radius.fn) + inspect.getsource(
        normals.fast_direction.fn
    )
    numbers = {np.float32(text) for text in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", written)}
    names = [
        "_L0",
        "_L1",
        "_L2",
        "_L3",
        "_L4",
        "_L5",
        "_L6",
        "_S0",
        "_S1",
        "_S2",
        "_C0",
        "_C1",
        "_C2",
        "_LOG_2",
        "_EIGHTH",
    ]
    return {"wrong": sum(getattr(fast, name) not in numbers for name in names)}


def refused():
    noise = DeviceNoise(KEYS, [0], "noise", 3, CPU)
    wrong = 0
    for step in (-1, 1 << 48, torch.zeros(2, dtype=torch.int64), torch.zeros(1)):
        try:
            noise.add(torch.zeros(1, 3), [1.0], step)
            wrong += 1
        except InputError:
            pass
    try:
        DeviceNoise(seeded_keys(1, [0]), [0], "noise", 3, CPU)
        wrong += 1
    except InputError:
        pass
    return {"wrong": wrong}


SINGLE, DOUBLE = torch.float32, torch.float64
CASES = {
    "single": lambda: released(totals(2, 700, SINGLE), [1.7, 96.0], 7, part=3),
    "double, full lists": lambda: released(totals(1, 520, DOUBLE), [1.99], 1 << 47, capacity=1),
    "offsets": lambda: released(
        totals(1, 300, SINGLE), [0.7], 4, offsets=offsets(totals(1, 300, SINGLE), 0.0371)
    ),
    "offsets, double": lambda: released(
        totals(2, 2100, DOUBLE), [0.7, 3.0], 4, offsets=offsets(totals(2, 2100, DOUBLE), 1 / 3)
    ),
    "out of range": lambda: released(totals(2, 40, SINGLE), [1e-20, 1e20], 4),
    "rows": lambda: released(totals(3, 9000, SINGLE), [1.7, 0.011, 96.0], 11, twice=True),
    "rows, double": lambda: released(totals(3, 700, DOUBLE), [1.7, 1e-90, 96.0], 11),
    "full lists": lambda: released(totals(3, 9000, SINGLE), [1.7, 0.01, 9.6], 12, capacity=1),
    "too large": too_large,
    "fast": fast_values,
    "series": series_values,
    "tails": tails,
    "tail uniforms": tail_uniforms,
    "constants": constants,
    "dispatched": dispatched,
    "refused": refused,
    "close": close,
    "bound": bound,
}

with np.errstate(all="ignore"):
    print(json.dumps({name: CASES[name]() for name in sys.argv[1:]}))
