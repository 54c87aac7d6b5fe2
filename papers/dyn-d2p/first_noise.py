"""Draws the published noise of Dyn-D2P over the steps, for several of the paper's growth factors.

`python papers/dyn-d2p/first_noise.py PICTURE.svg` plans the row of `fashion-mnist.toml` with one
record a step, K = 1000 and the paper's formula at a claimed epsilon of 1, for 1 / rho_mu of its
grid. It draws the standard deviation of a node's noise over the clipping bound, sigma_k / C_k,
which is 1 / mu_k up to a constant (equation 8). It reads no records, and trains nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from tacit.config import load_config
from tacit.training.planner import build_plan

FILE = Path(__file__).with_name("fashion-mnist.toml")
NODES, RECORDS, PARAMETERS = 20, 3000, 26_010
SHARES = (1.0, 0.8, 0.5, 0.2, 0.1)  # 1 / rho_mu


def noise_over_bound(share: float) -> list[float]:
    """Sigma_k / C_k of every step, where the budget grows by 1 / share over the run."""
    settings = (
        "task.model=logistic", f"algorithm.budget_growth={1 / share}", "algorithm.clip_decay=1",
        "algorithm.clip=1", "train.batch=1", "train.steps=1000",
        "privacy.accounting=published", "privacy.epsilon=1",
    )  # fmt: skip
    plan = build_plan(load_config(FILE, overrides=settings), [RECORDS] * NODES, PARAMETERS)
    return [plan.release.noise_std(plan.nodes[0], k) for k in range(plan.steps)]


def main(picture: str) -> None:
    """Draw it."""
    figure = Figure((6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for share in SHARES:
        axes.plot(noise_over_bound(share), label=f"1 / rho_mu = {share:g}")
    axes.set(xlabel="step", ylabel="noise over the bound", yscale="log")
    axes.set_yticks([0.3, 0.5, 1, 2, 3], labels=["0.3", "0.5", "1", "2", "3"])
    axes.minorticks_off()
    axes.set_title("Published noise at a claimed epsilon of 1, K = 1000", loc="left", fontsize=10)
    axes.grid(color="#dde1e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(picture, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(sys.argv[1])
