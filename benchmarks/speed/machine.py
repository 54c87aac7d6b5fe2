"""On what figures were measured."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, memory and present load."""
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load average": os.getloadavg(),
    }


def versions() -> dict[str, str]:
    """Of Python and of what tacit computes with; contenders tell theirs in their notes."""
    found = {"python": sys.version.split()[0]}
    for name in ("tacit-dp", "torch", "numpy", "scipy", "cryptography"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _first(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
