"""The gossip rounds of a step: how many a plan has, and the one way in which a step runs them.

A step is the algorithm's own step, which mixes once, and `[topology].rounds` less one rounds in
which nodes only average. What is mixed was released by then, or is a function of that and of public
values, so that further rounds are post-processing: they cost bytes, and no privacy. Round r of step
k mixes with the graph of number k R + r; noise, clip, and who takes part are those of step k.
Rounds that follow the last step go on counting from there.
"""

from __future__ import annotations

from typing import Any

from tacit.algorithms import ALGORITHMS, StepContext
from tacit.config import Config
from tacit.errors import InputError, TacitError, describe
from tacit.topology.checks import contraction
from tacit.topology.mixing import Mixing
from tacit.training.plan import Plan


def planned_rounds(config: Config) -> int:
    """Gossip rounds of a step, R, that an experiment has; "auto" is 1 with independent noise."""
    asked = config.topology.rounds
    return asked if isinstance(asked, int) else 1


def contraction_of_rounds(mixing: Mixing, rounds: int) -> float | None:
    """The factor by which disagreement shrinks in a step of so many rounds; None: not known."""
    factor = contraction(mixing)
    return None if factor is None else float(factor**rounds)


def advanced(plan: Plan, state: Any, k: int, context: StepContext) -> Any:
    """The algorithm's state after step k and the rest of its gossip rounds, from that before it."""
    chosen, row = plan.config.algorithm, plan.config.algorithm.definition
    try:
        state = row.step(state, k, chosen.options, context)
    except (TacitError, OSError):
        raise
    except Exception as error:
        if row.name in ALGORITHMS:
            raise
        fault = f"its step raised {describe(error)} (TACIT_TRACEBACK=1 shows where)"
        raise InputError("algorithm.name", row.name, fault) from error
    return _mixed(plan, state, k, context, range(1, plan.rounds))


def final_rounds(plan: Plan) -> int:
    """How many gossip rounds follow the last step."""
    chosen = plan.config.algorithm
    final: int = chosen.definition.graph.final_rounds(chosen.options)
    return final


def finally_mixed(plan: Plan, state: Any, steps: int, context: StepContext) -> Any:
    """The state after the gossip rounds that follow the last step, of which `steps` were made."""
    rounds = range(plan.rounds, plan.rounds + final_rounds(plan))
    return _mixed(plan, state, steps - 1, context, rounds)


def _mixed(plan: Plan, state: Any, k: int, context: StepContext, rounds: range) -> Any:
    chosen = plan.config.algorithm
    for extra in rounds:
        state = chosen.definition.mix(state, k, chosen.options, context, extra)
    return state
