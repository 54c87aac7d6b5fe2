"""How cost grows with nodes, parameters, records and batch, and what a gradient table takes.

`measure` gives the rows of the table; `python benchmarks/speed/scaling.py [--quick]` prints them
alone. All sizes of a series run as workers that take turns, so that they share good and bad
minutes, and every figure is a ratio of medians over the same rounds.

**Linear in nodes.** A step has a fixed cost (Python, the launch of some hundred operations) that
says nothing of large graphs, so the goal is judged from 50 nodes on: the largest over the smallest
time a node, of all sizes from 50 to 1,000. 10 and 20 nodes are run and shown. It holds both ways:
growing faster than linearly and carrying an unnoticed fixed cost both raise it. Of memory the fixed
part is large (interpreter, libraries, each thread's working memory for noise, what the allocator
keeps), so peak resident memory, that of set-up included, is judged against the line
`fixed + nodes * each` that fits all sizes best in relative terms: the largest ratio between a size
and that line, either way.

**The table** of PrivSGP-VR is measured three ways: its bytes as the plan states them, over N d
numbers of the run's dtype, which are computed and not allocated; at a small size both tables,
factored and dense, really built, with what their tensors hold and the sum of their entries; and the
step beside a PrivSGP step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from contender import Contender, Within, Worker, ready
from workloads import Workload

NODES = (10, 20, 50, 100, 200, 500, 1000)
JUDGED_FROM = 50
LINEAR = 1.3
MOST_BYTES = 8 * 2**30
TABLE_SHARE = 1 / 50
TABLE_STEP = 2.0

ROOT = Path(__file__).resolve().parents[2]

# 128 (770 + 1) + 10 (128 + 1) = 99,978 parameters, the nearest to 100,000.
PARAMETERS = Workload(
    "scaling", nodes=10, batch=1, records=20, shape=(770,), dataset="generated", data_dir="none"
)


@dataclass(frozen=True)
class Series:
    """Medians of one workload: seconds a step, and the highest resident bytes ever."""

    seconds: float
    peak: int


def measure(quick: bool, rounds: int, data_dir: str) -> list[dict[str, Any]]:
    """All rows: name, value, unit, goal (at most, or None), met (or None), detail.

    Args:
        quick: tiny sizes, whose figures mean nothing.
        rounds: turns of each worker.
        data_dir: where MNIST is.
    """
    turn = 0.0 if quick else 0.5
    return [
        *_by_nodes(quick, rounds, turn),
        *_table(quick, rounds, turn, data_dir),
        *_growth(quick, rounds, turn),
    ]


def _by_nodes(quick: bool, rounds: int, turn: float) -> list[dict[str, Any]]:
    sizes = (4, 8) if quick else NODES
    base = replace(PARAMETERS, shape=(7,)) if quick else PARAMETERS
    found = _series({nodes: replace(base, nodes=nodes) for nodes in sizes}, rounds, turn)
    seconds = {nodes: found[nodes].seconds / nodes for nodes in sizes}
    peaks = {nodes: float(found[nodes].peak) for nodes in sizes}
    fixed, each = line_through(peaks)
    judged = [nodes for nodes in sizes if quick or nodes >= JUDGED_FROM]
    largest = sizes[-1]
    return [
        _row(
            f"time a node, {judged[0]} to {largest} nodes: largest over smallest",
            linearity(seconds[nodes] for nodes in judged),
            goal=LINEAR,
            detail=_listed(seconds, 1e6, "us a node and step"),
        ),
        _row(
            f"peak memory, {sizes[0]} to {largest} nodes: furthest from a line",
            max(linearity((peak, fixed + nodes * each)) for nodes, peak in peaks.items()),
            goal=LINEAR,
            detail=_listed(peaks, 2**-20, "MiB")
            + f"; the line: {fixed / 2**20:.0f} MiB and {each / 2**10:.0f} KiB a node",
        ),
        _row(
            f"peak memory of {largest} nodes",
            found[largest].peak / 2**30,
            unit="GiB",
            goal=MOST_BYTES / 2**30,
        ),
    ]


def line_through(costs: Mapping[int, float]) -> tuple[float, float]:
    """The fixed cost and that of each node for which relative errors are least (least squares)."""
    nodes, found = np.array(list(costs), dtype=float), np.array(list(costs.values()))
    weighted = np.stack([1 / found, nodes / found], axis=1)
    fixed, each = np.linalg.lstsq(weighted, np.ones(len(found)), rcond=None)[0]
    return float(fixed), float(each)


def linearity(costs: Iterable[float]) -> float:
    """The largest over the smallest cost; infinite where one is not positive."""
    found = list(costs)
    return max(found) / min(found) if min(found) > 0 else float("inf")


def _table(quick: bool, rounds: int, turn: float, data_dir: str) -> list[dict[str, Any]]:
    whole = Workload("vr-table", nodes=50, batch=1, records=1200, data_dir=data_dir)
    whole = whole.quick() if quick else whole
    kept, dense, parameters = table_bytes(whole)
    rows = [
        _row(
            "gradient table over a dense one",
            kept / dense,
            goal=TABLE_SHARE,
            detail=f"{kept / 2**20:.3g} MiB of {dense / 2**20:.4g}, "
            f"{whole.nodes * whole.records} records, d = {parameters}",
        ),
        tables_built(replace(whole, nodes=3, records=20 if quick else 60)),
    ]
    for batch in (1,) if quick else (1, 32):
        workload = replace(whole, batch=min(batch, whole.records))
        found = _pair(workload, rounds, turn)
        rows.append(
            _row(
                f"step with a full table over a PrivSGP step, batch {batch}",
                found["table"].seconds / found["plain"].seconds,
                goal=TABLE_STEP,
                detail=f"{found['table'].seconds * 1e3:.3g} ms over "
                f"{found['plain'].seconds * 1e3:.3g}; peak memory "
                f"{found['table'].peak / 2**20:.0f} MiB over {found['plain'].peak / 2**20:.0f}",
            )
        )
    return rows


def table_bytes(workload: Workload) -> tuple[int, int, int]:
    """Bytes of the workload's gradient table, of a dense one, and d; neither is allocated.

    Both with the running sum of each node, float64 `[nodes, d]`.
    """
    import torch
    from workloads import records_of

    from models import model_of
    from tacit import gradients

    few = records_of(replace(workload, nodes=1, records=8))
    model = gradients.build(
        model_of(workload),
        gradients.LOSSES["cross-entropy"],
        torch.from_numpy(few.inputs[0]),
        torch.from_numpy(few.labels[0]),
        dtype=torch.float32,
        device="cpu",
    )
    need = gradients.table_need(
        model, [workload.records] * workload.nodes, torch.float32, mini_batch=None
    )
    numbers = workload.nodes * workload.records * model.parameters_count
    running = 8 * workload.nodes * model.parameters_count
    return need.bytes, 4 * numbers + running, model.parameters_count


def tables_built(workload: Workload) -> dict[str, Any]:
    """Both tables of a small workload, really built: the bytes of one over those of the other.

    The dense one is that of the same network, written so that no layer can be recognised.

    Raises:
        RuntimeError: the sums of their entries differ by more than 1e-4 of the largest number:
            clipping aims lower by what rounding may add, as much as the path needs.
    """
    import torch
    from torch import nn
    from torch.func import functional_call
    from workloads import records_of

    from models import model_of
    from tacit import data, gradients

    class Opaque(nn.Module):
        """A network whose parameters are its own, and whose layers are not its children."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.names = [name for name, _ in network.named_parameters()]
            self.values = nn.ParameterList([value for _, value in network.named_parameters()])
            self.hidden = [network]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Its outputs, with whatever the parameters are now."""
            weights = dict(zip(self.names, self.values, strict=True))
            found: torch.Tensor = functional_call(self.hidden[0], weights, (inputs,))
            return found

    records = records_of(workload)
    nodes = [
        data.Dataset(torch.from_numpy(inputs), torch.from_numpy(labels))
        for inputs, labels in zip(records.inputs, records.labels, strict=True)
    ]
    stacked = data.stack(nodes, torch.float32, "cpu")
    built, sums = [], []
    for network in (model_of(workload), Opaque(model_of(workload))):
        model = gradients.build(
            network,
            gradients.LOSSES["cross-entropy"],
            stacked.inputs[:8],
            stacked.targets[:8],
            dtype=torch.float32,
            device="cpu",
        )
        at = model.start(workload.nodes, torch.float32, "cpu")
        table = gradients.GradientTable.build(model, stacked, at, workload.clip, steps=1)
        built.append(sum(held.nbytes for held in table.tensors().values()))
        sums.append(table.total())
    difference = float((sums[0] - sums[1]).abs().max() / sums[1].abs().max())
    if not difference <= 1e-4:
        raise RuntimeError(f"the two tables' sums differ by {difference:.2g} of the largest number")
    return _row(
        "the same, both really built",
        built[0] / built[1],
        detail=f"{built[0] / 2**20:.3g} MiB of {built[1] / 2**20:.4g}, "
        f"{workload.nodes * workload.records} records; sums agree to {difference:.1g}",
    )


def _pair(workload: Workload, rounds: int, turn: float) -> dict[str, Series]:
    """A PrivSGP step, and one of PrivSGP-VR with the paper's table, side by side."""
    contenders = {
        "plain": (Contender("plain", "tacit_stacked"), workload),
        "table": (
            Contender("table", "tacit_stacked", {"state": "private"}),
            replace(workload, algorithm="privsgp-vr"),
        ),
    }
    return _taking_turns(contenders, rounds, turn)


def _growth(quick: bool, rounds: int, turn: float) -> list[dict[str, Any]]:
    """Seconds a step for a multiple of one size, over those for a multiple of one."""
    base = replace(PARAMETERS, nodes=3 if quick else 50, shape=(7,) if quick else (770,))
    many = base.records * (2 if quick else 50)
    variants: dict[str, Workload] = {
        "4 times the parameters": replace(base, shape=(4 * base.shape[0],)),
        f"{many // base.records} times the records": replace(base, records=many),
        "8 times the batch": replace(base, batch=8),
        "20 times the batch": replace(base, batch=20),
    }
    if quick:
        variants = dict(list(variants.items())[:1])
    found = _series({"base": base, **variants}, rounds, turn)
    return [
        _row(
            f"seconds a step for {name}, over those for once",
            found[name].seconds / found["base"].seconds,
            detail=f"{found[name].seconds * 1e3:.3g} ms over {found['base'].seconds * 1e3:.3g}; "
            f"peak memory {found[name].peak / 2**20:.0f} MiB over "
            f"{found['base'].peak / 2**20:.0f}",
        )
        for name in variants
    ]


def _series(workloads: Mapping[Any, Workload], rounds: int, turn: float) -> dict[Any, Series]:
    return _taking_turns(
        {
            name: (Contender(str(name), "tacit_stacked"), workload)
            for name, workload in workloads.items()
        },
        rounds,
        turn,
    )


def _taking_turns(
    contenders: Mapping[Any, tuple[Contender, Workload]], rounds: int, turn: float
) -> dict[Any, Series]:
    """Every contender on a workload of its own, round by round.

    Where turns have no length (figures then mean nothing) they run within this process.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers: dict[Any, Worker | Within] = {}
        for number, (name, (contender, workload)) in enumerate(contenders.items()):
            log = Path(folder) / f"{number}.log"
            workers[name] = ready(contender, workload, log, within=turn == 0)
            stack.callback(workers[name].stop)
        steps = {}
        for name, worker in workers.items():
            worker.run(2)
            steps[name] = max(2, round(turn / (worker.run(2) / 2)))
        taken: dict[Any, list[float]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                taken[name].append(worker.run(steps[name]) / steps[name])
        return {
            name: Series(statistics.median(taken[name]), _peak(worker.pid))
            for name, worker in workers.items()
        }


def _peak(pid: int) -> int:
    """Bytes of the highest resident memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _row(
    name: str, value: float, *, unit: str = "", goal: float | None = None, detail: str = ""
) -> dict[str, Any]:
    met = None if goal is None else value <= goal
    return {"name": name, "value": value, "unit": unit, "goal": goal, "met": met, "detail": detail}


def _listed(values: Mapping[int, float], factor: float, unit: str) -> str:
    shown = ", ".join(f"{value * factor:.3g} at {nodes}" for nodes, value in values.items())
    return f"{unit}: {shown}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows, or write them as JSON."""
    parser = argparse.ArgumentParser("python benchmarks/speed/scaling.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: shows that all of it runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data-dir", default=str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rows = measure(asked.quick, asked.rounds, asked.data_dir)
    if asked.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        goal = "" if row["goal"] is None else f" (goal <= {row['goal']:.3g}: {row['met']})"
        print(f"{row['name']}: {row['value']:.4g} {row['unit']}{goal}\n    {row['detail']}")


if __name__ == "__main__":
    main()
