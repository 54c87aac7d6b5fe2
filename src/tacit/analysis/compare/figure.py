"""What is compared: the lines of a figure, each resolved to experiments that could run.

A figure file is an ordinary experiment, the base, with a `[figure]` section. Of a line, later ones
win: the base, the line's `set`, then with `--quick` the figure's and the line's `quick`, the
values of a point of its `grid`, `--set`. The word `"unset"` takes a key out.

A section `[compare]` stands for one whose lines are the experiment and its `.baselines`, which are
made of it when `quick` and `--set` have changed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from tacit.analysis.compare.baselines import Baseline, baseline_lines, baseline_notes, refuse_apart
from tacit.analysis.recommend import read_facts, recommend_for
from tacit.analysis.settings.changes import changed, flat_keys, grid_points, read_toml
from tacit.analysis.settings.runs import run_digest
from tacit.config import Config, load_config, read_sections
from tacit.config.schema import Section
from tacit.errors import InputError, nearest
from tacit.report.compare_panels import MEASURE_TITLES
from tacit.report.measures import MEASURES
from tacit.training.job import DTYPES
from tacit.training.records import NO_TEST_RECORDS

TOGETHER = "together"  # the experiment itself, beside its baselines
SERIES = tuple(MEASURE_TITLES)
MOST_RUNS = 10_000
MOST_SEEDS = 1_000

Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Seeds = (
    Annotated[int, Field(ge=1, le=MOST_SEEDS, strict=True)]
    | Annotated[tuple[Seed, ...], Field(min_length=1)]
)
Number = Annotated[float, Field(allow_inf_nan=False)]
Kind = TypeVar("Kind", bound=Section)


@dataclass(frozen=True)
class FigureOptions:
    """What the command line changes about a figure.

    `overrides` (`section.key=value`) are for every line. With `quick` the `quick` keys count, and
    of a grid its first point only. `seeds` are repetitions; None: as the figure has them.
    """

    overrides: Sequence[str] = ()
    quick: bool = False
    seeds: int | None = None


@dataclass(frozen=True)
class FigureSetting:
    """One point of a line's grid, by `section.key`, and its resolved experiment, once a seed."""

    choice: Mapping[str, Any]
    runs: tuple[Config, ...]


@dataclass(frozen=True)
class FigureLine:
    """One line of a figure; lines of one `group` share a panel.

    `published` figures are those that a paper prints, by measure, as printed (accuracies in per
    cent). Of the `settings`, which are run, the one that ends best is drawn.
    """

    name: str
    group: str
    published: Mapping[str, float]
    settings: tuple[FigureSetting, ...]


@dataclass(frozen=True)
class Figure:
    """All that is to be run and drawn: `y`, of `SERIES` or a metric of the runs, over the axes `x`.

    `source` is where the original is printed, and `notes` are what the reader should know, a
    sentence each.
    """

    title: str
    source: str
    notes: tuple[str, ...]
    x: tuple[str, ...]
    y: str
    quick: bool
    lines: tuple[FigureLine, ...]


def _measured(name: str) -> str:
    if name in SERIES or name in MEASURES or ":" in name:
        return name
    raise ValueError(f"must be a measure; {nearest(name, [*SERIES, *MEASURES])}")


_Measured = Annotated[str, AfterValidator(_measured)]


class _LineSection(Section):
    """`[[figure.line]]`."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    group: str = ""
    set: dict[str, Any] = Field(default_factory=dict)
    quick: dict[str, Any] = Field(default_factory=dict)
    published: dict[_Measured, Number] = Field(default_factory=dict)
    grid: dict[str, Any] = Field(default_factory=dict)


class _FigureSection(Section):
    """`[figure]`; an empty title is that of the file."""

    title: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    seeds: Seeds = 1
    x: Annotated[
        tuple[Literal["records", "steps", "rounds", "bytes", "epsilon", "budget"], ...],
        Field(min_length=1),
    ] = ("steps", "bytes")
    y: _Measured | None = None
    quick: dict[str, Any] = Field(default_factory=dict)
    line: tuple[dict[str, Any], ...] = ()


class _CompareSection(_FigureSection):
    """`[compare]`, whose lines are not given."""

    x: tuple[Literal["records", "steps", "rounds"], ...] = ("records", "steps")
    baselines: Annotated[tuple[Baseline, ...], Field(min_length=1)]


def load_figure(files: Sequence[Path], options: FigureOptions = FigureOptions()) -> Figure:
    """Read one file with a section `[figure]` or `[compare]`, or plain ones, each a line.

    Raises:
        InputError: naming the line, the key, its value and what would be right.
    """
    if not files:
        raise InputError("FILE", [], "name at least one experiment file")
    raws = [read_toml(Path(file)) for file in files]
    for file, raw in zip(files, raws, strict=True):
        for own in {"figure", "compare"} & raw.keys() if len(files) > 1 else ():
            raise InputError(
                "FILE", str(file), f"has a [{own}] of its own: give it alone, or plain files only"
            )
    if len(files) == 1:
        (file,), (raw,) = map(Path, files), raws
        if "compare" in raw:
            raw, options = _comparison(file, raw, options)
        raw.setdefault("figure", {"line": [{"name": _stem(file)}]})
        return figure_of(file, raw, options)
    names = _names([Path(file) for file in files])
    section = _FigureSection(title=", ".join(names))
    seeds = options.seeds or 1
    lines = tuple(
        FigureLine(
            name, "", {}, (_setting(name, raw, {}, options.overrides, seeds, Path(file).parent),)
        )
        for name, raw, file in zip(names, raws, files, strict=True)
    )
    return _made(section, options, lines)


def figure_of(file: Path, raw: dict[str, Any], options: FigureOptions = FigureOptions()) -> Figure:
    """The figure of a base with a section `[figure]`, as it stands in a file."""
    section = _validated(_FigureSection, raw.pop("figure"), "figure")
    if not section.line:
        raise InputError("figure.line", [], "needs one [[figure.line]] or more, each with a name")
    line_sections = [
        _validated(_LineSection, line, f"figure.line {place + 1}")
        for place, line in enumerate(section.line)
    ]
    names: set[str] = set()
    for line in line_sections:
        if line.name in names:
            raise InputError("figure.line.name", line.name, "names two lines: each needs its own")
        names.add(line.name)
    general, seeds = _quick(section, options, "figure.quick")
    lines = tuple(_line(line, raw, general, options, seeds, file.parent) for line in line_sections)
    title = section.title or _stem(file)
    return _made(section.model_copy(update={"title": title}), options, lines)


def _comparison(
    file: Path, raw: Mapping[str, Any], options: FigureOptions
) -> tuple[dict[str, Any], FigureOptions]:
    """The figure that a file with `[compare]` stands for, and what is left to change about it."""
    section = _validated(_CompareSection, raw["compare"], "compare")
    if section.line or "figure" in raw:
        raise InputError("[compare]", "", "has lines of its own: leave out those of a figure")
    changes, seeds = _quick(section, options, "compare.quick")
    plain = {name: keys for name, keys in raw.items() if name != "compare"}
    plain = changed(plain, flat_keys(changes, "compare.quick"))
    base = load_config(plain, overrides=options.overrides, folder=file.parent)
    refuse_apart(base)
    known = [read_facts(run) for run in _repeated(base, seeds)]
    fewest = tuple(map(min, zip(*(facts.records for facts in known), strict=True)))
    facts = replace(known[0], records=fewest)
    if facts.public is None:
        raise InputError("task.test", None, NO_TEST_RECORDS)
    if base.given is not None:
        base = recommend_for(base.given, facts).config
    facts = facts.seen_through(base.task.feature_map, DTYPES[base.train.dtype])
    figure = section.model_dump(exclude={"baselines", "quick"}) | {
        "seeds": seeds,
        "notes": (*section.notes, *baseline_notes(base, section.baselines)),
        "line": (
            {"name": TOGETHER, "group": TOGETHER},
            *baseline_lines(base, section.baselines, facts),
        ),
    }
    return {**read_sections(base), "figure": figure}, replace(options, overrides=())


def _quick(
    section: _FigureSection, options: FigureOptions, where: str
) -> tuple[dict[str, Any], int | tuple[int, ...]]:
    """What `quick` changes, where it is asked for, and how often everything is repeated."""
    changes = dict(section.quick) if options.quick else {}
    repeats = {"seeds": changes.pop("seeds", section.seeds)}
    seeds = _validated(_FigureSection, repeats, where).seeds
    return changes, options.seeds or seeds


def _made(section: _FigureSection, options: FigureOptions, lines: tuple[FigureLine, ...]) -> Figure:
    runs = len(runs_of(lines))
    if runs > MOST_RUNS:
        raise InputError("figure", f"{runs} runs", f"are too many: at most {MOST_RUNS}")
    x = tuple(dict.fromkeys(section.x))
    # The metric that the runs of all lines are judged by; test accuracy where they differ.
    asked = {run.task.metric for run in runs_of(lines)}
    metrics = asked.pop() if len(asked) == 1 else None
    y = section.y or ("test_accuracy" if metrics is None else metrics[0])
    measured = {*SERIES, *(name for run in runs_of(lines) for name in run.task.metric or ())}
    wanted = [("figure.y", y)]
    wanted += [
        (f"line {line.name!r}, published", name) for line in lines for name in line.published
    ]
    for where, name in wanted:
        if name not in measured:
            raise InputError(where, name, "is no metric of the runs: add it to task.metric")
    return Figure(section.title, section.source, section.notes, x, y, options.quick, lines)


def runs_of(lines: Sequence[FigureLine]) -> list[Config]:
    """Every experiment, as often as it is in a line."""
    return [run for line in lines for setting in line.settings for run in setting.runs]


def _line(
    line: _LineSection,
    base: Mapping[str, Any],
    general: Mapping[str, Any],
    options: FigureOptions,
    seeds: Any,
    folder: Path,
) -> FigureLine:
    changes = flat_keys(line.set, f"line {line.name!r}, set")
    if options.quick:
        changes |= flat_keys(general, "figure.quick") | flat_keys(
            line.quick, f"line {line.name!r}, quick"
        )
    raw = changed(base, changes)
    points = grid_points(line.grid, f"line {line.name!r}, grid")
    settings: dict[str, FigureSetting] = {}
    for point in points[:1] if options.quick else points:
        setting = _setting(line.name, raw, point, options.overrides, seeds, folder)
        settings.setdefault(run_digest(setting.runs[0]), setting)  # an override may make two one
    return FigureLine(line.name, line.group, line.published, tuple(settings.values()))


def _setting(
    name: str,
    raw: Mapping[str, Any],
    choice: Mapping[str, Any],
    overrides: Iterable[str],
    seeds: int | Sequence[int],
    folder: Path,
) -> FigureSetting:
    try:
        config = load_config(changed(raw, choice), overrides=overrides, folder=folder)
    except InputError as error:
        raise InputError(f"line {name!r}, {error.where}", error.value, error.expected) from None
    return FigureSetting(choice, _repeated(config, seeds))


def _repeated(config: Config, seeds: int | Sequence[int]) -> tuple[Config, ...]:
    """The experiment once a seed; a seeded noise changes along, or it would hide the spread."""
    first, noise = config.train.seed, config.privacy.noise_seed
    run_seeds = [first + turn for turn in range(seeds)] if isinstance(seeds, int) else list(seeds)
    if len(set(run_seeds)) < len(run_seeds):
        raise InputError("figure.seeds", run_seeds, "must differ from each other")
    return tuple(
        config.with_keys(
            train={"seed": seed},
            privacy={"noise_seed": None if noise is None else noise + turn},
        )
        for turn, seed in enumerate(run_seeds)
    )


def _validated(kind: type[Kind], values: Mapping[str, Any], where: str) -> Kind:
    """A section of the figure, which an error calls `where`."""
    try:
        return kind.model_validate(values)
    except InputError as error:
        _, dot, key = error.where.partition(".")
        raise InputError(f"{where}{dot}{key}", error.value, error.expected) from None


def _stem(file: Path) -> str:
    return Path(file).stem or str(file)


def _names(files: Sequence[Path]) -> list[str]:
    """Stems where they differ, else whole paths."""
    stems = [_stem(file) for file in files]
    names = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    if len(set(names)) < len(names):
        raise InputError("FILE", names, "names a file twice")
    return names
