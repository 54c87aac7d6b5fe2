"""Makes the runs of a figure that are not there yet, gathers all, and says what they cost together.

What they cost together, by their ledgers, is the truth about a figure (`spent_together`).
Every run on the same records is a release of its own, those of other seeds, of other points of a
grid, and those that were cut off included; picking the best afterwards does not undo the others.
What one record pays is bounded by the adaptive composition of all runs, each with the mechanism of
the node where the record may lie. Another seed deals the records anew, so that any node may be the
one: of a run counts a mechanism that dominates those of all its nodes
(`tacit.privacy.ledger.spent.dominating`). Of runs of single parts of one division (`nodes.part`)
a record is in one alone: they count as one run with these nodes.

Mechanisms without a known one that dominates them are not composed but summed: basic
composition, each at an equal share of delta.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit import privacy
from tacit.analysis.compare.figure import Figure, run_digest
from tacit.analysis.compare.pool import Outcome, RunRequest, run_all
from tacit.analysis.compare.store import FINAL, RunPlace, Store, read_ended, read_rows
from tacit.config import Config, to_toml
from tacit.errors import InputError
from tacit.privacy import REPLACE_ONE, Composed, Mechanism
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import dominating, run_mechanism
from tacit.report.documents.base import plain_json
from tacit.report.documents.figure import SpentTogether
from tacit.report.documents.metrics import Measurement
from tacit.report.documents.run import ResultDocument
from tacit.report.wording import epsilon_text
from tacit.training.run_folder.folder import read_config


@dataclass(frozen=True)
class LineRun:
    """One run of a line.

    Args:
        config: the resolved experiment.
        path: its folder.
        cached: whether it had ended before.
        result: `result.json` of a run that has ended; None: it has not.
        rows: `metrics.jsonl`.
        error: why there is no result, or why it is not that of a whole run.
        code: the exit code of that error; 0 without.
    """

    config: Config
    path: Path
    cached: bool
    result: ResultDocument | None
    rows: Sequence[Measurement]
    error: str | None = None
    code: int = 0

    @property
    def complete(self) -> bool:
        """Whether there is a model at the end, be it that the budget ended the run."""
        return self.result is not None and self.result.status != "diverged"


@dataclass(frozen=True)
class FigureRuns:
    """All runs of a figure.

    Args:
        figure: what was asked for.
        runs: by line, by setting, by seed.
        made: how many were run now.
        cached: how many had ended before.
        stopped: whether the user ended it.
    """

    figure: Figure
    runs: tuple[tuple[tuple[LineRun, ...], ...], ...]
    made: int
    cached: int
    stopped: bool

    @property
    def members(self) -> list[LineRun]:
        """Every run once a line."""
        return [run for line in self.runs for setting in line for run in setting]


@dataclass(frozen=True)
class Monitor:
    """What the caller hears, and is asked, while runs are made.

    Args:
        begin: hears how many runs there are and how many of them have ended before.
        step: hears the number of runs that were completed, parts of running ones included.
        done: hears the line's name, the run's seed, and how it ended.
        should_stop: True ends everything cleanly.
    """

    begin: Callable[[int, int], None] = lambda total, cached: None
    step: Callable[[float], None] = lambda completed: None
    done: Callable[[str, int, Outcome], None] = lambda name, seed, outcome: None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class _WantedRun:
    """A run that lines ask for; several may ask for the same."""

    line: str
    config: Config
    place: RunPlace


def gather(
    figure: Figure, store: Store, *, jobs: int = 1, monitor: Monitor = Monitor()
) -> FigureRuns:
    """Run what has not ended yet, and give all runs of the figure.

    A run that fails does not end the others: its error is kept beside it. Runs that reserve in
    ledgers of the nodes' data take turns, whatever `jobs` says.

    Args:
        figure: what to run.
        store: where.
        jobs: processes at once.
        monitor: what hears how far it is.
    """
    # All lines with the first seed, then all with the next: what is cut short still compares them.
    wanted_runs: dict[str, _WantedRun] = {}
    settings = [(line.name, setting) for line in figure.lines for setting in line.settings]
    for turn in range(max((len(setting.runs) for _, setting in settings), default=0)):
        for name, setting in settings:
            config = setting.runs[turn]
            digest = run_digest(config)
            if digest not in wanted_runs:
                wanted_runs[digest] = _WantedRun(name, config, store.find(name, config))
    outcomes = _run(wanted_runs, store, jobs, monitor)
    runs = tuple(
        tuple(
            tuple(_member(config, wanted_runs, outcomes) for config in setting.runs)
            for setting in line.settings
        )
        for line in figure.lines
    )
    return FigureRuns(
        figure=figure,
        runs=runs,
        made=sum(outcome.status in FINAL for outcome in outcomes.values()),
        cached=len(wanted_runs) - len(outcomes),
        stopped=any(outcome.status in ("stopped", "cancelled") for outcome in outcomes.values()),
    )


def worst_code(gathered: FigureRuns) -> int:
    """The exit code: that of the worst failure, a defect of ours before a lost process and so on.

    A point of a grid that diverges fails nothing while another point of the line is complete.
    """
    codes = {0}
    for line in gathered.runs:
        some_complete = any(all(run.complete for run in setting) for setting in line)
        codes |= {
            run.code
            for setting in line
            for run in setting
            if not (some_complete and run.result is not None and run.result.status == "diverged")
        }
    return max(codes, key=lambda code: (0, 2, 3, 4, 1).index(code))


def _run(
    wanted_runs: Mapping[str, _WantedRun], store: Store, jobs: int, monitor: Monitor
) -> dict[str, Outcome]:
    """The outcomes of the runs that had not ended, by digest."""
    missing = {digest: run for digest, run in wanted_runs.items() if run.place.result is None}
    names = list(missing)
    monitor.begin(len(wanted_runs), len(wanted_runs) - len(missing))
    shares = dict.fromkeys(range(len(names)), 0.0)

    def step(place: int, share: float) -> None:
        shares[place] = share
        monitor.step(len(wanted_runs) - len(missing) + sum(shares.values()))

    def done(place: int, outcome: Outcome) -> None:
        run = missing[names[place]]
        step(place, 1.0)
        monitor.done(run.line, run.config.train.seed, outcome)

    requests = [
        RunRequest(
            experiment=to_toml(run.config),
            folder=str(run.place.path),
            resume=run.place.resume,
            instead=str(store.fresh(run.place.path)),
        )
        for run in missing.values()
    ]
    reserved = any(run.config.privacy.ledger is not None for run in missing.values())
    ended = run_all(
        requests,
        jobs=1 if reserved else jobs,
        on_step=step,
        on_done=done,
        should_stop=monitor.should_stop,
    )
    return dict(zip(names, ended, strict=True))


def _member(
    config: Config, wanted_runs: Mapping[str, _WantedRun], outcomes: Mapping[str, Outcome]
) -> LineRun:
    digest = run_digest(config)
    place, outcome = wanted_runs[digest].place, outcomes.get(digest)
    path = place.path if outcome is None else Path(outcome.folder)
    result = read_ended(path)
    if result is None or result.status not in FINAL:
        result = None
    member = LineRun(config, path, outcome is None, result, read_rows(path))
    if result is not None and result.status == "diverged":
        return replace(member, error=result.message, code=2)
    if result is not None:
        return replace(member, error=result.message)
    if outcome is None or outcome.status in ("stopped", "cancelled"):
        return replace(member, error="not finished: run the comparison again to go on")
    return replace(member, error=outcome.message, code=outcome.code)


@dataclass(frozen=True)
class _Spent:
    """What one run folder released.

    Args:
        dataset: whose records it used.
        delta: the smallest of its nodes'; None where nothing is accounted.
        nodes: the charged mechanism of each kind of node; empty: nothing was released.
        private: whether a bound holds for it at all.
        readable: whether its config and ledger could be read.
        division: what deals records to parts; that of a run with all nodes is its own.
        part: which of them it has.
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

    Args:
        nodes: of each run, the mechanisms of its nodes; a record may lie at any of them. All of
            one relation, unit and trust model.
        delta: in (0, 1).

    Returns:
        Epsilon, and whether all runs could be composed (otherwise it is in part a plain sum).
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
    """What all run folders cost together, a row for each data set and neighbouring relation.

    Args:
        folders: run folders, finished or not.

    Returns:
        Rows whose relation, unit and trust model are None of runs that nothing bounds, and whose
        epsilon (certified, of all together) is None where none holds.
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

    Args:
        rows: what its runs cost together.
        chosen: whether of the grid of some line one point is shown.
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
