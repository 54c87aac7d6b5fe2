"""Callbacks of a run: write one of your own, or send what is public to a tracking service.

    tacit.train("first.toml", callbacks=[tacit.callbacks.MLflow(), StopAt(0.9)])

`Callback` says what a callback is told, and when. `MLflow`, `TensorBoard` and `WeightsAndBiases`
log the settings, the public metrics of every evaluation, and the final result with its certified
epsilon; they log nothing that was measured on private records. `ProgressBar` shows where a run
stands in a notebook, or in plain lines elsewhere.

What is logged: settings but for those that say where a site keeps its things (`settings`), every
number of the metrics (`numbers`), and of the result (`outcome`).
"""

# ruff: noqa: D102 (when a method is called, `Callback` says)

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config import flat, site_keys
from tacit.errors import optional
from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import PublicMeasurement
from tacit.training.hooks import Callback, Progress
from tacit.training.plan import Plan

if TYPE_CHECKING:
    from tacit.training.run_folder.result import Result

__all__ = [
    "Callback",
    "MLflow",
    "ProgressBar",
    "TensorBoard",
    "WeightsAndBiases",
    "numbers",
    "outcome",
    "settings",
]


def settings(plan: Plan) -> dict[str, Any]:
    """The settings of a run by their keys (`privacy.epsilon`), and what its plan comes to.

    Keys that say where a site keeps its things, such as `task.data_dir`, are left out.
    """
    local = site_keys(plan.config)
    kept = {key: value for key, value in flat(plan.config).items() if key not in local}
    kept |= {"plan.parameters": plan.parameters, "plan.private": plan.not_private_reason is None}
    spent = [node.epsilon for node in plan.nodes if node.epsilon is not None]
    return kept | ({"plan.epsilon": max(spent)} if spent else {})


def numbers(metrics: PublicMeasurement) -> dict[str, float]:
    """The numbers of public metrics by name, such as `test_accuracy/mean`; only finite ones."""
    return _numbers({key: value for key, value in as_dict(metrics).items() if key != "step"})


def outcome(result: Result) -> dict[str, float]:
    """The numbers of a result by name: certified epsilon, scores on public test records, cost."""
    spent = [epsilon for epsilon in result.epsilon if epsilon is not None]
    return _numbers(
        {
            "final": {
                "epsilon": {"max": max(spent), "min": min(spent)} if spent else None,
                "test_accuracy": result.test_accuracy,
                "test_loss": result.test_loss,
                "test_metrics": {k: as_dict(scores) for k, scores in result.test_metrics.items()},
                "bytes_sent": sum(result.bytes_sent) / len(result.bytes_sent),
                "steps": result.steps,
            }
        }
    )


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers of nested mappings, under their keys joined by slashes."""
    flat: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[f"{prefix}{key}"] = float(value)
    return flat


class MLflow(Callback):
    """Logs to MLflow, in a run of its own.

    The experiment is made where there is none of that name. `tracking_uri` is by default as MLflow
    itself is configured, and `run_name` one that MLflow makes.

    Raises:
        InputError: MLflow is not installed (`tacit.errors.optional`).
    """

    def __init__(
        self,
        experiment: str = "tacit",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
    ) -> None:
        self._client = optional("mlflow").MlflowClient(tracking_uri)
        self._experiment, self._name, self.run_id = experiment, run_name, ""

    def on_start(self, plan: Plan) -> None:
        known = self._client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known else self._client.create_experiment(self._experiment)
        self.run_id = self._client.create_run(place, run_name=self._name).info.run_id
        for key, value in settings(plan).items():
            self._client.log_param(self.run_id, key, value)

    def on_metrics(self, metrics: PublicMeasurement) -> None:
        for name, value in numbers(metrics).items():
            self._client.log_metric(self.run_id, name, value, step=metrics.step)

    def on_end(self, result: Result) -> None:
        for name, value in outcome(result).items():
            self._client.log_metric(self.run_id, name, value, step=result.steps)
        self._client.set_tag(self.run_id, "tacit.status", result.status)
        self._client.set_terminated(self.run_id)

    def on_error(self, error: BaseException) -> None:
        # Why is not said there.
        if self.run_id:
            self._client.set_terminated(self.run_id, "FAILED")


class TensorBoard(Callback):
    """Writes event files that TensorBoard shows into a folder.

    Raises:
        InputError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self._writer_class = optional("torch.utils.tensorboard").SummaryWriter
        self._folder = str(folder)
        self._writer: Any = None

    def on_start(self, plan: Plan) -> None:
        self._writer = self._writer_class(self._folder)
        lines = (f"    {key} = {value!r}" for key, value in settings(plan).items())
        self._writer.add_text("settings", "\n".join(lines))

    def on_metrics(self, metrics: PublicMeasurement) -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(name, value, metrics.step)

    def on_end(self, result: Result) -> None:
        for name, value in outcome(result).items():
            self._writer.add_scalar(name, value, result.steps)
        self._writer.close()

    def on_error(self, error: BaseException) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Callback):
    """Logs to Weights & Biases, in a run of its own.

    The options are those of `wandb.init`, such as `mode="offline"`, `name` or `dir`.

    Raises:
        InputError: wandb is not installed.
    """

    def __init__(self, project: str = "tacit", **options: Any) -> None:
        self._wandb = optional("wandb")
        self._options = {"project": project, **options}
        self.run: Any = None

    def on_start(self, plan: Plan) -> None:
        self.run = self._wandb.init(config=settings(plan), **self._options)

    def on_metrics(self, metrics: PublicMeasurement) -> None:
        self.run.log(numbers(metrics), step=metrics.step)

    def on_end(self, result: Result) -> None:
        self.run.summary.update({**outcome(result), "status": result.status})
        self.run.finish()

    def on_error(self, error: BaseException) -> None:
        # Why is not said there.
        if self.run is not None:
            self.run.finish(exit_code=1)


class ProgressBar(Callback):
    """Shows where a run stands: a bar in a notebook, a line at every tenth of the run elsewhere."""

    def __init__(self) -> None:
        self._display: Any = None
        self._shown = -1

    def on_start(self, plan: Plan) -> None:
        self._shown = -1
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):  # a terminal's IPython has none
            display = import_module("IPython.display")
            self._display = display.display(display.HTML(""), display_id=True)

    def on_step(self, progress: Progress) -> None:
        tenth = 10 * progress.step // progress.steps
        if self._display is not None:
            percent = 100 * progress.step // progress.steps
            if percent != self._shown:
                self._shown = percent
                html = import_module("IPython.display").HTML
                bar = f'<progress value="{progress.step}" max="{progress.steps}"></progress>'
                self._display.update(html(f"{bar} <code>{_state(progress)}</code>"))
        elif tenth != self._shown:
            self._shown = tenth
            sys.stderr.write(f"{_state(progress)}\n")


def _state(progress: Progress) -> str:
    """Where a run stands, in one line."""
    parts = (
        f"step {progress.step}/{progress.steps}",
        None if progress.loss is None else f"test loss {progress.loss:.4f}",
        None if progress.accuracy is None else f"test accuracy {progress.accuracy:.1%}",
        None if progress.epsilon is None else f"epsilon {progress.epsilon:.3g}",
        f"{progress.steps_per_second:.1f} steps/s",
    )
    return "  ".join(part for part in parts if part)
