"""Baselines: what each site comes to alone, and all records in one place, beside an experiment.

Each is the experiment with some keys changed, so that it could be written and run by hand:

| name | records | method |
|---|---|---|
| `alone` | those of one site, `nodes.part` | the experiment's own at one node, within its budget |
| `alone-plain` | likewise | gradient steps with momentum: no noise, no clipping |
| `pooled-plain` | all, in one node | likewise |

The rate of an experiment fits the noise of all its nodes. That of `alone` is what the rules of
`--recommend` give for the noise of this node, where there are rules for the method. Plain steps are
tried with three rates, of which the one that ends best on the test records is shown: that flatters
what is not private, never what is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tacit.algorithms import WITHOUT_NOISE
from tacit.analysis.recommend import parameters_of
from tacit.analysis.settings.changes import UNSET, changed
from tacit.config import Config, load_config, read_sections
from tacit.errors import InputError
from tacit.training.planner import build_plan
from tacit.training.recommend.choices import path_of
from tacit.training.recommend.complete import mean_noise
from tacit.training.recommend.facts import Facts
from tacit.training.recommend.rules import MOMENTUM, STEPS, rounded

Baseline = Literal["alone", "alone-plain", "pooled-plain"]
_RATES = (1.0, 8.0, 64.0)  # of plain steps, over |x|^2: around 2 / L of a logistic loss, and below
_DIVIDES = ("partition", "alpha", "per_node")  # keys of `[nodes]`
_OF_SEVERAL = ("noise", "colluding", "pair_noise", "aggregation")  # keys of `[privacy]`

Changes = Mapping[str, Any]


def refuse_apart(config: Config) -> None:
    """Refuse baselines of records that nobody holds all of, or whose budgets are on the books.

    Raises:
        InputError: naming the key that says so.
    """
    if config.nodes.count == 1:
        raise InputError("nodes.count", 1, "must be 2 or more: one site has nobody to gain from")
    apart = {"nodes.data": config.nodes.data == "by-rank" and "by-rank"}
    for where, value in {**apart, "privacy.ledger": config.privacy.ledger}.items():
        if value:
            expected = (
                "is of real sites, and baselines pool the records of all: only who holds them all "
                "in one data set may simulate that; leave [compare] out, or this key there"
            )
            raise InputError(where, value, expected)


def baseline_lines(config: Config, names: Sequence[str], facts: Facts) -> list[dict[str, Any]]:
    """The baselines as `[[figure.line]]` has lines: name, group, `set` and `grid`.

    Where seeds deal a node more or fewer records, the `facts` have the fewest.

    Raises:
        BudgetError: the budget of a site cannot be met by it alone.
    """
    config = config.with_names(facts.names)
    sections = read_sections(config)
    single = _without(sections, "topology", "faults", "promise", "nodes")
    single |= {"nodes.count": 1, "nodes.partition": "iid", "train.suboptimality": UNSET}
    plain = _without(sections, "algorithm", "privacy")
    plain |= {"algorithm.name": WITHOUT_NOISE, "algorithm.momentum": MOMENTUM}
    if config.algorithm.definition.participation.one_pass:
        plain["train.steps"] = STEPS
    grid = {"algorithm.learning_rate": [rounded(rate / facts.norm**2) for rate in _RATES]}
    # The records of one site are divided as they are among all.
    nodes = sections.get("nodes", {}).items()
    kept = {f"nodes.{key}": value for key, value in nodes if key in _DIVIDES}
    batch, of = config.train.batch, list(config.nodes.names or ()) or config.nodes.count
    kept["train.batch"] = batch
    lines: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        if name == "pooled-plain":
            lines.append({"name": name, "group": name, "set": single | plain, "grid": grid})
            continue
        for node in range(facts.nodes):
            own = single | kept | {"nodes.part": [node, of]}
            if isinstance(batch, int):  # no larger than the records
                own["train.batch"] = min(batch, facts.records[node])
            private = name == "alone"
            own |= _private(config, sections, own, facts, node) if private else plain
            site = f"node {node}" if facts.names is None else facts.names[node]
            line = {"name": f"{name}: {site}", "group": name, "set": own}
            lines.append(line if private else line | {"grid": grid})
    return lines


def baseline_notes(config: Config, names: Sequence[str]) -> list[str]:
    """What the reader of a table must know of it, a sentence each."""
    rate = ", at the rate that the rules of --recommend give for its noise" * _has_rule(config)
    plain = f"gradient steps with momentum {MOMENTUM}, the best of {len(_RATES)} rates, no clipping"
    told = {
        "alone": f"one site's records and budget, by {config.algorithm.name} at one node{rate}",
        "alone-plain": f"one site's records without noise, by {plain}",
        "pooled-plain": f"all records in one place without noise, by {plain}",
    }
    scored = "every model is scored on the same public test records"
    return [scored, *(f"{name}: {told[name]}" for name in dict.fromkeys(names))]


def _has_rule(config: Config) -> bool:
    chosen = config.algorithm
    ruled = chosen.definition.plain and config.privacy.noisy
    return ruled and not isinstance(chosen.options.clip, str)


def _without(sections: Mapping[str, Changes], *names: str) -> dict[str, Any]:
    """Changes that take every key of some sections out."""
    return {f"{name}.{key}": UNSET for name in names for key in sections.get(name, {})}


def _private(
    config: Config, sections: Mapping[str, Changes], own: Changes, facts: Facts, node: int
) -> dict[str, Any]:
    """The method and budget of one site, and the rate that fits its noise."""
    changes: dict[str, Any] = {f"privacy.{key}": UNSET for key in _OF_SEVERAL}
    budget = None if config.privacy.budget is None else config.per_node(config.privacy.budget)[node]
    changes["privacy.epsilon"] = budget or config.privacy.epsilon or UNSET
    if config.privacy.guess is not None:
        changes["privacy.guess"] = config.per_node(config.privacy.guess)[node]
    changes["privacy.delta"] = config.per_node(config.privacy.delta)[node]
    changes["algorithm.clients_per_round"] = UNSET
    if _has_rule(config):
        draft = {**own, **changes, "algorithm.learning_rate": 1.0}
        alone = load_config(changed(sections, draft))
        plan = build_plan(alone, [facts.records[node]], parameters_of(alone, facts))
        clip = {"algorithm": {"clip": plan.release.clip.bound(0)}}
        found = path_of(clip, plan.config, facts, mean_noise(plan))
        changes["algorithm.learning_rate"] = found.learning_rate
    return changes
