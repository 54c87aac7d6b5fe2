"""The folder of a search as documents: `search.json`, `tune.json`, and `trial.json` of its runs."""

from __future__ import annotations

from typing import Any, Literal

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text

Cost = Literal["public", "composed", "random-stopping"]


class SearchDocument(Document):
    """`search.json`: what marks the folder of a search, made before anything runs.

    `digest` is of the experiment with its search, which is resumed as it began; `epsilon` that of
    every trial alone, one a node, empty where trials run on public records. `reservation` is what
    the search is known by in ledgers of data.
    """

    format_version: Count
    digest: Text
    epsilon: Items[Items[Number]]
    reservation: Text


class PrivateDraws(Document):
    """`private/draws.json`: the secret settings of the trials, in their order."""

    format_version: Count
    settings: Items[Count]


class TrialMark(Document):
    """`trial.json` in the folder of a run: that it is a trial, and what must be quoted of it."""

    format_version: Count
    cost: Cost
    sentence: Text


class TrialDocument(Document):
    """One trial: `epsilon` is of it alone, the largest over nodes; `score` is None of one lost."""

    choice: dict[str, Any]
    folder: Text
    status: Text
    score: OptionalNumber
    epsilon: OptionalNumber


class PlannedTrial(Document):
    """A setting before it runs: `epsilon` is what one trial of it may spend by itself.

    `noise_multiplier` is that of the first step, the least over nodes.
    """

    choice: dict[str, Any]
    steps: Count
    epsilon: OptionalNumber
    noise_multiplier: OptionalNumber


class TunePlanDocument(Document):
    """What a search would do and cost: `epsilon` of all of it, one a node; see `TuneDocument`."""

    cost: Cost
    measure: Text
    law: Text | None
    trials: Items[PlannedTrial]
    private: Flag
    epsilon: Items[OptionalNumber]
    budget: Items[OptionalNumber]
    delta: Items[Number]
    trust: Text
    sentences: Items[Text]


class TuneDocument(Document):
    """`tune.json`: what was searched, what was chosen, and what that cost in all.

    `cost` is the way in which choosing is paid for, and `settings` are what there was to choose
    from. Trials are judged by `measure`, on public test records; `law` is that of their number,
    None where it is fixed. Of random stopping, `trials` is empty: who runs the search alone may
    know of them. `winner` (the chosen values) and `folder` (of its run) are None where no trial
    ended with a model. `epsilon` is of everything that the search released, one a node, at `delta`:
    what must be quoted. `private` says whether it means anything, and `trust` against whom it
    holds.
    """

    format_version: Count
    tacit_version: Text
    cost: Cost
    measure: Text
    settings: Items[dict[str, Any]]
    law: Text | None
    trials: Items[TrialDocument]
    winner: dict[str, Any] | None
    score: OptionalNumber
    folder: Text | None
    private: Flag
    epsilon: Items[OptionalNumber]
    delta: Items[Number]
    trust: Text
    sentences: Items[Text]
