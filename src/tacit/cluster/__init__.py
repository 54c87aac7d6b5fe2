"""Many processes: finding one another, watching one another, agreeing; nothing of training."""

from __future__ import annotations

from tacit.cluster.cluster import Cluster
from tacit.cluster.connect import connect

__all__ = ["Cluster", "connect"]
