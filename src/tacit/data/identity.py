"""What tells one record from another: a keyed digest of its inputs, for ledgers of data.

A budget belongs to records, so that a ledger must know them again: at another node, in another
order, from another file, under another name, with another label. Hence a digest is that of a
record's input numbers alone:

- *not of its targets*: a person's record with a corrected label is still that person's record;
- *not of its shape or type*: the numbers are rounded to float32, so that a set kept in float64, as
  integers, or as images in place of rows is the same set;
- *not of zeros before its first and after its last other number*: how wide a record is may depend
  on the records beside it, where a file leaves zeros out or short sequences are filled up;
- *not of its place*: records with equal inputs have equal digests.

Each of these can only take two records for one, which charges more. What a digest does not see
through is other numbers: records that were scaled, cropped or perturbed anew are new records.

The key keeps an outsider from testing whether a known record is there. A digest has 64 bits: two of
60,000 records share one by chance with a probability below 1e-9, which again charges more.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["record_digests"]

_BYTES = 8
_ROWS = 4096  # converted at a time


def record_digests(inputs: Tensor, key: bytes) -> NDArray[np.uint64]:
    """The digest of every record.

    Args:
        inputs: `[records, ...]`, real numbers of any type, on any device.
        key: secret, 1 to 64 bytes.

    Returns:
        `[records]`, in the order of the records.
    """
    rows = inputs.detach().reshape(len(inputs), math.prod(inputs.shape[1:]))
    found: list[bytes] = []
    for first in range(0, len(rows), _ROWS):
        block = rows[first : first + _ROWS].to("cpu", torch.float32) + 0.0  # -0.0 becomes 0.0
        numbers = block.numpy().astype("<f4", copy=False)
        found += [
            hashlib.blake2b(row.tobytes().strip(b"\0"), digest_size=_BYTES, key=key).digest()
            for row in numbers
        ]
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)
