"""One question asked of many mechanisms, or of many numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import Mechanism

Question = TypeVar("Question", bound=Callable[..., Any])


def vectorised(question: Question) -> Question:
    """A function of a mechanism and of numbers, over lists of mechanisms and arrays of numbers.

    They are broadcast: what comes back is an array of their common shape, or a pair of arrays. A
    mechanism and plain numbers give a plain answer. What is neither is an InputError.
    """
    names = list(signature(question).parameters)

    @wraps(question)
    def asked(mechanism: Any, *more: Any, **named: Any) -> Any:
        given = dict(zip(names[1:], more, strict=False)) | named
        at = {name: _numbers(name, value) for name, value in given.items() if value is not None}
        if len(more) >= len(names) or not given.keys() <= set(names):
            return question(mechanism, *more, **named)  # Python says what is wrong
        mechanisms = np.asarray(mechanism, dtype=object)
        for one in mechanisms.flat:
            if not isinstance(one, Mechanism):
                expected = "must be a mechanism, such as `privacy.Gaussian(2.0, 100)`, or a list"
                raise InputError(names[0], one, expected)
        try:
            shape = np.broadcast_shapes(mechanisms.shape, *(v.shape for v in at.values()))
        except ValueError:
            sizes = {names[0]: mechanisms.shape} | {name: v.shape for name, v in at.items()}
            raise InputError("shapes", sizes, "must be one another's, or of one number") from None
        columns = [np.broadcast_to(v, shape).ravel().tolist() for v in (mechanisms, *at.values())]
        rows = [
            question(row[0], **dict(zip(at, row[1:], strict=True)))
            for row in zip(*columns, strict=True)
        ]
        if shape == ():
            return rows[0]
        if rows and isinstance(rows[0], tuple):
            return tuple(np.asarray(column).reshape(shape) for column in zip(*rows, strict=True))
        return np.asarray(rows, dtype=np.float64).reshape(shape)

    return cast("Question", asked)


def _numbers(name: str, values: Any) -> Any:
    try:
        found = np.asarray(values)
    except ValueError:
        found = np.asarray(None)
    if found.dtype.kind not in "iuf" and found.size:
        raise InputError(name, values, "must be a number, or an array of numbers")
    return found
