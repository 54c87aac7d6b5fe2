"""What hidden trials cost is reserved in the ledgers of the data, as one entry, before the first.

The winner is a function of the trials, and it alone is released: the entry is of the winner
(`BestOfTrials`), and no trial is charged by itself. A search that is killed leaves it standing; one
that goes on in its folder finds it by the folder's identity, and is not charged again.
"""

from __future__ import annotations

from tacit.analysis.tune.costs import SearchPlan
from tacit.errors import BudgetError
from tacit.privacy import to_statement
from tacit.training.prepare import prepare
from tacit.training.shared_budgets import draws, open_shared

__all__ = ["reserve_total"]


def reserve_total(plan: SearchPlan, identity: str) -> None:
    """Reserve the total of a search with random stopping, durably and once.

    Args:
        plan: of the search; of others, and without a ledger, nothing is reserved.
        identity: of the search, the same whenever it goes on.

    Raises:
        BudgetError: the budget of the data does not cover it.
        InputError: the ledgers cannot be used, or another run draws on the records now.
    """
    winner = plan.winner
    if winner is None:
        return
    job = prepare(plan.trials[0])
    budget = plan.search.base.privacy.budget
    with open_shared(job.plan, job.loaded, job.hosted, identity, budget) as shared:
        if shared.reserved(0, identity):
            return
        for draw in draws(job.plan, shared, 0, identity):
            total, most = draw.with_(winner), draw.account.epsilon_budget
            if total > most:
                raise BudgetError(
                    f"the search costs epsilon {plan.total[0]:.4g} and would bring its data, whose "
                    f"budget is {most:g} at delta {draw.account.delta:g} (in {draw.file}), to "
                    f"{total:.4g}: no trial was run; lower privacy.epsilon"
                )
        statements = {0: to_statement(winner)}
        shared.enter(identity, digest=plan.search.digest(), statements=statements, sent={})
        shared.reserve(0, 1)
