"""Mechanisms in words, one line each, for tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tacit import privacy

__all__ = ["mechanism_text"]


def mechanism_text(mechanism: privacy.Mechanism) -> str:
    """A mechanism in one line: kind, rate and steps; its noise multipliers are not said."""
    return _LINES[type(mechanism)](mechanism)


def _sampled_line(mechanism: Any) -> str:
    return f"Poisson-sampled Gaussian, rate {mechanism.rate:.4g}, {mechanism.steps} steps"


def _fixed_line(mechanism: Any) -> str:
    drawn = f"{mechanism.batch} of {mechanism.records} records"
    return f"Gaussian on {drawn} without replacement, {mechanism.steps} steps"


def _gaussian_line(mechanism: Any) -> str:
    return f"Gaussian on every record, {mechanism.steps} steps"


def _state_line(mechanism: Any) -> str:
    shifts = f"{mechanism.hit:.4g} C where drawn, {mechanism.miss:.4g} C elsewhere"
    return (
        f"Gaussian with private state, {mechanism.sampling} sampling, rate {mechanism.rate:.4g}, "
        f"{shifts}, {mechanism.steps} steps"
    )


def _carried_line(mechanism: Any) -> str:
    return (
        f"Gaussian with private state that carries a drawn record to all later steps, rate "
        f"{mechanism.rate:.4g}, {mechanism.steps} steps"
    )


def _client_line(mechanism: Any) -> str:
    inner = mechanism_text(mechanism.participation)
    return f"{inner} in each of {mechanism.rounds} rounds, active with chance {mechanism.rate:.4g}"


def _laplace_line(mechanism: Any) -> str:
    return f"Laplace, rate {mechanism.rate:.4g}, {mechanism.steps} steps"


def _composed_line(mechanism: Any) -> str:
    return "; then ".join(mechanism_text(part) for part in mechanism.parts)


_LINES: Mapping[type[Any], Callable[[Any], str]] = {
    privacy.Gaussian: _gaussian_line,
    privacy.SampledGaussian: _sampled_line,
    privacy.FixedBatchGaussian: _fixed_line,
    privacy.Laplace: _laplace_line,
    privacy.PrivateState: _state_line,
    privacy.CarriedState: _carried_line,
    privacy.ClientSampling: _client_line,
    privacy.Composed: _composed_line,
}
