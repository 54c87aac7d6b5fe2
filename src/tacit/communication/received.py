"""The one border for what comes from other processes: every value is parsed into a bounded type.

What stands in the store and what peers share came over a network, from whoever
can reach its ports. Here it becomes a value of a known type whose numbers are bounded, whose
floats are finite and whose texts and lists are short, or a `PeerError` that names the rank. JSON
only: nothing is unpickled, and nothing is nested deeper than the parser allows. What a value must
be *in this run* (a step of the plan, as many entries as a rank has nodes) its reader checks.

No value names the nodes that it is about: a list has one entry for each node that the placement
gives to the rank, so that nobody can speak of another's nodes.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tacit.errors import PeerError, TacitError

_LARGEST = 4 * 2**20  # bytes of one text in the store, which cuts the connection above 8 MiB
_LONGEST_LINE = 1000  # characters of what may reach a terminal
_MOST_RANKS = 2**20
_MOST_NODES = 2**20
_MOST_INTERVALS = 10_000  # of one node; neighbours that touch are one
_MOST_METRICS = 20  # of an experiment
_MOST_NAMES = 10_000  # in one text; what is told of one of them that is wrong takes a kilobyte
_NAME = re.compile(rb'"[ \t\r\n]*:')

T = TypeVar("T")
Interval: TypeAlias = tuple[int, int]
Scalar: TypeAlias = str | int | float


@dataclass(frozen=True)
class Form(Generic[T]):
    """What one kind of value must be: parsed strictly, from JSON of at most `longest` bytes."""

    type: TypeAdapter[T]
    longest: int = _LARGEST

    def write(self, value: T) -> str:
        """The value as JSON; a float that is not finite becomes null.

        What is longer than the others would read is a TacitError.
        """
        text = self.type.dump_json(value, warnings=False).decode()
        if len(text) > self.longest:
            raise TacitError(f"{len(text)} bytes are to be shared, and {self.longest} can be")
        return text

    def read(self, text: str | bytes, rank: int, what: str) -> T:
        """The value that a text of `rank` holds; `what` it is ("last step") stands in the error.

        What is no such value is a PeerError of one plain line.
        """
        if len(text) > self.longest:
            raise PeerError(
                f"rank {rank} sent a wrong {what}: it has {len(text)} bytes, and {self.longest} "
                "are allowed"
            )
        # The parser tells of every name that is wrong, all at once, before anything here sees one.
        plainly = text.encode(errors="replace") if isinstance(text, str) else text
        if next(islice(_NAME.finditer(plainly), _MOST_NAMES, None), None) is not None:
            raise PeerError(
                f"rank {rank} sent a wrong {what}: it has more than {_MOST_NAMES} names"
            )
        try:
            return self.type.validate_json(text, strict=True)
        except ValidationError as error:
            raise PeerError(plain(f"rank {rank} sent a wrong {what}{_reason(error)}")) from None


def plain(line: str) -> str:
    """One printable line of bounded length: what others say must not move a terminal's cursor."""
    words = " ".join(line[: 10 * _LONGEST_LINE].split())
    return "".join(character for character in words if character.isprintable())[:_LONGEST_LINE]


def _reason(error: ValidationError) -> str:
    """The first thing that is wrong with a value, the value cut short."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{str(part)[:40]}]" for part in first["loc"])
    at = f" (at {where})" if where else ""
    return f"{at}: {first['msg']}; it is {reprlib.repr(first['input'])}"


_Step = Annotated[int, Field(ge=0, le=2**53)]
_Beat = Annotated[int, Field(ge=-1, le=2**53)]
_Rank = Annotated[int, Field(ge=0, lt=_MOST_RANKS)]
_Count = Annotated[int, Field(ge=1, le=2**53)]
_Integer = Annotated[int, Field(gt=-(2**63), lt=2**63)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Short = Annotated[str, Field(max_length=200)]
_Key = Annotated[str, Field(pattern=r"^[\w. -]{1,80}$")]
_Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Interval = tuple[_Step, _Step]
_Identity = Annotated[dict[_Key, _Short | _Integer | _Finite], Field(max_length=1000)]

# A list is given up at its first wrong entry: the errors of millions would take all memory.
_of_nodes = Field(max_length=_MOST_NODES, fail_fast=True)
_Sizes = Annotated[list[_Step], _of_nodes]


class _Model(BaseModel):
    """Exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Experiment(_Model):
    """What a process runs, and how many records each of its nodes has."""

    identity: _Identity
    records: _Sizes


class RunId(_Model):
    """The identity of the run in a process's ledger, if that is there, and a random number."""

    known: _Id | None
    random: _Id


class FolderName(_Model):
    """What the folder of the run is called, and whether its run goes on; said by rank 0."""

    name: Annotated[str, Field(pattern=r"^\w[\w. -]{0,99}$")] | None
    resume: bool


class ReportedScores(_Model):
    """Of the whole run; None where a number is not finite, or a baseline is not known."""

    mean: _Finite | None
    worst: _Finite | None
    consensus: _Finite | None
    baseline: _Finite | None = None


class Summary(_Model):
    """What rank 0 wrote down of the whole run.

    `test_metrics` stand in the order of the experiment, which all have.
    """

    test_accuracy: ReportedScores | None
    test_loss: ReportedScores | None
    test_metrics: Annotated[list[ReportedScores], Field(max_length=_MOST_METRICS)]
    bytes_sent_by_node: _Sizes


class Report(_Model):
    """Why a run ends."""

    kind: Literal["InputError", "BudgetError", "PeerError", "DivergenceError", "TacitError"]
    line: Annotated[str, Field(max_length=_LONGEST_LINE)]


class Beat(_Model):
    """What a site says to another about once a second; see `tacit.communication.secure.wire`.

    A long message that occupies a line is no standstill: `came` counts the pieces that have come to
    the site, and `given` how often others said that pieces came to them while the site had
    messages under way to them.
    """

    nonce: _Id
    nonce_of_receiver: _Id | None
    token: _Id
    echo: _Id | None
    start: _Step
    counter: _Step
    due: _Step
    again: bool
    step: _Beat
    waiting_for: Annotated[int, Field(ge=-1, lt=_MOST_RANKS)]
    came: _Step
    given: _Step
    state: Literal["forming", "running", "done", "failed"]
    report: Report | None
    left: Annotated[tuple[tuple[_Rank, _Step], ...], Field(max_length=_MOST_RANKS, fail_fast=True)]
    takes_back: bool | None

    @property
    def stands(self) -> tuple[int, ...]:
        """What stays the same where a site does nothing."""
        return (self.step, self.waiting_for, self.start, self.came, self.given)

    def is_after(self, other: Beat) -> bool:
        """Whether the site said it later than another one, of the same session of it."""
        return (self.start, self.counter) > (other.start, other.counter)


def _form(kind: Any, longest: int = _LARGEST) -> Form[Any]:
    """Built when it is first used: a process that is alone uses none."""
    return Form(TypeAdapter(kind, config=ConfigDict(defer_build=True)), longest)


def _listed(kind: Any, most: int) -> Any:
    return Annotated[list[kind], Field(max_length=most, fail_fast=True)]


_Vote = tuple[_Step, _Step, bool, _Count]

FLAG: Form[bool] = _form(bool, 10)
STEP: Form[int] = _form(_Step, 20)
STEPS: Form[list[int]] = _form(_listed(_Step, 1000), 2**16)
TOKEN: Form[str] = _form(_Token, 20)
PUBLIC_KEY: Form[str] = _form(_PublicKey, 68)
CHARGED: Form[list[list[tuple[int, int]]]] = _form(
    _listed(_listed(_Interval, _MOST_INTERVALS), _MOST_NODES)
)
IDENTITY: Form[dict[str, str | int | float]] = _form(_Identity, 2**19)
LABEL_COUNTS: Form[list[list[float]]] = _form(_listed(_listed(_Finite, 100_000), _MOST_NODES))
EXPERIMENT = Form(TypeAdapter(Experiment))
RUN_ID = Form(TypeAdapter(RunId), 200)
SESSION_ID: Form[str] = _form(_Id, 40)
FOLDER = Form(TypeAdapter(FolderName), 1000)
SUMMARY: Form[Summary | None] = _form(Summary | None)
REPORT = Form(TypeAdapter(Report), 2**14)
BEAT = Form(TypeAdapter(Beat), 2**17)
HEARTBEAT: Form[tuple[int, int, int | None, bool]] = _form(
    tuple[_Beat, _Beat, _Rank | None, bool], 100
)
VOTE: Form[tuple[int, int, bool, int]] = _form(_Vote, 80)
VOTES: Form[list[tuple[int, int, bool, int]]] = _form(_listed(_Vote, _MOST_RANKS), 2**20)
