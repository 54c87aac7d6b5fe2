"""What several runs cost together, by their ledgers: the truth about a figure.

Every run on the same records is a release of its own, those of other seeds, of other points of a
grid, and those that were cut off included; picking the best afterwards does not undo the others.
What one record pays is bounded by the adaptive composition of all runs, each with the mechanism of
the node where the record may lie. Another seed deals the records anew, so that any node may be the
one: of a run counts a mechanism that dominates those of all its nodes
(`tacit.privacy.ledger.spent.dominating`). Of runs of single parts of one division (`nodes.part`)
a record is in one alone: they count as one run with these nodes.

Mechanisms that none is known to dominate are not composed but summed: basic composition, each at
an equal share of delta.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit import privacy
from tacit.analysis.settings.runs import read_ended
from tacit.errors import InputError
from tacit.privacy import REPLACE_ONE, Composed, Mechanism
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import combined, cost, dominating, run_mechanism
from tacit.report.documents.base import plain_json
from tacit.report.documents.figure import SpentTogether
from tacit.report.wording import epsilon_text
from tacit.training.run_folder.folder import read_config


def spent_by_node(folders: Iterable[Path], deltas: Sequence[float]) -> tuple[float, ...]:
    """Certified epsilon, at each node's delta, of what its runs in some folders released."""
    ledgers = [path / "ledger.sqlite" for path in folders]
    runs = [run for path in ledgers if path.is_file() for run in read_ledger(path).runs]
    return tuple(
        cost(combined(run_mechanism(run, node) for run in runs), delta)
        for node, delta in enumerate(deltas)
    )


@dataclass(frozen=True)
class _Spent:
    """What one run folder released of the records of a data set.

    `delta` is the smallest of its nodes' (None where nothing is accounted), and `nodes` are the
    charged mechanisms of each kind of node; without one, nothing was released. `private`: whether a
    bound holds at all. `division` is what deals records to parts, of which the run has `part`; that
    of a run with all nodes is its own.
    """

    dataset: str
    delta: float | None
    nodes: tuple[Mechanism, ...]
    private: bool
    readable: bool = True
    division: str = ""
    part: int = 0


def _as_wholes(runs: Sequence[_Spent]) -> list[tuple[Mechanism, ...]]:
    """The mechanisms of the nodes of each run; first, second... runs of all parts count as one."""
    turns: Counter[tuple[str, int]] = Counter()
    wholes: dict[tuple[str, int], tuple[Mechanism, ...]] = {}
    for run in runs:
        whole = run.division, turns[run.division, run.part]
        turns[run.division, run.part] += 1
        wholes[whole] = wholes.get(whole, ()) + run.nodes
    return list(wholes.values())


def together(nodes: Sequence[Sequence[Mechanism]], delta: float) -> tuple[float, bool]:
    """Certified epsilon, at `delta`, of several runs on the same records: an upper bound.

    Of each run come the mechanisms of its nodes, at any of which a record may lie, all of one
    relation, unit and trust model. Also returned is whether all runs could be composed: otherwise
    epsilon is in part a plain sum.
    """
    dominated = [(run, dominating(run)) for run in nodes]
    composed = [mechanism for _, mechanism in dominated if mechanism is not None]
    summed = [run for run, mechanism in dominated if mechanism is None]
    share = delta / (len(summed) + bool(composed))
    epsilon = sum(
        max(privacy.epsilon(mechanism, delta=share) for mechanism in run) for run in summed
    )
    if composed:
        epsilon += privacy.epsilon(Composed(composed), delta=share)
    return epsilon, not summed


def spent_together(folders: Iterable[Path]) -> list[SpentTogether]:
    """What all run folders, finished or not, cost together: by data set and relation.

    Relation, unit and trust model of a row are None of runs that nothing bounds, and epsilon is
    None where none holds.
    """
    spent = [_spent(path) for path in folders]
    rows: list[SpentTogether] = []
    for dataset in dict.fromkeys(run.dataset for run in spent):
        of_dataset = [run for run in spent if run.dataset == dataset]
        bounded = [run for run in of_dataset if run.private and run.readable and run.nodes]
        kinds: dict[tuple[str, str, str], list[_Spent]] = {}
        for run in bounded:
            head = run.nodes[0]
            kinds.setdefault((head.relation, head.unit, head.trust_model), []).append(run)
        rows += [_row(dataset, of_dataset, kind, runs) for kind, runs in kinds.items()]
        if not kinds and not all(run.private and run.readable for run in of_dataset):
            rows.append(_row(dataset, of_dataset, (None, None, None), ()))
    return rows


def _row(
    dataset: str,
    of_dataset: Sequence[_Spent],
    kind: tuple[str | None, str | None, str | None],
    runs: Sequence[_Spent],
) -> SpentTogether:
    """What the runs of one kind cost together, and how many of the data set have no bound."""
    delta = min((run.delta for run in runs if run.delta is not None), default=None)
    epsilon, composed = None, True
    if delta is not None:
        epsilon, composed = together(_as_wholes(runs), delta)
    relation, unit, trust_model = kind
    return SpentTogether(
        dataset=dataset,
        relation=relation,
        unit=unit,
        trust_model=trust_model,
        runs=len(runs),
        epsilon=plain_json(epsilon),
        delta=delta,
        composed=composed,
        not_private=sum(not run.private and run.readable for run in of_dataset),
        unreadable=sum(not run.readable for run in of_dataset),
    )


def _spent(path: Path) -> _Spent:
    try:
        config = read_config(path)
    except (InputError, OSError, ValueError):
        return _Spent("unknown", None, (), private=False, readable=False)
    dataset = config.task.dataset
    if config.not_private_reason is not None:
        return _Spent(dataset, None, (), private=False)
    if not (path / "ledger.sqlite").is_file():  # the ledger is made before anything is released
        ended = read_ended(path) is not None
        return _Spent(dataset, None, (), private=True, readable=not ended)
    try:
        (run,) = read_ledger(path / "ledger.sqlite").runs
        kinds = {(str(run.statements[node]), run.charged[node]): node for node in run.statements}
        nodes = [run_mechanism(run, node) for node in kinds.values()]
    except (InputError, ValueError):
        return _Spent(dataset, None, (), private=True, readable=False)
    dealt = config.nodes
    how = (config.task, config.train.seed, dealt.partition, dealt.alpha, dealt.per_node)
    return _Spent(
        dataset,
        min(config.per_node(config.privacy.delta)),
        tuple(mechanism for mechanism in nodes if mechanism is not None),
        True,
        division=str(path) if dealt.part is None else repr((how, dealt.part[1])),
        part=0 if dealt.part is None else dealt.part[0],
    )


def sentences(rows: Sequence[SpentTogether], *, chosen: bool) -> list[str]:
    """What a reader must know before believing a figure, in plain words.

    `chosen`: of the grid of some line one point is shown.
    """
    texts = []
    runs = sum(row.runs for row in rows)
    if runs > 1:
        texts.append(
            "The epsilon of a line is that of one run alone. Every run on the same records is a "
            "release of its own, other seeds and other points of a grid included."
        )
    texts += [_total_sentence(row) for row in rows if row.runs > 1]
    for row in {row.dataset: row for row in rows}.values():
        for count, why in ((row.not_private, _NOT_PRIVATE), (row.unreadable, _UNREADABLE)):
            if count:
                texts.append(f"Runs on the records of {row.dataset} {why}: {count}.")
    if chosen:
        texts.append(
            "Of a grid the point that ends best on the test records is shown: its accuracy is "
            "chosen among several and flatters it, and the choice rests on all runs of the grid, "
            "so that it costs what they cost together."
        )
    return texts


_NOT_PRIVATE = (
    "without an epsilon (no noise, noise that is seeded or not accounted, or a bound that is "
    "assumed), whose release nothing bounds and which are in no total"
)
_UNREADABLE = "that cannot be read, so that what they released is in no total"


def _total_sentence(row: SpentTogether) -> str:
    relation = "replacing one" if row.relation == REPLACE_ONE else "adding or removing one"
    start = f"All {row.runs} runs on the records of {row.dataset} together"
    if row.epsilon is None:
        return f"{start}: no finite epsilon holds."
    how = "" if row.composed else ", in part a plain sum over runs"
    return (
        f"{start} cost certified epsilon {epsilon_text(row.epsilon)} at delta "
        f"{epsilon_text(row.delta)} ({relation} {row.unit}, trust model "
        f"{row.trust_model}{how}) if all were released, or if one of them was chosen by its "
        "result."
    )
