"""The errors a user of tacit may meet, each with the exit code the command line gives it.

A leaf: imports nothing of tacit, and every other module may import it.

| error | exit code | meaning |
|---|---|---|
| `InputError` | 2 | something the user gave is wrong: a key, a file, a model, a data set, no room |
| `BudgetError` | 3 | the privacy budget forbids it |
| `PeerError` | 4 | a peer or a process was lost |
| `DivergenceError` | 2 | training left the finite numbers: a setting is too large |
| `LeakError` | 1 | a defect: something private was about to leave its node |

Anything else that escapes is a defect of ours, and exits with 1. What is allowed, but guarantees
nothing, is a `NotPrivateWarning`.
"""

from __future__ import annotations

import difflib
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import tacit_dp.alone  # noqa: F401  (`tacit/__init__.py` may be another project's)


class TacitError(Exception):
    """Base of every error that tacit raises on purpose; its text is one plain line.

    Attributes:
        public: whether the text may be told to other processes. It may where it speaks of public
            settings, budgets or peers alone; it must not where it may depend on private records.
    """

    exit_code = 1
    public = False

    def reported(self) -> str | None:
        """What other processes are told of it; None: nothing but its kind."""
        return str(self) if self.public else None

    def __reduce__(self) -> tuple[Any, ...]:  # a worker returns it
        return Exception.__new__, (type(self), *self.args), self.__dict__


class InputError(TacitError, ValueError):
    """The user's input is wrong.

    What the user wrote is quoted without control characters, and cut in its middle where it is
    long: one line whatever it was.

    Args:
        where: the key, argument or file at fault, as the user wrote it (`train.steps`).
        value: the value it had.
        expected: what would be right, in plain words.
        public: whether other processes may be told; see `TacitError`.
    """

    exit_code = 2

    def __init__(self, where: str, value: object, expected: str, *, public: bool = False) -> None:
        self.public = public
        self.where = where
        self.value = value
        self.expected = expected
        super().__init__(f"{_line(where, 200)} = {_shown(value)}: {_line(expected, 1000)}")


class FormatError(InputError):
    """A file of a format that another version of tacit writes.

    `found` is the version of its format, and `known` the one that this version of tacit reads.
    """

    def __init__(self, file: str, found: object, known: object) -> None:
        expected = f"this version of tacit reads format {known}: use the version that wrote it"
        super().__init__(f"{file}: format_version", found, expected)


class RecordsError(InputError):
    """Records of a node break a rule that is public: known here, and no more of them is told.

    Args:
        where: the node, key or file.
        found: what is wrong, for the node's own eyes: how many records break the rule, never
            which, nor what they hold.
        rule: in plain words.
        wrong: which records break it, for this process alone; None: nobody said.
    """

    def __init__(self, where: str, found: str, rule: str, wrong: Any = None) -> None:
        self.wrong = wrong
        super().__init__(where, found, rule)

    def reported(self) -> str:
        """The rule alone."""
        return f"its own records break a rule: {self.expected}"


class BudgetError(TacitError):
    """The privacy budget of one or more nodes forbids what was asked.

    Args:
        message: one plain line.
        public: whether others may read it, as where it follows from the experiment alone. What a
            ledger of data says of its sources and their records is for their owner's eyes.
    """

    exit_code = 3

    def __init__(self, message: str, *, public: bool = True) -> None:
        self.public = public
        super().__init__(message)


class PeerError(TacitError):
    """A peer or a process was lost, or sent what cannot be; that is public."""

    exit_code = 4
    public = True


class AbsentError(PeerError):
    """Not all processes of the run came to where they meet."""


class GoneError(PeerError):
    """A site for which something waits has been left out of the run, which goes on without it."""


class LeftOutError(PeerError):
    """The others go on without this site, and take it back if it begins a new session."""


class MeetAnewError(PeerError):
    """The session is given up, of which this site has begun no step: all meet in a new one.

    Attributes:
        without: ranks for whom it could not begin, and who need not come.
    """

    def __init__(self, message: str, without: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.without = without


class DivergenceError(TacitError):
    """The model of a node is no longer finite."""

    exit_code = 2


class LeakError(TacitError):
    """A defect: an algorithm hands over what is neither public nor released."""


class NotPrivateWarning(UserWarning):
    """A run that guarantees nothing to anybody: it adds no noise, or none that counts."""


class PrivateRecordsWarning(UserWarning):
    """What is strange in private records, or equal in public ones; for the own screen alone."""


def _shown(value: object) -> str:
    try:
        return _line(repr(os.fspath(value) if isinstance(value, os.PathLike) else value), 120)
    except (ValueError, RecursionError):  # an integer of thousands of digits; nested too deeply
        return f"({type(value).__name__})"


def _line(text: str, most: int) -> str:
    """A text of so many characters at most, all of which can be printed."""
    if len(text) > most:
        text = f"{text[: most // 2 - 3]} ... {text[len(text) - most // 2 + 2 :]}"
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def is_meant(word: str, known: Iterable[str], alike: float = 0.66) -> str | None:
    """The known word that is meant, of which another is a slip; None: none is near enough.

    Capitals count for nothing, and a space or an underscore is a hyphen.

    >>> is_meant("AUROC", ["accuracy", "auc"]), is_meant("fedprox", ["ring", "star"])
    ('auc', None)
    """
    bare, plain = _bare(word[:100]), {_bare(option): option for option in sorted(known)}
    begun = [option for option in plain if len(bare) > 2 and option.startswith(bare)]
    whole = [option for option in plain if option in bare.split("-")]
    for found in (begun, whole):
        if len(found) == 1:
            return plain[found[0]]
    close = difflib.get_close_matches(bare, plain, n=1, cutoff=alike)
    return plain[close[0]] if close else None


def nearest(word: str, known: Iterable[str], alike: float = 0.66) -> str:
    """Say which known word is meant, or list them all: the end of an error message.

    >>> nearest("epsilo", ["epsilon", "delta"])
    "did you mean 'epsilon'?"
    """
    options = sorted(known)
    close = is_meant(word, options, alike)
    return f"known are: {', '.join(options)}" if close is None else f"did you mean {close!r}?"


def _bare(word: str) -> str:
    return word.lower().replace("_", "-").replace(" ", "-")


def plain_rule(faults: Sequence[Mapping[str, Any]]) -> str:
    """What would be right in the place of a value that pydantic refused, in plain words.

    The faults are as `ValidationError.errors` has them; of a value that may be of several kinds,
    they say why it is none of each.
    """
    first = faults[0]
    rules = dict.fromkeys(_rule(each) for each in faults if each["input"] is first["input"])
    return ", or ".join(list(rules)[:3])


def _rule(fault: Mapping[str, Any]) -> str:
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        close = is_meant(str(context["tag"]), tags)
        hint = "" if close is None else f"did you mean {close!r}? "
        return f"{hint}must be one of {', '.join(map(repr, tags))}"
    for end in ("_type", "_parsing", "_from_float"):
        kind = kind.removesuffix(end)
    if kind in _RULES:
        plain = {name: f"{x:g}" if isinstance(x, float) else x for name, x in context.items()}
        return _RULES[kind].format(**plain)
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should ")
    return f"must {message}" if message.startswith(("be ", "have ")) else message


_RULES = {
    "bool": "must be true or false",
    "dict": "must be a section with keys of its own",
    "extra_forbidden": "is not known",
    "float": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "int": "must be a whole number",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list": "must be a list",
    "missing": "must be given",
    "model": "must be a section with keys of its own",
    "model_attributes": "must be a section with keys of its own",
    "string": "must be a text",
    "string_too_short": "must not be empty",
    "too_long": "must have {max_length} of them at most",
    "too_short": "must have {min_length} of them or more",
    "tuple": "must be a list",
}


def describe(error: BaseException) -> str:
    """An exception's type and message on one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")


OPTIONAL = MappingProxyType(
    {
        "zenoh": ("sites", "eclipse-zenoh>=1.9"),
        "flwr": ("flower", "flwr>=1.42"),
        "matplotlib": ("pictures", "matplotlib>=3.8"),
        "mlflow": ("mlflow", "mlflow-skinny>=2.14"),
        "torch.utils.tensorboard": ("tensorboard", "tensorboard>=2.16"),
        "wandb": ("wandb", "wandb>=0.17"),
        "nvflare": ("nvflare", "nvflare>=2.9"),
        "networkx": ("graphs", "networkx>=3.2"),
        "onnx": ("onnx", "onnx>=1.18"),
        "onnxscript": ("onnx", "onnxscript>=0.5"),
        "pandas": ("", "pandas>=2.2"),
        "polars": ("", "polars>=1.0"),
    }
)
"""Of a module that is imported only where it is used: its extra, if any, and what to install."""


def optional(module: str) -> Any:
    """Import a module of a package that is not installed with tacit: every such import is by this.

    Raises:
        InputError: it cannot be imported; says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        extra, requirement = OPTIONAL[module]
        in_a_clone = f"pip install '.[{extra}]' in a clone of the repository, or " if extra else ""
        remedy = f"cannot be imported ({error}): run {in_a_clone}pip install '{requirement}'"
        raise InputError("package", module, remedy, public=True) from None


_OF_FILES = ("out", "checkpoint", "ledger", "session", "RUN")  # errors that speak of files alone


def public_line(error: BaseException) -> str | None:
    """What a status or a log may say of an error beyond its kind; None: nothing.

    Its text where that is public, or is about a file of a run that cannot be read or written. Any
    other may quote a record.
    """
    if isinstance(error, InputError) and error.where in _OF_FILES:
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return error.reported() if isinstance(error, TacitError) else None
