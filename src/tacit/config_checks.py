"""What in an experiment contradicts itself: settings of noise, budgets and books, key by key."""

from __future__ import annotations

from tacit.config_sections import Config, Privacy
from tacit.errors import InputError

__all__ = ["check"]


def check(config: Config) -> None:
    """Refuse an experiment whose settings contradict each other.

    Raises:
        InputError: naming the key, its value and what would be right.
    """
    _check_privacy(config)
    _check_budgets(config)
    _check_ledger(config.privacy)


def _check_budgets(config: Config) -> None:
    for key in ("epsilon", "delta", "ledger_epsilon", "ledger_delta"):
        value = getattr(config.privacy, key)
        if isinstance(value, tuple) and len(value) != config.nodes.count:
            raise InputError(
                f"privacy.{key}",
                f"a list of {len(value)}",
                f"needs one number for each of the {config.nodes.count} nodes",
            )


def _check_ledger(privacy: Privacy) -> None:
    """Refuse books that would say less than was leaked."""
    if privacy.ledger is None:
        for key in ("ledger_epsilon", "ledger_delta"):
            if getattr(privacy, key) is not None:
                raise InputError(
                    f"privacy.{key}",
                    getattr(privacy, key),
                    "is the budget of a ledger: name its folder in privacy.ledger",
                )
        return
    reasons = {
        "without noise nothing bounds what leaves a node": not privacy.noisy,
        "privacy.accounting = 'none' leaves nothing to book": privacy.accounting == "none",
        "privacy.noise_seed lets anyone subtract the noise": privacy.noise_seed is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            expected = f"keeps a budget that such a run would betray: {reason}; change one of them"
            raise InputError("privacy.ledger", privacy.ledger, expected)


def _check_privacy(config: Config) -> None:
    """Refuse settings of noise, sampling and accounting that contradict each other."""
    privacy, algorithm = config.privacy, config.algorithm.definition
    if privacy.noisy and not algorithm.private:
        key = "epsilon" if privacy.epsilon != "none" else "noise_std"
        key = "epsilon_per_round" if privacy.epsilon_per_round is not None else key
        raise InputError(
            f"privacy.{key}",
            getattr(privacy, key),
            f"{algorithm.name} adds no noise: leave it out, or choose a private algorithm",
        )
    per_round = privacy.epsilon_per_round
    if per_round is not None and privacy.noise_std is not None:
        raise InputError(
            "privacy.epsilon_per_round",
            per_round,
            "sets the noise, and so does noise_std: give one",
        )
    if per_round is not None and privacy.epsilon != "none":
        raise InputError(
            "privacy.epsilon_per_round", per_round, "sets the noise, and so does epsilon: give one"
        )
    if privacy.accounting == "none" and (privacy.epsilon != "none" or per_round is not None):
        raise InputError(
            "privacy.accounting", "none", "keeps a given noise: give noise_std, not epsilon"
        )
    if privacy.accounting == "published" and privacy.noise_std is not None:
        raise InputError(
            "privacy.accounting",
            "published",
            "takes the noise from the paper's formula and epsilon: leave noise_std out",
        )
    if privacy.accounting == "published" and algorithm.formula is None and algorithm.private:
        raise InputError(
            "privacy.accounting",
            "published",
            f"the papers print no formula for {algorithm.name}: use 'certified'",
        )
    fixed = config.train.sampling == "fixed" and config.train.batch != "all"
    accounted = privacy.noisy and privacy.accounting != "none"
    if fixed and accounted and privacy.relation != "replace-one":
        raise InputError(
            "train.sampling",
            "fixed",
            "a batch of fixed size is accounted under privacy.relation = 'replace-one' only, since "
            "another record moves in for the one left out; use 'poisson', or that relation",
        )
