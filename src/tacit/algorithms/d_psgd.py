"""D-PSGD: gossip SGD without noise, the non-private baseline of DP2-SGD.

Lian et al., *Can Decentralized Algorithms Outperform Centralized Algorithms?*, NeurIPS 2017:
x_i^{k+1} = sum_j W_ij x_j^k - gamma g_i(x_i^k). The symbols are those of `dp2_sgd`.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.algorithms.dp2_sgd import DP2_SGD

__all__ = ["D_PSGD"]

D_PSGD = replace(
    DP2_SGD,
    name="d-psgd",
    title="D-PSGD",
    paper="Lian et al., NeurIPS 2017",
    summary="gossip SGD on an undirected graph, without noise",
    private=False,
)
