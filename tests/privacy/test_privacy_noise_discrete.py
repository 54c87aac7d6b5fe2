"""Discrete normals: borders against another library, the loop against big numbers, and the law."""

import itertools
from bisect import bisect_right
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from tacit.errors import InputError
from tacit.privacy.noise import pair_loop
from tacit.privacy.noise.discrete import CELL_BITS, DOUBT, FINE_BITS, LAST_BITS, size_of, table_of
from tacit.privacy.noise.draws import keystream, position, seeded_keys
from tacit.privacy.noise.pair_loop import PURPOSE, STRIP, draw_rows, fine_words

BITS = CELL_BITS + FINE_BITS + LAST_BITS
KEYS = seeded_keys(9, range(2))
TABLE = table_of(64)


@cache
def weights(points, sizes):
    """Probabilities of sizes, both signs together, by the definition."""
    with mpmath.workdps(220):
        tails = [mpmath.exp(-mpmath.mpf(m * m) / (2 * points * points)) for m in range(sizes)]
        total = 2 * mpmath.fsum(tails) - 1
        return [(weight if m == 0 else 2 * weight) / total for m, weight in enumerate(tails)]


def of_word(word):
    """Cell and sign."""
    return word % (1 << CELL_BITS), -1 if word >> CELL_BITS else 1


@pytest.mark.parametrize("points", [16, 64])
def test_borders_are_those_of_the_law_to_their_last_bit(points):
    borders = table_of(points).borders
    with mpmath.workdps(220):
        exact = weights(points, len(borders) + 200)
        below = mpmath.mpf(0)
        for border, weight in zip(borders, exact, strict=False):
            below += weight
            assert abs(border - below * mpmath.mpf(2) ** BITS) < 1.001
        # What lies beyond the last border is next to nothing.
        assert (1 - below) * mpmath.mpf(2) ** BITS < 10


def test_probabilities_are_as_close_as_the_proof_says():
    """A share of 2^-50 where they are 2^-540, and less than 2^-524 for all others."""
    borders = [0, *TABLE.borders, 1 << BITS]
    with mpmath.workdps(220):
        exact = weights(64, len(borders) + 200)
        rest = mpmath.fsum(weight for weight in exact if weight < mpmath.mpf(2) ** -540)
        assert rest < mpmath.mpf(2) ** -525
        for (low, high), weight in zip(itertools.pairwise(borders), exact, strict=False):
            if weight >= mpmath.mpf(2) ** -540:
                found = (high - low) / mpmath.mpf(2) ** BITS
                assert abs(found / weight - 1) <= mpmath.mpf(2) ** -49


@pytest.mark.parametrize("points", [16, 64, 512])
def test_every_word_decides_what_its_cell_has_in_common(points):
    """All 2^16 words: the first and the last uniform of a cell have the number of the table."""
    table = table_of(points)
    width = FINE_BITS + LAST_BITS
    doubts = 0
    for word, number in enumerate(table.numbers.tolist()):
        cell, sign = of_word(word)
        first = bisect_right(table.borders, cell << width)
        last = bisect_right(table.borders, ((cell + 1) << width) - 1)
        if number == DOUBT:
            doubts += 1
            assert first < last
            assert table.first[cell] == first
        else:
            assert first == last
            assert number == 2 * sign * first
    assert doubts < 0.55 * points * (1 << (CELL_BITS + 1)) / 4096


@pytest.mark.parametrize("points", [0, 8, 63, 1024])
def test_other_lattices_are_refused(points):
    with pytest.raises(InputError, match="a power of two from 16 to 512"):
        table_of(points)


def by_hand(key, columns, table=TABLE):
    """The numbers of a key, from its keystream and whole numbers alone."""
    reserve = fine_words(table.points)
    strips = -(-columns // STRIP)
    stream = keystream(KEYS, key, PURPOSE, 3, strips * (8 * reserve + 2 * STRIP), 1)
    more = keystream(KEYS, key, f"{PURPOSE}, more bits", 3, 80 * columns, 1).reshape(-1, 80)
    found = []
    for strip in stream.reshape(strips, -1):
        fines = iter(strip[: 8 * reserve].view("<u8").tolist())
        for word in strip[8 * reserve :].view("<u2").tolist():
            if len(found) == columns:
                break
            cell, sign = of_word(word)
            fine = last = 0
            if table.numbers[word] == DOUBT:
                bits = more[len(found)].tobytes()
                last = int.from_bytes(bits[8:72], "little")
                fine = next(fines, int.from_bytes(bits[:8], "little"))
            found.append(sign * size_of(table, cell, fine, last))
    return found


def drawn(columns, table=TABLE):
    """The numbers of two keys, `[2, columns]`, each at one end that is here."""
    ends = {0: (0, -1), 1: (-1, 1)}
    rows = draw_rows(KEYS, ends, 2, columns, position(3, 1), table).numpy()
    assert not (rows % 2).any()
    return rows // np.array([[2], [-2]])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 100, STRIP, 2 * STRIP + 13])
def test_numbers_are_those_of_the_keystream(columns):
    assert drawn(columns).tolist() == [by_hand(0, columns), by_hand(1, columns)]


def test_strips_that_run_out_of_fine_words_take_others(monkeypatch):
    monkeypatch.setattr(pair_loop, "fine_words", lambda points: 2)
    monkeypatch.setitem(globals(), "fine_words", lambda points: 2)
    assert drawn(2 * STRIP).tolist() == [by_hand(0, 2 * STRIP), by_hand(1, 2 * STRIP)]


def test_a_fine_word_on_a_border_asks_for_more_bits():
    """Uniforms whose first 79 bits are a border's: both sides of it, by the bits that follow."""
    reserve = 8
    for m in (0, 5, 200, 300, len(TABLE.borders) - 1):
        cell, fine = int(TABLE.cells[m]), int(TABLE.fine[m])
        stream = np.zeros((1, reserve + STRIP // 4), np.uint64)
        stream[0, :3] = fine, max(fine, 1) - 1, min(fine + 1, (1 << 64) - 1)
        words = stream[0, reserve:].view(np.uint16)
        words[:3] = cell, cell, cell + (1 << CELL_BITS)
        sums, left = np.zeros((1, 3), np.int32), np.zeros((3, 3), np.int64)
        ends = np.array([[0, -1]])
        parts = (TABLE.numbers, TABLE.first, TABLE.cells, TABLE.fine)
        done, count = pair_loop._add_pairs(stream, reserve, ends, 0, *parts, sums, 0, 3, left)
        # In the tail several borders agree in all 79 bits, or nearly.
        known = set(zip(TABLE.cells.tolist(), TABLE.fine.tolist(), strict=True))
        drawn_words = [int(stream[0, column]) for column in range(3)]
        ties = [c for c, word in enumerate(drawn_words) if (cell, word) in known]
        assert 0 in ties
        found = [[c, int(words[c]), c] for c in ties]
        assert (done, left[:count].tolist()) == (1, found)
        for column, sign in ((1, 1), (2, -1)):
            number = 0 if column in ties else size_of(TABLE, cell, drawn_words[column], 0)
            assert sums[0, column] == 2 * sign * number
        rest = TABLE.borders[m] % (1 << LAST_BITS)
        if rest:
            assert size_of(TABLE, cell, fine, rest - 1) <= m
        assert size_of(TABLE, cell, fine, rest) > m


def test_numbers_on_a_border_are_settled_with_all_their_bits(monkeypatch):
    cell, fine = int(TABLE.cells[7]), int(TABLE.fine[7])
    rest = TABLE.borders[7] % (1 << LAST_BITS)
    for bits, size in ((rest - 1, 7), (rest, 8)):
        monkeypatch.setattr(pair_loop, "size_of", lambda t, c, f, _, b=bits: size_of(t, c, f, b))
        found = pair_loop._carefully(KEYS, 0, 0, 5, cell + (1 << CELL_BITS), fine, TABLE)
        assert found == -size


def test_half_a_million_numbers_follow_the_law():
    count = 250_000
    numbers = drawn(count).ravel()
    edge = 192
    exact = [float(weight) for weight in weights(64, 2000)]
    bins = np.arange(-edge, edge + 1)
    expected = np.array([exact[abs(m)] / (1 if m == 0 else 2) for m in bins])
    beyond = 1.0 - expected.sum()
    observed = np.bincount(np.clip(numbers, -edge - 1, edge + 1) + edge + 1)
    observed = np.append(observed[1:-1], observed[0] + observed[-1])
    assert stats.chisquare(observed, 2 * count * np.append(expected, beyond)).pvalue > 1e-3
    assert abs(numbers.std() / 64 - 1) < 4 / np.sqrt(4 * count)
    assert abs(stats.kurtosis(numbers)) < 4 * np.sqrt(24 / (2 * count))
    assert torch.tensor(numbers).abs().max() < 64 * 7
