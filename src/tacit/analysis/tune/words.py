"""What is said of a search: against whom its epsilon holds, and what must be quoted."""

from __future__ import annotations

from tacit.analysis.tune.costs import SearchPlan
from tacit.privacy.accounting.choosing import NegativeBinomialTrials
from tacit.report.documents.tune import TrialMark
from tacit.report.wording import epsilon_text

_TRUST = {
    "composed": "whoever sees the messages, models and scores of every trial, in the trust model "
    "of the runs",
    "random-stopping": "whoever sees the released winner alone: not how many trials there were or "
    "how long they took, and nothing of any other trial",
    "public": "whoever sees everything of the search, and of the winner's run in its trust model",
}
_SENTENCES = {
    "composed": (
        "All trials ran on the private records and may be seen: their composition is what the "
        "search costs, whichever of them is used, and what anyone quotes of the winner.",
        "Number and settings of the trials were fixed before the first. The winner was chosen by "
        "scores on public test records, which costs nothing; that score is chosen among several "
        "and flatters the winner.",
    ),
    "random-stopping": (
        "The number of trials was drawn in secret, each trial's setting uniformly from the public "
        "list, and the best was released. What lies in private/, and how long the search took, "
        "would tell more: epsilon does not hold against who knows it.",
        "The winner was chosen by its score on public test records, which flatters it.",
    ),
    "public": (
        "The trials ran on records that were declared public, and cost nothing: epsilon is that of "
        "the winner's run on the private records alone. If the records of the trials are not "
        "public, nothing here covers them.",
    ),
}


def trust(plan: SearchPlan) -> str:
    """Against whom epsilon holds."""
    return _TRUST[plan.search.tune.cost]


def sentences(plan: SearchPlan) -> tuple[str, ...]:
    """What must be known of a search."""
    more = () if plan.reason is None else (f"This search is NOT PRIVATE: {plan.reason}.",)
    return (*more, *_SENTENCES[plan.search.tune.cost])


def sentence(plan: SearchPlan) -> str:
    """What must be quoted of a trial or a winner, in place of its own epsilon."""
    most = max(zip(plan.total, plan.delta, strict=True))
    return (
        f"this run is of a search over {len(plan.search.choices)} settings: with the cost of "
        f"choosing, epsilon is {epsilon_text(most[0])} at delta {most[1]:g} as planned, against "
        f"{trust(plan)}; tune.json beside it says what was spent"
    )


def mark(plan: SearchPlan) -> TrialMark:
    """What lies in the folder of a trial, for whoever makes a statement of it."""
    return TrialMark(
        format_version=TrialMark.version, cost=plan.search.tune.cost, sentence=sentence(plan)
    )


def law_text(plan: SearchPlan) -> str | None:
    """The law of the number of trials, which is public; None where the number is."""
    law = plan.search.law
    if law is None:
        return None
    if isinstance(law, NegativeBinomialTrials):
        kind = f"truncated negative binomial, eta {law.eta:g}, gamma {law.gamma:.6g}"
    else:
        kind = "Poisson"
    return f"{kind}: {law.mean:.4g} trials in the mean"
