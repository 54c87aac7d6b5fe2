"""Gaussian noise on a CUDA device: two kernels of Triton, and the law of the CPU to the bit.

`decide` is the loop of `tacit.privacy.noise.fast` where a lane has a ChaCha20 block, which is eight
pairs: single precision decides almost every value; lanes with values in doubt are left as they were
and append a word to one of many lists. `settle` goes through the lists and computes those values in
double precision from all bits. What a full list has no room for stands in a table, which it then
goes through too. So how single precision rounds decides nothing, nor do blocks, nor the card.

*Single precision.* The polynomials are those of the CPU; the root is the card's, assumed to err by
at most 2^-23 of it (as the PTX manual states of it). Normals then err by less than
`FAST_ERROR`, which is tested for every word. The lattice point of a total is taken off first, so
that a total of any size is decided here; sums are below 2^10 points, which are rounded by at most
2^-15, and rests of totals and offsets by less than 2^-23.

*Double precision.* Logarithm, sine and cosine are series, in IEEE 754's sums, products, one
quotient and one root: `docs/proofs/finite-arithmetic.md` has their errors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tacit.kernels.chacha import block, joined

LISTS = tl.constexpr(64)  # of lanes with doubts; each count in a line of the cache of its own
LINE = tl.constexpr(32)
SHARE = tl.constexpr(512)  # lanes in a row that share a list; blocks divide it
GROUP = tl.constexpr(
    32
)  # lanes whose values lie together, so that a warp writes 128 bytes in a row
FAST_ERROR = tl.constexpr(3.75 * 2.0**-20)
SINGLE_ERROR = tl.constexpr(2.0**-14)  # of a sum, in lattice points
LEAST_WORD, TOP_WORD = tl.constexpr(1 << 19), tl.constexpr((1 << 32) - (1 << 10))  # as on the CPU
LEAST_SPACING, TOP_SPACING = tl.constexpr(2.0**-40), tl.constexpr(2.0**40)
LARGEST_OFFSET, LARGEST_POINT = tl.constexpr(2.0**26), tl.constexpr(2.0**24)
EIGHTH = tl.constexpr(0.7853981633974483 * 2.0**-31)
TWO_LOG_2_HIGH = tl.constexpr(float.fromhex("0x1.62e42fefap+0"))  # whole multiples are exact
TWO_LOG_2_LOW = tl.constexpr(float.fromhex("0x1.cf79abc9e3b39p-39"))
TO_30 = tl.constexpr(2.0**-30)
TO_64 = tl.constexpr(2.0**-64)


@triton.jit
def _root(square, APPROXIMATE: tl.constexpr):
    if APPROXIMATE:
        root = tl.inline_asm_elementwise(
            "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [square], tl.float32, True, 1
        )
    else:
        root = tl.sqrt_rn(square)
    return root


@triton.jit
def fast_radius(word, APPROXIMATE: tl.constexpr):
    """R of words W, as `tacit.privacy.noise.fast` has it."""
    h = (word >> 2).to(tl.int32)
    shifted = h.to(tl.float32) + 0.5
    bits = shifted.to(tl.uint32, bitcast=True) - 0x3F3504F3
    exponent = bits.to(tl.int32, bitcast=True) >> 23
    t = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    missing = ((h ^ 0x3FFFFFFF).to(tl.float32) + 0.5) * -9.313225746154785e-10
    t = tl.where(exponent == 30, missing, t)
    series = tl.fma(t, 0.20164737105, -0.32360994816)
    series = tl.fma(series, t, 0.34486451745)
    series = tl.fma(series, t, -0.39813768864)
    series = tl.fma(series, t, 0.49942457676)
    series = tl.fma(series, t, -0.66669428349)
    series = tl.fma(series, t, 1.0000064373)
    series = tl.fma(series, t, -2.0)
    rest = (30 - exponent).to(tl.float32) * 1.3862943649291992
    return _root(tl.fma(series, t, rest), APPROXIMATE)


@triton.jit
def fast_direction(word, angle):
    """The two coordinates of directions, as `tacit.privacy.noise.fast` has them."""
    t = angle.to(tl.int32, bitcast=True).to(tl.float32) * 3.6572952738735693e-10
    z = t * t
    sine = tl.fma(tl.fma(z, -0.00019495635934, 0.0083319786936), z, -0.16666650772)
    sine = tl.fma(sine * z, t, t)
    cosine = tl.fma(tl.fma(z, -0.0013597822981, 0.041656292975), z, -0.49999895692)
    cosine = tl.fma(cosine, z, 1.0)
    cosine = (cosine.to(tl.uint32, bitcast=True) ^ (word << 31)).to(tl.float32, bitcast=True)
    swapped = (word & 2) != 0
    return tl.where(swapped, sine, cosine), tl.where(swapped, cosine, sine)


@triton.jit
def minus_two_log(u, short):
    """-2 ln u; where u is above sqrt(1/2), of 1 - short: 2 artanh of t / (2 + t), below 0.1716."""
    bits = u.to(tl.int64, bitcast=True) - 0x3FE6A09E667F3BCC
    exponent = bits >> 52
    t = ((bits & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCC).to(tl.float64, bitcast=True) - 1.0
    t = tl.where(exponent == 0, 0.0 - short, t)
    e = exponent.to(tl.float64)
    s = t / (t + 2.0)
    z = s * s
    series = z * (1.0 / 21.0) + 1.0 / 19.0
    series = series * z + 1.0 / 17.0
    series = series * z + 1.0 / 15.0
    series = series * z + 1.0 / 13.0
    series = series * z + 1.0 / 11.0
    series = series * z + 1.0 / 9.0
    series = series * z + 1.0 / 7.0
    series = series * z + 1.0 / 5.0
    series = series * z + 1.0 / 3.0
    four = -4.0 * s
    return (four * (z * series) - e * TWO_LOG_2_LOW) + four - e * TWO_LOG_2_HIGH


@triton.jit
def sine_and_cosine(t):
    """Of |t| up to pi / 4, by Taylor's series."""
    z = t * t
    sine = z * (1.0 / 355687428096000.0) - 1.0 / 1307674368000.0
    sine = sine * z + 1.0 / 6227020800.0
    sine = sine * z - 1.0 / 39916800.0
    sine = sine * z + 1.0 / 362880.0
    sine = sine * z - 1.0 / 5040.0
    sine = sine * z + 1.0 / 120.0
    sine = sine * z - 1.0 / 6.0
    cosine = z * (1.0 / 20922789888000.0) - 1.0 / 87178291200.0
    cosine = cosine * z + 1.0 / 479001600.0
    cosine = cosine * z - 1.0 / 3628800.0
    cosine = cosine * z + 1.0 / 40320.0
    cosine = cosine * z - 1.0 / 720.0
    cosine = cosine * z + 1.0 / 24.0
    cosine = cosine * z - 0.5
    return (sine * z) * t + t, cosine * z + 1.0


@triton.jit
def _fraction(bits):
    """The middle of the cell of 64 bits, from 0 to 1."""
    return (bits.to(tl.float64) + 0.5) * TO_64


@triton.jit
def _big_endian(low, high):
    """The bytes of two words, as one number, the first byte first."""
    low = ((low & 0xFF00FF) << 8) | ((low >> 8) & 0xFF00FF)
    high = ((high & 0xFF00FF) << 8) | ((high >> 8) & 0xFF00FF)
    return joined((high << 16) | (high >> 16), (low << 16) | (low >> 16)).to(tl.float64)


@triton.jit
def _rounded(x):
    """To the next whole number, of two to the even one."""
    down = tl.floor(x)
    rest = x - down
    odd = tl.floor(down * 0.5) * 2.0 != down
    return down + tl.where(rest > 0.5, 1.0, tl.where(rest == 0.5, tl.where(odd, 1.0, 0.0), 0.0))


@triton.jit
def _inverse(power):
    """Of a power of two."""
    return (0x7FE0000000000000 - power.to(tl.int64, bitcast=True)).to(tl.float64, bitcast=True)


@triton.jit
def _moved(count, high, low):
    """An offset in lattice points, as a whole number and the rest; NaN where it is too large."""
    offset = count * high
    offset = tl.where(tl.abs(offset) < LARGEST_OFFSET, offset, float("nan"))
    offset = tl.where(tl.abs(count) <= LARGEST_POINT, offset, float("nan"))
    point = _rounded(offset)
    return point, (offset - point) + count * low


@triton.jit(do_not_specialize=["part", "length", "capacity", "width", "programs"])
def decide(
    total,
    points,
    keys,
    steps,
    part,
    lattices,
    listed,
    counts,
    spilt,
    length,
    capacity,
    width,
    programs,
    MOVES: tl.constexpr,
    APPROXIMATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Release what single precision decides, in place; lanes with other values are listed.

    Args:
        total: float32 or float64 `[rows, length]`.
        points: of offsets, int16 or int32 `[rows, length]`; not read unless `MOVES`.
        keys: int32 `[rows, 3, 8]`: of the words, of more bits, and of those of tails.
        steps: int64 `[rows]`.
        part: of the step.
        lattices: float64 `[rows, 4]`: the spacing; in lattice points, the deviation, and the unit
            of offsets as single precision has it, and the rest of it.
        listed: the lists, int64 `[LISTS, capacity]`.
        counts: of lanes in each, int32 `[LISTS + 1, LINE]`, zeros; the last is of programs.
        spilt: the table, int32 `[rows, width]`, zeros.
        length: of a row.
        capacity: of a list.
        width: lanes of a row.
        programs: for each row.
        MOVES: whether there are offsets.
        APPROXIMATE: whether the root is the card's, or correctly rounded.
        BLOCK: lanes of a program.
    """
    row = (tl.program_id(0) // programs).to(tl.int64)
    start = tl.program_id(0) % programs * BLOCK
    lane = start + tl.arange(0, BLOCK)
    state = block(keys + row * 24, steps + row, part, lane.to(tl.uint32), 5)
    spacing, scale = tl.load(lattices + row * 4), tl.load(lattices + row * 4 + 1)
    deviation, size = scale.to(tl.float32), spacing.to(total.dtype.element_ty)
    points_per_unit = _inverse(spacing).to(total.dtype.element_ty)
    limit = (scale * -FAST_ERROR + (0.5 - SINGLE_ERROR)).to(tl.float32)
    # What single precision might not hold over the spacing is all left to care.
    held = tl.where(spacing > LEAST_SPACING, tl.where(spacing < TOP_SPACING, 1, 0), 0) != 0
    column = lane.to(tl.int64) // GROUP * (16 * GROUP) + lane % GROUP
    at = row * length + column
    doubt = lane & 0
    for j in tl.static_range(8):
        word, angle = state[2 * j], state[2 * j + 1]
        radius = fast_radius(word, APPROXIMATE) * deviation
        first, second = fast_direction(word, angle)
        fine = (word >= LEAST_WORD) & (word < TOP_WORD) & held
        for half in tl.static_range(2):
            further = (2 * j + half) * GROUP
            inside = column + further < length
            units = tl.load(total + at + further, mask=inside, other=0.0) * points_per_unit
            whole = tl.floor(units + 0.5)
            rest = (units - whole).to(tl.float32)
            if MOVES:
                high, low = tl.load(lattices + row * 4 + 2), tl.load(lattices + row * 4 + 3)
                count = tl.load(points + at + further, mask=inside, other=0).to(tl.float64)
                moved, moved_rest = _moved(count, high, low)
                rest += moved_rest.to(tl.float32)
            noised = tl.fma(radius, first if half == 0 else second, rest)
            point = (noised + 12582912.0) - 12582912.0
            # What is not a number is not below a bound: it is left to care.
            sure = fine & (tl.abs(noised - point) <= limit)
            if MOVES:
                sums = whole.to(tl.float64) + (moved + point.to(tl.float64))
                value = (sums * spacing).to(total.dtype.element_ty)
            else:
                value = (whole + point.to(whole.dtype)) * size
            tl.store(total + at + further, value, mask=inside & sure)
            doubt = doubt | tl.where(inside & ~sure, 1 << (2 * j + half), 0)
    some = doubt != 0
    which = (start // SHARE + row * 7) % LISTS
    slot = tl.atomic_add(counts + which * LINE + (lane & 0), 1, mask=some, sem="relaxed")
    entry = (row << 44) | (lane.to(tl.int64) << 16) | doubt.to(tl.int64)
    tl.store(listed + which * capacity + slot, entry, mask=some & (slot < capacity))
    tl.store(spilt + row * width + lane, doubt, mask=some & (slot >= capacity))


@triton.jit
def tail_uniform(key, steps, part, number, m):
    """U of pairs whose h is 0, of 64 bits m and the 512 behind them, which are block `number`."""
    words = block(key, steps, part, number, 1)
    rest = (_big_endian(words[14], words[15]) + 0.5) * TO_64
    for j in tl.static_range(7):  # from the last of them to the first
        rest = (rest + _big_endian(words[12 - 2 * j], words[13 - 2 * j])) * TO_64
    return ((m.to(tl.float64) + rest) * TO_64) * TO_30


@triton.jit
def _settle_lanes(
    total, points, keys, steps, part, lattices, row, lane, bits, length, MOVES: tl.constexpr
):
    """Release the careful value of every place of a lane whose bit is set."""
    key, at_step = keys + row * 24, steps + row
    state = block(key, at_step, part, lane, 1)
    spacing, scale = tl.load(lattices + row * 4), tl.load(lattices + row * 4 + 1)
    columns = lane.to(tl.int64) // GROUP * (16 * GROUP) + lane % GROUP
    while tl.max(bits, 0) > 0:
        one = bits & (0 - bits)
        bits = bits ^ one
        active = one != 0
        word, angle, pair = lane & 0, lane & 0, bits & 0
        for j in tl.static_range(8):
            hit = (one & (3 << (2 * j))) != 0
            word = tl.where(hit, state[2 * j], word)
            angle = tl.where(hit, state[2 * j + 1], angle)
            pair = tl.where(hit, j, pair)
        half = ((one & 0xAAAA) != 0).to(tl.int32)
        # A block of more bits has 128 for each of four pairs.
        more = block(key + 8, at_step, part, lane * 2 + (pair >> 2).to(tl.uint32), 1)
        m0, m1, n0, n1 = more[0], more[1], more[2], more[3]
        for j in tl.static_range(1, 4):
            hit = (pair & 3) == j
            m0, m1 = tl.where(hit, more[4 * j], m0), tl.where(hit, more[4 * j + 1], m1)
            n0, n1 = tl.where(hit, more[4 * j + 2], n0), tl.where(hit, more[4 * j + 3], n1)
        m = joined(m0, m1)
        h = (word >> 2).to(tl.int32)
        u = (h.to(tl.float64) + _fraction(m)) * TO_30
        inverted = joined(m0 ^ 0xFFFFFFFF, m1 ^ 0xFFFFFFFF)
        short = ((h ^ 0x3FFFFFFF).to(tl.float64) + _fraction(inverted)) * TO_30
        tail = active & (h == 0)
        if tl.max(tail.to(tl.int32), 0) > 0:
            number = lane * 8 + pair.to(tl.uint32)
            u = tl.where(tail, tail_uniform(key + 16, at_step, part, number, m), u)
        radius = tl.sqrt(minus_two_log(u, short))
        turn = angle.to(tl.int32, bitcast=True).to(tl.float64) + _fraction(joined(n0, n1))
        sine, cosine = sine_and_cosine(turn * EIGHTH)
        cosine = tl.where((word & 1) != 0, 0.0 - cosine, cosine)
        swapped = ((word & 2) != 0).to(tl.int32)
        noise = scale * (radius * tl.where(swapped == half, cosine, sine))
        at = row * length + columns + (2 * pair + half) * GROUP
        units = tl.load(total + at, mask=active, other=0.0).to(tl.float64) / spacing
        whole = _rounded(units)
        rest = units - whole
        if MOVES:
            high, low = tl.load(lattices + row * 4 + 2), tl.load(lattices + row * 4 + 3)
            count = tl.load(points + at, mask=active, other=0).to(tl.float64)
            moved, moved_rest = _moved(count, high, low)
            point = moved + _rounded((rest + moved_rest) + noise)
        else:
            point = _rounded(rest + noise)
        value = ((whole + point) + 0.0) * spacing
        tl.store(total + at, value.to(total.dtype.element_ty), mask=active)


@triton.jit(do_not_specialize=["part", "length", "capacity", "width", "rows"])
def settle(
    total,
    points,
    keys,
    steps,
    part,
    lattices,
    listed,
    counts,
    spilt,
    length,
    capacity,
    width,
    rows,
    MOVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Release what `decide` has listed; arguments are its. Lists and table are empty afterwards."""
    which = tl.program_id(1)
    found = tl.load(counts + which * LINE)
    kept = tl.minimum(found, capacity)
    end = kept.to(tl.int64)
    if found > capacity:
        end += width.to(tl.int64) * rows
    start = tl.program_id(0).to(tl.int64) * BLOCK
    while start < end:
        place = start + tl.arange(0, BLOCK)
        entry = tl.load(listed + which * capacity + place, mask=place < kept, other=0)
        # Behind the list, the table: its lanes whose list this is.
        rest = tl.maximum(place - kept, 0)
        row, number = rest // width, rest % width
        own = (place >= kept) & (place < end) & ((number // SHARE + row * 7) % LISTS == which)
        bits = tl.load(spilt + rest, mask=own, other=0)
        tl.store(spilt + rest, bits & 0, mask=own & (bits != 0))
        row = tl.where(own, row, entry >> 44)
        lane = tl.where(own, number, (entry >> 16) & 0xFFFFFFF).to(tl.uint32)
        bits |= (entry & 0xFFFF).to(tl.int32)
        if tl.max(bits, 0) > 0:
            _settle_lanes(
                total, points, keys, steps, part, lattices, row, lane, bits, length, MOVES
            )
        start += tl.num_programs(0) * BLOCK
    # The program that is the last to end empties the lists: no other reads their counts then.
    if tl.atomic_add(counts + LISTS * LINE, 1) == tl.num_programs(0) * LISTS - 1:
        tl.store(counts + tl.arange(0, LISTS) * LINE, tl.zeros([LISTS], tl.int32))
        tl.store(counts + LISTS * LINE, 0)
