"""The noise of a node by its definition: words, the bits that refine them, and normals."""

from typing import NamedTuple

import mpmath
import numpy as np
from numpy.typing import NDArray

from tacit.privacy.noise.draws import keystream
from tacit.privacy.noise.gaussian import careful_normals, uniform

GROUP = 32


class Words(NamedTuple):
    """What the values of a row are made of, one of each a value, `[count]`."""

    word: NDArray[np.uint32]
    angle: NDArray[np.uint32]
    radius_bits: NDArray[np.uint64]
    angle_bits: NDArray[np.uint64]
    second: NDArray[np.bool_]
    pair: NDArray[np.int64]


def words_of(keys, node, purpose, step, count, part=0):
    """The words of a node's first `count` values."""
    groups = -(-count // (2 * GROUP))
    read = groups if keys.cipher == "aes" else -(-groups // 8) * 8
    drawn = keystream(keys, node, purpose, step, read * 8 * GROUP, part).view("<u4")
    bits = keystream(keys, node, f"{purpose}, more bits", step, read * GROUP * 16, part)
    pairs, more = drawn.reshape(read, 2, GROUP), bits.view("<u8").reshape(read, GROUP, 2)
    if keys.cipher == "chacha20":
        # Eight groups take 32 blocks of eight pairs; those of a group, one of each.
        pairs = drawn.reshape(-1, GROUP, 8, 2).transpose(0, 2, 3, 1).reshape(read, 2, GROUP)
        more = more.reshape(-1, GROUP, 8, 2).transpose(0, 2, 1, 3).reshape(read, GROUP, 2)
    pairs, more = pairs[:groups], more[:groups]
    number = np.arange(groups * GROUP).reshape(groups, GROUP)
    half = np.zeros((groups, GROUP), np.bool_)

    def of_values(first, second):
        return np.stack([first, second], axis=1).reshape(-1)[:count]

    return Words(
        *(of_values(values, values) for values in (pairs[:, 0], pairs[:, 1])),
        *(of_values(values, values) for values in (more[..., 0], more[..., 1])),
        of_values(half, ~half),
        of_values(number, number),
    )


def normals(keys, node, purpose, step, count, part=0):
    """A node's first standard normals, `[count]`, in double precision."""
    drawn = words_of(keys, node, purpose, step, count, part)
    more = np.stack([drawn.radius_bits, drawn.angle_bits], axis=1)
    uniforms = uniform(drawn.word, drawn.radius_bits)
    return careful_normals(uniforms, drawn.word, drawn.angle, more, drawn.second)


def exact_normal(word, angle, bits, second, tail=0):
    """A value by the formulas, to the digits that are set; `tail` are 512 bits, where h is 0."""
    half = mpmath.mpf(1) / 2
    cell = word >> 2
    u = (cell + (bits[0] + half) / mpmath.mpf(2) ** 64) / mpmath.mpf(2) ** 30
    if cell == 0:
        u = (bits[0] + (tail + half) / mpmath.mpf(2) ** 512) / mpmath.mpf(2) ** 94
    signed = angle - (1 << 32) if angle >> 31 else angle
    turn = (signed + (bits[1] + half) / mpmath.mpf(2) ** 64) * mpmath.pi / 4 / 2**31
    cosine, sine = mpmath.cos(turn), mpmath.sin(turn)
    cosine = -cosine if word & 1 else cosine
    first, other = (sine, cosine) if word & 2 else (cosine, sine)
    return mpmath.sqrt(-2 * mpmath.log(u)) * (other if second else first)
