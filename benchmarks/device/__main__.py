"""How fast a device is, and whether it computes what a processor does: `python benchmarks/device`.

    PYTHONPATH=src python benchmarks/device [--device cuda] [--seconds 200] [--only noise steps]

One call, which ends within `--seconds`, with whatever is compiled on the way: each part has a share
of that time, and a row that it does not come to is said to be left out. Neither a network nor an
installed tacit is needed. Parts:

- `battery`: every way that an algorithm is run, seeded, in float64, four steps, on the device and
  on the processor: how far their models are apart, and whether their epsilons are equal;
- `noise`: cryptographic noise alone, beside `torch.randn`;
- `steps`: milliseconds a step, private and not, in each precision, with the peak of memory; beside
  it PyTorch and Opacus (where it can be imported), which take the nodes one after the other and
  neither mix nor load.

With two GPUs, `torchrun --nproc-per-node 2 benchmarks/device/exchange.py` compares what travels
between them by NCCL with one process. `--quick` shows that all of it runs: its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import gc
import math
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / part) for part in ("src", "tests/algorithms")]

import tacit  # noqa: E402
from tacit.callbacks import Callback  # noqa: E402
from tacit.errors import NotPrivateWarning, TacitError  # noqa: E402
from tacit.models import build_model  # noqa: E402
from tacit.privacy.noise import draws  # noqa: E402
from tacit.privacy.noise.gaussian import add_normal  # noqa: E402

SHARES = {"battery": 0.3, "noise": 0.08, "steps": 0.62}  # of all seconds
MOST_STEPS = 1_000_000
WARM = 8  # steps, that are not timed
SIZES = (7, 5, 6, 8)  # records of the nodes of the battery


@dataclass(frozen=True)
class Row:
    """A model, so many nodes, and records a batch; images have `shape`."""

    name: str
    model: str
    nodes: int
    batch: int
    shape: tuple[int, int, int] = (1, 28, 28)

    def module(self) -> nn.Module:
        """The network, its weights by a seed."""
        return build_model(self.model, input_shape=self.shape, outputs=10, seed=0)

    def records(self, count: int, node: int = 0) -> tuple[Tensor, Tensor]:
        """So many inputs and labels, that say nothing."""
        draw = torch.Generator().manual_seed(node)
        return torch.randn(count, *self.shape, generator=draw), torch.arange(count) % 10


ROWS = (
    Row("784-128-10, 50 x 1", "mlp", 50, 1),
    Row("784-128-10, 20 x 32", "mlp", 20, 32),
    Row("CNN, 20 x 32", "cnn", 20, 32),
    Row("CNN, 20 x 256", "cnn", 20, 256),
    Row("ResNet-18, 20 x 32", "resnet18", 20, 32, (3, 32, 32)),
    Row("ResNet-18, 4 x 256", "resnet18", 4, 256, (3, 32, 32)),
)
QUICK_ROWS = (Row("784-128-10, 3 x 2", "mlp", 3, 2),)


class _EnoughError(Exception):
    """A step has been timed for long enough."""


class Stopwatch(Callback):
    """Times the steps of a run after the first few, until there is no more time."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._first = self._begun = math.nan
        self._warm = 0
        self.milliseconds = math.nan

    def on_step(self, progress: Any) -> None:
        """Begin, or end by an error, which ends the run."""
        now, step = time.perf_counter(), progress.step
        if step == 1:
            self._first = now
        elif not self._warm and (step > WARM or now - self._first > self._seconds):
            settle(self._device)
            self._warm, self._begun = step, time.perf_counter()
        elif self._warm and now - self._begun > self._seconds:
            settle(self._device)
            spent = time.perf_counter() - self._begun
            self.milliseconds = 1e3 * spent / (step - self._warm)
            raise _EnoughError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; 1 if device and processor disagree."""
    parser = argparse.ArgumentParser("python benchmarks/device", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", nargs="+", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    asked = parser.parse_args(arguments)
    begun, device = time.monotonic(), torch.device(asked.device)
    warnings.simplefilter("ignore", NotPrivateWarning)
    print(f"# {described(device)}\n")
    if asked.quick:
        print("quick: tiny sizes: these figures mean NOTHING\n")
    parts = {"battery": battery, "noise": noise, "steps": steps}
    whole, wrong = sum(SHARES[name] for name in asked.only), 0
    share = 0.0
    for name in asked.only:
        share += SHARES[name] / whole  # what a part leaves, the next one has
        until = begun + share * 0.95 * asked.seconds
        print(f"## {name}\n")
        for line in parts[name](device, until, asked.quick):
            wrong += line.endswith("DIFFERS |")
            print(line, flush=True)
        print()
    print(f"{time.monotonic() - begun:.0f} s in all")
    return 1 if wrong else 0


def described(device: torch.device) -> str:
    """The device, its driver, and versions."""
    name, driver = platform.processor() or platform.machine(), ""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
            driver = f", driver {said.stdout.splitlines()[0]}, CUDA {torch.version.cuda}"
        except (OSError, subprocess.SubprocessError, IndexError):
            driver = f", CUDA {torch.version.cuda}"
    try:
        import triton

        kernels = f", Triton {triton.__version__}"
    except ImportError:
        kernels = ""
    return f"{name}{driver}, torch {torch.__version__}{kernels}, tacit {tacit.__version__}"


def settle(device: torch.device) -> None:
    """Wait for all that was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, work: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, on average, after three; within about so many seconds."""
    for _ in range(3):
        work()
    settle(device)
    begun, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - begun < seconds:
        work()
        calls += 1
        if calls % 10 == 0:
            settle(device)
    settle(device)
    return (time.perf_counter() - begun) / calls


def battery(device: torch.device, until: float, quick: bool) -> Iterator[str]:
    """Every row of the battery on the device and on the processor."""
    from battery_table import ROWS as WAYS

    yield "| row | models apart | epsilons | |\n|---|---|---|---|"
    cases = list(WAYS)[:3] if quick else list(WAYS)
    for number, case in enumerate(cases):
        if time.monotonic() > until:
            yield f"\nleft out for want of time: {', '.join(cases[number:])}"
            return
        found, right = (_battery_run(case, where) for where in (device, torch.device("cpu")))
        size = max(float(right[0].abs().max()), 1e-300)
        apart = float((found[0] - right[0]).abs().max()) / size
        alike = found[1] == right[1]
        verdict = "" if alike and apart < 1e-12 else "DIFFERS "
        yield f"| {case} | {apart:.1e} | {'equal' if alike else 'others'} | {verdict}|"


def _battery_run(case: str, device: torch.device) -> tuple[Tensor, tuple[float | None, ...]]:
    """Models `[nodes, d]` on the processor, and certified epsilons."""
    from battery_experiments import experiment, schedule_options
    from battery_table import ROWS as WAYS

    options = {**schedule_options(case, 4), **WAYS[case].resumed}
    settings = experiment(case, model=WAYS[case].network, steps=4, batch=2, options=options)
    settings["nodes"] = {**settings.get("nodes", {}), "weights": "equal"}
    settings["train"]["device"] = str(device)
    # The cipher that a device has kernels for, on both.
    settings["privacy"] = {**settings.get("privacy", {}), "keystream": "chacha20"}

    def records(seed: int, size: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        inputs = torch.randn(size, 1, 8, 8, generator=draw, dtype=torch.float64)
        return inputs, torch.randint(10, (size,), generator=draw)

    nodes = [records(node, size) for node, size in enumerate(SIZES)]
    with tempfile.TemporaryDirectory() as folder:
        result = tacit.train(settings, nodes=nodes, test=records(99, 12), out=Path(folder) / "run")
    return torch.stack([model.cpu() for model in result.parameters]), tuple(result.epsilon)


def noise(device: torch.device, until: float, quick: bool) -> Iterator[str]:
    """Noise alone, beside a generator that is not cryptographic."""
    yield "| values | noise, us | torch.randn, us | times |\n|---|---|---|---|"
    shapes = [(2, 1000)] if quick else [(20, 101_770), (50, 101_770), (4, 11_000_000)]
    for number, (nodes, length) in enumerate(shapes):
        left = (until - time.monotonic()) / (len(shapes) - number)
        if left < 0:
            yield f"\nleft out for want of time: {shapes[number:]}"
            return
        keys = draws.seeded_keys(1, range(nodes), "chacha20")
        total = torch.zeros(nodes, length, device=device)
        step = iter(range(MOST_STEPS))

        def drawn(total: Tensor = total, keys: Any = keys, step: Iterator[int] = step) -> object:
            return add_normal(total, [0.7] * len(total), keys, keys.nodes, "noise", next(step))

        seconds = 0.01 if quick else min(1.0, left / 4)
        ours = timed(device, drawn, seconds)
        theirs = timed(device, lambda total=total: torch.randn_like(total), seconds)
        figures = f"{ours * 1e6:.1f} | {theirs * 1e6:.1f} | {ours / theirs:.2f}"
        yield f"| {nodes} x {length:,} | {figures} |"


def steps(device: torch.device, until: float, quick: bool) -> Iterator[str]:
    """A step of every row, private and not, in every precision."""
    rows = QUICK_ROWS if quick else ROWS
    precisions = ("float32", "tf32", "bf16")
    columns = [f"{kind} {one}" for one in precisions for kind in ("private", "plain")]
    columns += ["PyTorch", "Opacus"]
    yield "Milliseconds a step; memory is the most that was held at once, by the first column.\n"
    yield f"| model | {' | '.join(columns)} | memory, MiB |\n|---|{'---|' * (len(columns) + 1)}"
    jobs = len(rows) * len(columns)
    for row in rows:
        cells, memory, took = [], "", 0.0
        for column in columns:
            begun = time.monotonic()
            seconds = 0.05 if quick else max(0.2, min(2.0, (until - begun) / (4 * jobs)))
            jobs -= 1
            if begun + took > until:  # as long as the last one, most of which may be the start
                cells.append("no time")
                continue
            cells.append(_cell(row, column, device, seconds))
            took = time.monotonic() - begun
            memory = memory or f"{_peak(device) / 2**20:.0f}"
        yield f"| {row.name} | {' | '.join(cells)} | {memory} |"


def _cell(row: Row, column: str, device: torch.device, seconds: float) -> str:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        if column in ("PyTorch", "Opacus"):
            return f"{_in_sequence(row, device, seconds, opacus=column == 'Opacus'):.3g}"
        kind, precision = column.split()
        return f"{_step(row, device, seconds, kind == 'private', precision):.3g}"
    except ImportError:
        return "not here"
    except (TacitError, RuntimeError) as error:
        return f"failed: {str(error).splitlines()[0][:60]}"


def _step(row: Row, device: torch.device, seconds: float, private: bool, precision: str) -> float:
    """Milliseconds of a step of PrivSGP or of SGP, as a user has it: coins, push-sum and all."""
    settings = {
        "algorithm": {"name": "privsgp" if private else "sgp", "learning_rate": 0.01},
        "privacy": {"noise_std": 0.1, "accounting": "none"} if private else {},
        "train": {
            "steps": MOST_STEPS,
            "batch": row.batch,
            "precision": precision,
            "device": str(device),
            "evaluate_every": MOST_STEPS,
            "checkpoint_every": MOST_STEPS,
        },
    }
    records = [row.records(2 * row.batch, node) for node in range(row.nodes)]
    watch = Stopwatch(device, seconds)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            tacit.train(
                settings,
                model=row.module(),
                nodes=records,
                callbacks=[watch],
                out=out,
            )
        except TacitError:
            if math.isnan(watch.milliseconds):
                raise
    return watch.milliseconds


def _in_sequence(row: Row, device: torch.device, seconds: float, opacus: bool) -> float:
    """Milliseconds for all nodes, one after the other, in float32."""
    module = row.module().to(device)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.01)
    if opacus:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        module = GradSampleModule(module)
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.01),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=row.batch,
        )
    inputs, labels = (part.to(device) for part in row.records(row.batch))

    def step() -> None:
        for _ in range(row.nodes):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.step()

    return 1e3 * timed(device, step, seconds)


def _peak(device: torch.device) -> int:
    """Bytes; of the whole process so far, on a processor."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
