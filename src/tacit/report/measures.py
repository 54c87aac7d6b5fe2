"""What the scores of a run are called, how they are written, and which of two is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.report.wording import number_text, percent_text


@dataclass(frozen=True)
class Measure:
    """One score of a model on the public test records.

    `name` is as `[task].metric` has it, and `title` in words. `percent` says that it is a
    share, written in per cent. `ideal` is the best score, where that is neither the largest nor the
    smallest.
    """

    name: str
    title: str
    percent: bool = False
    larger_is_better: bool = True
    ideal: float | None = None

    def worth(self, score: float) -> float:
        """The larger, the better the score."""
        if self.ideal is not None:
            return -abs(score - self.ideal)
        return score if self.larger_is_better else -score

    def text(self, score: float | None) -> str:
        """The score for people."""
        return percent_text(score) if self.percent else number_text(score)

    def beside(self, score: float | None, baseline: float | None) -> str:
        """The score with its baseline, where that is known: `AUC 0.831, baseline 0.500`.

        >>> MEASURES["auc"].beside(0.8312, 0.5)
        'AUC 0.831, baseline 0.500'
        """
        told = f"{self.title} {self.text(score)}"
        return told if baseline is None else f"{told}, baseline {self.text(baseline)}"

    def no_better(self, score: float | None, baseline: float | None) -> str:
        """That a score is no better than its baseline, in a sentence; empty where it is better.

        Empty as well where one of the two is not known.
        """
        if score is None or baseline is None or not math.isfinite(score):
            return ""
        if self.worth(score) > self.worth(baseline):
            return ""
        return (
            f"the test {self.title} of {self.text(score)} is no better than the baseline: a model "
            f"that ignores its inputs has {self.text(baseline)}"
        )


ACCURACY = Measure("accuracy", "accuracy", percent=True)
LOSS = Measure("loss", "loss", larger_is_better=False)

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        ACCURACY,
        Measure("balanced-accuracy", "balanced accuracy", percent=True),
        Measure("auc", "AUC"),
        Measure("average-precision", "average precision"),
        Measure("f1", "F1"),
        Measure("brier", "Brier score", larger_is_better=False),
        Measure("log-loss", "log loss", larger_is_better=False),
        Measure("calibration", "predicted over observed", ideal=1.0),
        Measure("calibration-slope", "calibration slope", ideal=1.0),
        Measure("mae", "mean absolute error", larger_is_better=False),
        Measure("rmse", "root mean squared error", larger_is_better=False),
        Measure("r2", "R2"),
    )
}
"""The scores that `[task].metric` knows by name."""


def measure_of(name: str) -> Measure:
    """The score of this name; of a user's own, `module:function`, larger is better."""
    return MEASURES.get(name) or Measure(name, name.rpartition(":")[2])
