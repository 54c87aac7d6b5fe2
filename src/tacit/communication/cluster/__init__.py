"""Many processes: finding one another, watching one another, agreeing; nothing of training."""

from __future__ import annotations

from tacit.communication.cluster.cluster import Cluster
from tacit.communication.cluster.rendezvous import connect

__all__ = ["Cluster", "connect"]
