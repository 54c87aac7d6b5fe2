"""The plan: one frozen object, made before the first step, that everything else derives from.

It holds what the nodes release (`tacit.training.release`), under which noise and at which cost, how
their messages move, and what the user should know. A plan that would exceed a node's budget is
never made: `tacit.training.planner` refuses it before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.algorithms import source_of
from tacit.config import GIVEN, Config, known_as, to_toml
from tacit.report.documents.unit import RECORD, UnitTerms
from tacit.report.protection import epsilon_words, protection
from tacit.report.wording import with_article
from tacit.topology.mixing import Mixing
from tacit.training.faults import FaultPlan
from tacit.training.release import NodePlan, Release


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first step.

    Args:
        contraction: factor by which disagreement shrinks a step; the spectral gap is 1 less it;
            None where it is not known, see `tacit.topology.contraction`.
        rounds: gossip rounds of a step, R.
        faults: that are simulated; None: nothing is.
        cautions: what the user should know of a run, private or not, each one line.
        notes: what the plan comes to, each one line.
        schema: the digest of the schema by which a table is read; None: there is none.
        features: what tells the map of `[task].features` from another; None: there is none.
        unit: whom epsilon protects, without any figure.
    """

    config: Config
    release: Release
    nodes: tuple[NodePlan, ...]
    mixing: Mixing
    contraction: float | None
    rounds: int = 1
    faults: FaultPlan | None = None
    cautions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str | None = None
    features: str | None = None
    unit: UnitTerms = RECORD

    @property
    def steps(self) -> int:
        """K."""
        return self.release.setup.steps

    @property
    def parameters(self) -> int:
        """The number d of trainable parameters of the model."""
        return self.release.setup.parameters

    @property
    def noisy(self) -> bool:
        """Whether any noise is added."""
        return self.config.privacy.noisy

    @property
    def accounted(self) -> bool:
        """Whether epsilon is certified."""
        return self.release.setup.accounted

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know, each one line: first that a run guarantees next to nothing."""
        first = self.not_private_warning or self._weak_warning
        return self.cautions if first is None else (first, *self.cautions)

    @property
    def _weak_warning(self) -> str | None:
        """What a budget is worth that is too large to protect much; None of any other."""
        if not self.accounted:
            return None
        spent = [
            (node.epsilon, node.delta or 0.0) for node in self.nodes if node.epsilon is not None
        ]
        guesses = [node.right_guess for node in self.nodes if node.right_guess is not None]
        weakest = protection(spent)
        if weakest.kind != "bad":
            return None
        largest = epsilon_words(max(epsilon for epsilon, _ in spent))
        if guesses and protection(spent, guesses).kind != "bad":
            return (
                f"privacy.guess holds on average, and epsilon is {largest} beside it: what is seen "
                f"may all but tell of {with_article(self.unit.name)} now and then; more steps or "
                "larger batches lower that"
            )
        return (
            f"epsilon = {largest} is {weakest.words.lower()}: whoever sees all "
            f"messages guesses right whether {with_article(self.unit.name)} was there with "
            f"probability {weakest.right_guess} at most; see docs/concepts/choosing-epsilon.md"
        )

    @property
    def not_private_reason(self) -> str | None:
        """Why a run of it guarantees nothing to somebody; None where it does."""
        reason = self.config.not_private_reason
        if reason is None and any(node.epsilon == math.inf for node in self.nodes):
            return "there is too little noise for any finite epsilon"
        return reason

    @property
    def not_private_warning(self) -> str | None:
        """What is said first of a run that guarantees nothing; None of one that does."""
        reason = self.not_private_reason
        return None if reason is None else f"this run is NOT PRIVATE: {reason}"

    def digest(self, hosted: Sequence[int] | None = None) -> str:
        """Identifies what runs: of two plans with one digest, nodes release the same mechanism.

        It is about the nodes `hosted`, by default all.
        """
        return hashlib.blake2b(
            json.dumps(self.identity(hosted), sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def identity(self, hosted: Sequence[int] | None = None) -> dict[str, Any]:
        """All that a resumed run must have in common with the first one.

        The numbers of records and the noise are those of the nodes `hosted` (by default all): each
        process answers for its own, since it may have begun before it knew the others'. Where nodes
        share noise or sums, those of all count.
        """
        together = self.release.pairs is not None or self.release.sums is not None
        counted = range(len(self.nodes)) if hosted is None or together else hosted
        nodes = [self.nodes[number] for number in counted]
        source = source_of(self.config.algorithm.definition)
        return {
            "experiment": self._experiment,
            "parameters": self.parameters,
            "records": [node.records for node in nodes],
            "noise_scale": [node.noise_scale for node in nodes],
            **({} if self.release.pairs is None else {"pairs": self.release.pairs.identity()}),
            # A graph file is named in the experiment; what it says may change.
            "mixing": self.mixing.digests(),
            # "auto" says too little.
            **({} if self.rounds == 1 else {"rounds": self.rounds}),
            # So may the schema of a table.
            **({} if self.schema is None else {"schema": self.schema}),
            # And a function, or an algorithm, of the user's own.
            **({} if self.features is None else {"features": self.features}),
            **({} if source is None else {"algorithm": source}),
        }

    @cached_property
    def _experiment(self) -> str:
        return to_toml(known_as(self.config))


def unit_of(config: Config, person: str | None) -> UnitTerms:
    """Whom epsilon protects, and what else is known of those whose the records are."""
    settings = config.privacy
    person = person or settings.unit_column
    if person is None:
        return RECORD
    by_person = settings.unit_column is not None
    return UnitTerms(
        name=person if by_person else "record",
        person=person,
        gradient=settings.unit_gradient if by_person else None,
        rows=settings.unit_rows,
        nodes=settings.unit_nodes,
    )


def not_covered(config: Config, unit: UnitTerms) -> tuple[str, ...]:
    """What is seen or known of private records beside what epsilon is about, each in words.

    The experiment is one whose epsilon is accounted for, and protects that `unit`.
    """
    task, algorithm = config.task, config.algorithm
    measured = [
        "training loss",
        "gradient norms",
        unit.said("share of clipped records"),
        unit.said("number of records left out"),
    ]
    if algorithm.definition.primal_dual is not None:
        measured.append("augmented Lagrangian")
    if config.train.suboptimality:
        measured.append("f(x) - f* of all private records together (train.suboptimality)")
    lines = [
        f"{', '.join(measured)}: measured on private records, for the eyes of their node only",
        "checkpoints: a node's own, never to be shared",
        unit.said("how many records a node holds: public by the relation"),
        "that a node refuses its own input or fails, and how long its steps take",
    ]
    if config.privacy.ledger is not None:
        lines.append(
            "that a node does not take part: it does not where it holds a record of a source that "
            "privacy.ledger_source does not name; others hear only that its budget forbids the run"
        )
    if task.test_share is not None:
        lines.append(
            f"the share of {task.test_share:g} of the records that was held out for testing and "
            "declared public (task.test_share), and all scores on it"
        )
    given = task.dataset == GIVEN or config.nodes.data == "by-rank"
    if not given and config.nodes.partition in ("dirichlet", "shards"):
        lines.append(
            f"who holds which record: nodes.partition = '{config.nodes.partition}' divides one "
            "data set by the labels of all its records, and epsilon is of each node's as they are "
            "divided"
        )
    return (*lines, *algorithm.definition.releases.not_covered(algorithm.options))
