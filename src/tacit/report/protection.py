"""How much an epsilon protects, in words that need no mathematics.

The measure is how often someone is right who sees everything and has to guess, at even odds, which
of two neighbouring data sets a node has. That is a proved bound; the words for its size are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.report.wording import NOTHING, epsilon_text, guess_bound, lower_text, percent_up_text

MOST_SHOWN = 1000.0
_MORE = "more\u00a0than 1,000"
SIZE_NOTE = f"An epsilon of {_MORE} is no protection"


@dataclass(frozen=True)
class Protection:
    """The verdict on the weakest of some guarantees.

    Args:
        kind: of the banner that says it: `good`, `warn` or `bad`.
        words: what to call it.
        right_guess: how often the guess is right at most, as a percentage.
    """

    kind: str
    words: str
    right_guess: str

    def sentence(self, observer: str = "whoever sees everything") -> str:
        """The verdict, for a reader who knows nothing of epsilon.

        Args:
            observer: who guesses: what they see and know.
        """
        return f"{self.words}: {observer} guesses right with probability {self.right_guess} at most"


# Up to which probability of a right guess which words are said. A blind guess is right with 0.5.
_LEVELS = (
    (0.75, "good", "Strong protection"),
    (0.90, "good", "Moderate protection"),
    (0.99, "warn", "Weak protection"),
    (1.00, "bad", "Next to no protection"),
)


def protection(guarantees: Iterable[tuple[float, float]]) -> Protection:
    """Say what the weakest of some guarantees is worth.

    Args:
        guarantees: pairs of an epsilon and its delta, at least one.
    """
    bound = max(guess_bound(epsilon, delta) for epsilon, delta in guarantees)
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


def colluder_cells(
    colluding: int,
    epsilons: Sequence[float | None],
    deltas: Sequence[float | None],
    guaranteed: int,
) -> tuple[str, ...]:
    """What is said of one number of colluders: of the node with the weakest guarantee.

    Args:
        colluding: how many pool what they know.
        epsilons: certified against them, one a node.
        deltas: at which, one a node.
        guaranteed: against how many the run's guarantee is.
    """
    known = [
        (epsilon, delta)
        for epsilon, delta in zip(epsilons, deltas, strict=True)
        if epsilon is not None and delta is not None
    ]
    told = "yes" if colluding < guaranteed else "yes: the run's epsilon"
    if colluding > guaranteed:
        told = "no"
    if len(known) < len(epsilons) or not known:
        return str(colluding), "infinite", NOTHING, told
    highest = max(epsilon for epsilon, _ in known)
    return str(colluding), epsilon_words(highest), protection(known).right_guess, told
