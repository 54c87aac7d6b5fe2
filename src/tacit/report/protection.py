"""How much an epsilon protects, in words that need no mathematics.

The measure is how often someone is right who sees everything and has to guess, at even odds, which
of two neighbouring data sets a node has. That is a proved bound; the words for its size are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.report.view import Banner, Table
from tacit.report.wording import NOTHING, epsilon_text, guess_bound, lower_text, percent_up_text

MOST_SHOWN = 1000.0
_MORE = "more\u00a0than 1,000"
SIZE_NOTE = f"An epsilon of {_MORE} is no protection"


@dataclass(frozen=True)
class Protection:
    """The verdict on the weakest of some guarantees.

    The `kind` is of the banner that says it: `good`, `warn` or `bad`. `right_guess` is how often
    the guess is right at most, as a percentage.
    """

    kind: str
    words: str
    right_guess: str

    def banner(self, observer: str, detail: str, *, in_doubt: bool) -> Banner:
        """The verdict, for a reader who knows nothing of epsilon.

        The `observer` is who guesses, in words: what they see and know. It is `in_doubt` where an
        audit accuses the program.
        """
        told = f"{observer} guesses right with probability {self.right_guess} at most"
        if in_doubt:
            words = f"{self.words[0].lower()}{self.words[1:]}"
            return Banner("warn", f"Only if the program is correct: {words}: {told}", [detail])
        return Banner(self.kind, f"{self.words}: {told}", [detail])


# Up to which probability of a right guess which words are said. A blind guess is right with 0.5.
_LEVELS = (
    (0.75, "good", "Strong protection"),
    (0.90, "good", "Moderate protection"),
    (0.99, "warn", "Weak protection"),
    (1.00, "bad", "Next to no protection"),
)
LEVELS = (
    "strong up to 75\u202f%, moderate up to 90\u202f%, weak up to 99\u202f%, next to none above. "
    "The bound is proved; the words are a convention."
)


def protection(
    guarantees: Iterable[tuple[float, float]], guesses: Sequence[float] = ()
) -> Protection:
    """Say what the weakest of some guarantees is worth: pairs (epsilon, delta), at least one.

    `guesses` are what is certified of the same, if it is, of how often a guess is right.
    """
    bound = max(guesses or [guess_bound(epsilon, delta) for epsilon, delta in guarantees])
    kind, words = next((kind, words) for most, kind, words in _LEVELS if bound <= most)
    return Protection(kind, words, percent_up_text(bound))


def epsilon_words(value: float | None) -> str:
    """Write an epsilon, rounded up; one that is beyond all meaning is not written as a number.

    >>> epsilon_words(2.9912), epsilon_words(4.1e289).replace(chr(0xA0), " ")
    ('3.00', 'more than 1,000')
    """
    return _MORE if value is not None and value > MOST_SHOWN else epsilon_text(value)


def lower_words(value: float | None) -> str:
    """Write a lower bound of an epsilon, rounded down, likewise."""
    return _MORE if value is not None and value > MOST_SHOWN else lower_text(value)


def upper_words(value: float | None) -> str:
    """Write an upper bound of an epsilon; one that is beyond all meaning bounds nothing.

    >>> [upper_words(value).replace(chr(0xA0), " ") for value in (2.9912, 4.1e289)]
    ['at most 3.00', 'no bound below 1,000']
    """
    beyond = value is not None and value > MOST_SHOWN
    return "no bound below\u00a01,000" if beyond else f"at most {epsilon_text(value)}"


def size_note(rows: Iterable[Sequence[str]]) -> str:
    """What to say below a table some of whose cells are beyond all meaning; else nothing."""
    beyond = any(cell.startswith(_MORE) for row in rows for cell in row)
    return f"{SIZE_NOTE}." if beyond else ""


def colluders_table(
    by_colluders: Iterable[Sequence[float | None]],
    deltas: Sequence[float | None],
    guaranteed: int,
    *,
    epsilon: str = "epsilon",
) -> Table:
    """The weakest guarantee of all nodes, by how many nodes pool what they know.

    `by_colluders` are epsilons certified against 0, 1, 2 ... colluders, each `[nodes]`, at the
    `deltas`, `[nodes]`. The run's guarantee is against `guaranteed` colluders.
    """
    columns = ("colluding nodes", f"{epsilon}, highest node", "right guess at most", "allowed for")
    rows = []
    for colluding, epsilons in enumerate(by_colluders):
        pairs = zip(epsilons, deltas, strict=True)
        known = [(one, delta) for one, delta in pairs if one is not None and delta is not None]
        told = "no" if colluding > guaranteed else "yes"
        told += ": the run's epsilon" if colluding == guaranteed else ""
        cells = "infinite", NOTHING
        if known and len(known) == len(epsilons):
            cells = epsilon_words(max(known)[0]), protection(known).right_guess
        rows.append((str(colluding), *cells, told))
    return Table(columns, rows, left=columns[3:], note=size_note(rows))
