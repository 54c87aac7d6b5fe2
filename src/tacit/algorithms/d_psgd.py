"""D-PSGD: gossip SGD without noise, the non-private baseline of DP2-SGD.

Lian et al., *Can Decentralized Algorithms Outperform Centralized Algorithms?*, NeurIPS 2017:
x_i^{k+1} = sum_j W_ij x_j^k - gamma g_i(x_i^k). The symbols are those of `dp2_sgd`.
"""

from __future__ import annotations

from tacit.algorithms.definition import Algorithm, Options, constant
from tacit.algorithms.dp2_sgd import mix, models, start, step

__all__ = ["D_PSGD"]

D_PSGD = Algorithm(
    name="d-psgd",
    title="D-PSGD",
    paper="Lian et al., NeurIPS 2017",
    summary="gossip SGD on an undirected graph, without noise",
    setting="peer-to-peer",
    weights="doubly-stochastic",
    private=False,
    options=Options,
    schedules=constant,
    start=start,
    step=step,
    mix=mix,
    models=models,
)
