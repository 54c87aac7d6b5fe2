"""What travels between processes is what one computes: NCCL where each has a GPU, else gloo.

    torchrun --nproc-per-node 2 benchmarks/device/exchange.py [--device cuda]

Eight nodes make twenty seeded steps in float64, once in all processes and once in one, on the same
device. Rank 0 prints how far their models are apart, and both times; it ends with 1 if that is far.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

import tacit

STEPS = 20


def main() -> int:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    settings = {
        "algorithm": {"name": "privsgp", "learning_rate": 0.1},
        "privacy": {"noise_std": 0.1, "noise_seed": 1, "accounting": "none"},
        "nodes": {"count": 8},
        "train": {"steps": STEPS, "batch": 16, "dtype": "float64", "device": device},
    }
    draw = torch.Generator().manual_seed(1)
    nodes = [
        (torch.randn(64, 1, 28, 28, generator=draw, dtype=torch.float64), torch.arange(64) % 10)
        for _ in range(8)
    ]
    settings["task"] = {"model": "mlp", "outputs": 10}
    shared = Path(tempfile.gettempdir()) / f"tacit-exchange-{os.environ['MASTER_PORT']}"
    together, seconds = _ran(settings, nodes, shared, distributed=True)
    if rank:
        return 0
    alone, single = _ran(settings, nodes, shared.with_name(f"{shared.name}-alone"))
    apart = float((together - alone).abs().max())
    print(f"models apart by {apart:.1e}; {seconds:.2f} s in all processes, {single:.2f} s in one")
    return 1 if apart > 1e-9 else 0


def _ran(settings: Any, nodes: Any, out: Path, **more: Any) -> tuple[torch.Tensor, float]:
    """The consensus, on the processor, and how long it took."""
    begun = time.perf_counter()
    result = tacit.train(settings, nodes=nodes, out=out, **more)
    return result.consensus.cpu(), time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
