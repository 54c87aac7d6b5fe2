"""ChaCha20 on a CUDA device, for kernels of Triton.

The keystream is that of `tacit.privacy.noise.draws`: RFC 8439, section 2.3, with the nonce step and
part. A thread has one block of sixteen words. What runs is compiled by Triton once on a machine, in
some seconds; lengths do not specialise it.

Importing Triton takes a second, and there is none on most machines: this module is imported where
the first kernel runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128  # lanes of a program, in four warps
SETTINGS = {"num_warps": 4, "enable_fp_fusion": False}
"""Of every kernel: products are fused with sums where it says so, and nowhere else."""


@triton.jit
def _rotated(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(words, i: tl.constexpr):
    return tl.load(words + i).to(tl.uint32, bitcast=True)


@triton.jit
def block(key, steps, part, counter, UNROLLED: tl.constexpr):
    """The sixteen words of ChaCha20 blocks, uint32 each.

    Args:
        key: pointer to its eight words, int32; of one key, or one for each lane.
        steps: pointer to the step, int64, likewise.
        part: of the step.
        counter: of the blocks, uint32.
        UNROLLED: how many of ten double rounds: five are fastest, one compiles fastest.
    """
    none = counter & 0
    step = tl.load(steps)
    c0, c1, c2, c3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    k0, k1, k2, k3 = _word(key, 0), _word(key, 1), _word(key, 2), _word(key, 3)
    k4, k5, k6, k7 = _word(key, 4), _word(key, 5), _word(key, 6), _word(key, 7)
    k0, k1, k2, k3 = none + k0, none + k1, none + k2, none + k3
    k4, k5, k6, k7 = none + k4, none + k5, none + k6, none + k7
    n0 = none + (((step & 0xFFFF) << 16) | part).to(tl.uint32)
    n1 = none + ((step >> 16) & 0xFFFFFFFF).to(tl.uint32)
    x0, x1, x2, x3 = c0, c1, c2, c3
    x4, x5, x6, x7 = k0, k1, k2, k3
    x8, x9, x10, x11 = k4, k5, k6, k7
    x12, x13, x14, x15 = counter, n0, n1, none
    for _ in tl.range(0, 10, loop_unroll_factor=UNROLLED):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    x0, x1, x2, x3 = x0 + c0, x1 + c1, x2 + c2, x3 + c3
    x4, x5, x6, x7 = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    x8, x9, x10, x11 = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    x12, x13, x14 = x12 + counter, x13 + n0, x14 + n1
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def joined(low, high):
    """A 64-bit word of its halves."""
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)
