"""CHOCO-SGD with momentum: compressed gossip without noise, the baseline of DO-ADP.

Koloskova, Stich and Jaggi, *Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication*, ICML 2019: `do_adp` with p = 1 and sigma = 0, whose symbols hold here.
The gossip is with the **old** public copies, as in `do_adp`.
"""

from __future__ import annotations

from tacit.algorithms.do_adp import CompressedGossipOptions, compressed_gossip_method

__all__ = ["CHOCO_SGD"]

CHOCO_SGD = compressed_gossip_method(
    name="choco-sgd",
    title="CHOCO-SGD with momentum",
    paper="Koloskova, Stich and Jaggi, ICML 2019",
    summary="compressed gossip SGD with momentum, without noise",
    private=False,
    options=CompressedGossipOptions,
)
