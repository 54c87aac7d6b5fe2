"""What an epsilon rests on beside a node's own noise, as data: in results and in statements."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from tacit.report.documents.base import Count, Document, Items, Number, OptionalNumber


class TrustTerms(Document):
    """Who may collude, which noise nodes count on, and what epsilon is against how many.

    With it, epsilon against any number of colluders follows from a run's mechanisms, see
    `tacit.analysis.colluders`. Lists have one entry a node.

    Args:
        colluding: how many nodes may pool all that they know, by the run's guarantee.
        nodes_by_process: how many nodes each process hosted; of one process, the run was a
            simulation of its trust model.
        keys_signed: whether public keys that processes agreed by were signed with identities of
            their sites.
        own: standard deviation of the nodes' own noise in the mean over a batch, each over a common
            unit.
        expected_batch: what each node's sums are divided by.
        absent: the nodes that take part in no planned step: their mechanisms are stated as if they
            did in the first.
        pairs: who shared noise, the smaller number first; none where a server saw sums only.
        deviation: of the noise of a pair, over the same unit as `own`; 0 without pairs.
        epsilon_by_colluders: certified epsilon of each node against 0, 1, 2 ... colluders, a row a
            number, up to one more than `colluding`.
    """

    colluding: Count
    nodes_by_process: Items[Count]
    keys_signed: bool = False
    own: Items[Number]
    expected_batch: Items[Number]
    absent: Items[Count]
    pairs: Items[tuple[Count, Count]]
    deviation: Number
    epsilon_by_colluders: Items[Items[OptionalNumber]]

    @property
    def simulated(self) -> bool:
        """Whether all secrets were in one process."""
        return len(self.nodes_by_process) == 1

    @model_validator(mode="after")
    def _of_one_network(self) -> Self:
        nodes = len(self.own)
        lists = (self.expected_batch, *self.epsilon_by_colluders)
        if any(len(one) != nodes for one in lists) or sum(self.nodes_by_process) != nodes:
            raise PydanticCustomError("trust", "must have one entry a node in each of its lists")
        if not all(i < j < nodes for i, j in self.pairs):
            raise PydanticCustomError(
                "trust", "must name pairs of two of its nodes, the smaller number first"
            )
        if any(node >= nodes for node in self.absent):
            raise PydanticCustomError("trust", "must name some of its nodes as absent")
        rows = min(self.colluding + 1, nodes - 1) + 1
        if len(self.epsilon_by_colluders) != rows:
            raise PydanticCustomError(
                "trust", "must state epsilon for 0 to colluding + 1 colluders"
            )
        return self
