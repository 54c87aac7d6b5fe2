"""Discrete normals of pairs: drawn once, added to the row of one end, subtracted from the other's.

A row is cut into strips of `STRIP` columns. The keystream of a strip begins with 64-bit words for
the columns whose 16-bit word does not decide (`tacit.privacy.noise.discrete`), which they take one
after the other; the 16-bit words of the columns follow. So what is drawn for a column depends on no
later one, nor on the other pairs, nor on which piece of columns a thread works on.

Most of the time goes into the keystream, reading the table and adding, hence the order of work:
first all numbers of a strip, then those in doubt, which are odd in the table, then the two sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.kernels.compile import compiled
from tacit.kernels.threads import over_threads
from tacit.privacy.noise.discrete import (
    CELL_BITS,
    DOUBT,
    FINE_BITS,
    LAST_BITS,
    NormalTable,
    size_of,
)
from tacit.privacy.noise.draws import BLOCK_BYTES, NodeKeys

STRIP = 4096
PURPOSE = "pair noise"

# Strips of a piece at most (a read of a keystream takes 3 us beside its bytes), and bytes of
# keystream that a thread holds, which its core's cache does too.
_MOST_STRIPS = 8
_MOST_BYTES = 1 << 18
# Blocks of further bits for a number that 16 and 64 bits leave in doubt.
_MORE_BLOCKS = -(-(FINE_BITS + LAST_BITS) // (8 * BLOCK_BYTES))
# In place of the number of a fine word, where the strip had none left.
_UNDRAWN = -1

_LOW, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)
_ODD = np.uint64(0x0001_0001_0001_0001)
_CELL, _SIGN = np.uint16((1 << CELL_BITS) - 1), np.uint16(1 << CELL_BITS)


def fine_words(points: int) -> int:
    """How many 64-bit words a strip has, an even number: some twice as many as it needs.

    It needs 0.52 `points` on average: the sizes below 4.2 deviations have a border each, and a cell
    has 1/8 of the strip's columns. Where they do not suffice, others do.
    """
    return max(64, points)


def draw_rows(
    keys: NodeKeys,
    ends: Mapping[int, tuple[int, int]],
    rows: int,
    columns: int,
    counter: int,
    table: NormalTable,
    dtype: torch.dtype = torch.int32,
) -> Tensor:
    """Twice the sums of the numbers of pairs, `[rows, columns]`, on all threads of PyTorch.

    Beside the result it holds some megabytes a thread, however many pairs there are. The keys are
    those of the pairs, by their places; `ends` has of each place that is drawn the row to which its
    numbers are added and that from which they are subtracted, -1 where an end is elsewhere.
    `counter` is the first block of the keystreams, and `dtype`, int16 or int32, holds all sums.
    """
    for place in ends:
        keys.check(place)
    sums = torch.empty(rows, columns, dtype=dtype)
    if not ends:
        return sums.zero_()
    whole, strips = sums.numpy(), -(-columns // STRIP)
    threads = max(1, min(torch.get_num_threads(), strips))
    # As many pieces for every thread, of about one size.
    turns = max(1, -(-strips // (threads * _MOST_STRIPS)))
    width = max(1, -(-strips // (threads * turns))) * STRIP
    left = iter(range(0, columns, width))  # taking the next is atomic under the interpreter's lock

    def work(left: Iterator[int]) -> None:
        room = _Scratch(min(columns, width), len(ends), fine_words(table.points))
        for start in left:
            stop = min(start + width, columns)
            # Here, since memory is in reach of the thread's core from now on.
            whole[:, start:stop] = 0
            _add_piece(keys, ends, whole, start, stop, counter, table, room)

    over_threads(work, [left] * threads)
    return sums


class _Scratch:
    """Working memory of one thread: keystreams of some pairs, `[pairs, words]`, with `reserve` fine
    words a strip, and what is left to do with care: see `_add_pairs`.
    """

    def __init__(self, columns: int, pairs: int, reserve: int) -> None:
        self.reserve = reserve
        # Encryption asks for room of one more block.
        words = -(-columns // STRIP) * (STRIP // 4 + reserve) + BLOCK_BYTES // 8
        self.stream = np.empty((max(1, min(pairs, _MOST_BYTES // (8 * words))), words), np.uint64)
        self.left = np.empty((columns, 3), np.int64)


def _add_piece(
    keys: NodeKeys,
    ends: Mapping[int, tuple[int, int]],
    sums: NDArray[Any],
    start: int,
    stop: int,
    counter: int,
    table: NormalTable,
    room: _Scratch,
) -> None:
    """Add all pairs to some columns of `[rows, columns]`, which begin at a strip."""
    strip_bytes = 2 * STRIP + 8 * room.reserve
    strips, rest = divmod(stop - start, STRIP)
    wanted = strips * strip_bytes + (8 * room.reserve + 2 * rest if rest else 0)
    zeros = bytes(-(-wanted // BLOCK_BYTES) * BLOCK_BYTES)
    first_block = counter + start // STRIP * (strip_bytes // BLOCK_BYTES)
    places = list(ends)
    for begin in range(0, len(places), len(room.stream)):
        some = places[begin : begin + len(room.stream)]
        for row, place in enumerate(some):
            keys.read(place, PURPOSE, first_block, zeros, room.stream[row].view(np.uint8).data)
        targets = np.array([ends[place] for place in some], np.int64)
        done = 0
        while done < len(some):
            done, count = _add_pairs(
                room.stream,
                room.reserve,
                targets,
                done,
                table.numbers,
                table.first,
                table.cells,
                table.fine,
                sums,
                start,
                stop,
                room.left,
            )
            for column, word, at in room.left[:count].tolist():
                fine = None if at == _UNDRAWN else int(room.stream[done - 1, at])
                number = _carefully(keys, some[done - 1], counter, column, word, fine, table)
                for end, sign in zip(ends[some[done - 1]], (1, -1), strict=True):
                    if end >= 0:
                        sums[end, column] += 2 * sign * number


def _carefully(
    keys: NodeKeys,
    place: int,
    counter: int,
    column: int,
    word: int,
    fine: int | None,
    table: NormalTable,
) -> int:
    """A number with all its bits: of its word, of its fine word (None: a new one), and 512 more."""
    buffer = bytearray((_MORE_BLOCKS + 1) * BLOCK_BYTES)
    zeros = bytes(_MORE_BLOCKS * BLOCK_BYTES)
    first = counter + column * _MORE_BLOCKS
    keys.read(place, f"{PURPOSE}, more bits", first, zeros, memoryview(buffer))
    drawn = int.from_bytes(buffer[: FINE_BITS // 8], "little")
    last = int.from_bytes(buffer[FINE_BITS // 8 : (FINE_BITS + LAST_BITS) // 8], "little")
    cell = word % (1 << CELL_BITS)
    size = size_of(table, cell, drawn if fine is None else fine, last)
    return size if cell == word else -size


@compiled
def _look_up(
    words: NDArray[np.uint64], numbers: NDArray[np.int16], room: NDArray[np.int16]
) -> None:
    """The numbers of words, of which a 64-bit word holds four."""
    for i in range(len(words)):
        word = words[i]
        four = room[4 * i : 4 * i + 4]
        four[0] = numbers[word & _LOW]
        four[1] = numbers[(word >> _SIXTEEN) & _LOW]
        four[2] = numbers[(word >> np.uint64(32)) & _LOW]
        four[3] = numbers[word >> np.uint64(48)]


@compiled
def _in_doubt(room: NDArray[np.int16], length: int, columns: NDArray[np.int64]) -> int:
    """Write which of the first `length` columns are in doubt, and return how many.

    Without branches, which none could foresee. `room` has fours of numbers, some of them `DOUBT`,
    and `columns`, which is written, room for twice as many.
    """
    fours, half = room.view(np.uint64), len(columns) // 2
    some = count = 0
    for four in range(len(fours)):
        columns[half + some] = 4 * four
        some += (fours[four] & _ODD) != 0
    for i in range(some):
        begin = columns[half + i]
        for c in range(begin, begin + 4):
            columns[count] = c
            count += (room[c] == DOUBT) & (c < length)
    return count


@compiled
def _settle(
    words: NDArray[np.uint16],
    fines: NDArray[np.uint64],
    first: NDArray[np.int16],
    cells: NDArray[np.uint16],
    borders: NDArray[np.uint64],
    room: NDArray[np.int16],
    doubtful: NDArray[np.int64],
    start: int,
    begin: int,
    left: NDArray[np.int64],
    count: int,
) -> int:
    """Decide numbers in doubt by fine words; what they leave becomes 0, and is written down.

    Returns:
        How many are left then.
    """
    last = len(cells) - 1
    for i in range(len(doubtful)):
        c = doubtful[i]
        cell, size, settled = words[c] & _CELL, np.int64(0), False
        if i < len(fines):
            # The least size whose border lies above the word: mostly the first, or the next one.
            fine, size = fines[i], np.int64(first[cell])
            size += np.int64(fine > borders[size])
            while size <= last and cells[size] == cell and fine > borders[size]:
                size += 1
            settled = bool(size > last or cells[size] != cell or fine != borders[size])
        if not settled:
            left[count, 0], left[count, 1] = start + c, words[c]
            left[count, 2] = begin + i if i < len(fines) else _UNDRAWN
            count += 1
            size = np.int64(0)
        room[c] = -2 * size if words[c] >= _SIGN else 2 * size
    return count


@compiled
def _add(sums: NDArray[Any], room: NDArray[np.int16], sign: int) -> None:
    if sign > 0:
        for c in range(len(sums)):
            sums[c] += room[c]
    else:
        for c in range(len(sums)):
            sums[c] -= room[c]


@compiled
def _add_pairs(
    stream: NDArray[np.uint64],
    reserve: int,
    ends: NDArray[np.int64],
    pair: int,
    numbers: NDArray[np.int16],
    first: NDArray[np.int16],
    cells: NDArray[np.uint16],
    borders: NDArray[np.uint64],
    sums: NDArray[Any],
    first_column: int,
    last_column: int,
    left: NDArray[np.int64],
) -> tuple[int, int]:
    """Add twice the numbers of pairs to the rows of one end, and subtract them at the other.

    Stops behind a pair of which something is still in doubt: `left` is written with what is, and
    was not added, as column, word, and place of the fine word in the stream, or `_UNDRAWN`;
    `[columns that are drawn, 3]`. `stream` `[pairs, words]` has the keystreams, and `reserve`
    64-bit words begin a strip, see `fine_words`. `ends` `[pairs, 2]` are the rows of both ends,
    negative where an end is elsewhere; `pair` is the first. `numbers`, `first`, `cells` and
    `borders` (`fine`) are the table's. The columns of `sums` from the first to before the last are
    changed.

    Returns:
        The pair to go on with, and how many numbers of the one before it are left.
    """
    count = 0
    room = np.empty(STRIP, np.int16)
    doubtful = np.empty(2 * STRIP + 2, np.int64)
    while pair < len(ends) and count == 0:
        for strip in range(-(-(last_column - first_column) // STRIP)):
            start = first_column + strip * STRIP
            length = min(STRIP, last_column - start)
            fours = -(-length // 4)
            begin = strip * (STRIP // 4 + reserve)
            fines = stream[pair, begin : begin + reserve]
            words = stream[pair, begin + reserve : begin + reserve + fours]
            _look_up(words, numbers, room)
            some = _in_doubt(room[: 4 * fours], length, doubtful)
            count = _settle(
                words.view(np.uint16),
                fines,
                first,
                cells,
                borders,
                room,
                doubtful[:some],
                start,
                begin,
                left,
                count,
            )
            if ends[pair, 0] >= 0:
                _add(sums[ends[pair, 0], start : start + length], room[:length], 1)
            if ends[pair, 1] >= 0:
                _add(sums[ends[pair, 1], start : start + length], room[:length], -1)
        pair += 1
    return pair, count
