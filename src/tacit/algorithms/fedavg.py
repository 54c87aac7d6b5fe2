"""FedAvg: local steps and a server's average, the non-private baseline of DP-FedAvg.

McMahan, Moore, Ramage, Hampson and Aguera y Arcas, *Communication-Efficient Learning of Deep
Networks from Decentralized Data*, AISTATS 2017: active clients run Q local steps of SGD from the
server's model w_t, which then becomes their mean. DP-FedAvg with sigma = 0; the symbols are those
of `dp_fedavg`, where `clip`, if one is given, bounds the change of a client's model.

The paper weighs clients by their numbers of records; here they weigh alike, as they do in every
other method, so that all minimise the same mean of the clients' losses.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.algorithms.dp_fedavg import DP_FEDAVG

__all__ = ["FEDAVG"]

FEDAVG = replace(
    DP_FEDAVG,
    name="fedavg",
    title="FedAvg",
    paper="McMahan, Moore, Ramage, Hampson and Aguera y Arcas, AISTATS 2017",
    summary="local steps from the server's model, which becomes their mean, without noise",
    private=False,
)
