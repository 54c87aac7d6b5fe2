"""What a private step costs with noise that is correlated over steps, beside independent noise.

    python benchmarks/matrix_noise.py [--bands 16] [--threads 2] [--rounds 15]

Twenty nodes of PrivSGP on images of MNIST's size, in turns within one process: each line is the
median over rounds of a step with banded noise over the step with independent noise beside it, with
the quarters of the rounds in brackets, and the milliseconds of both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "speed"))

from gate import Gate
from workloads import Workload, records_of

import tacit
from models import model_of
from tacit.training.loop import execute
from tacit.training.prepare import prepare

MOST_STEPS = 1_000_000


def runner(workload: Workload, **privacy: Any) -> Gate:
    """A run that is let go by so many steps at a time."""
    records = records_of(workload)
    experiment = {
        "algorithm": {"name": "privsgp", "learning_rate": 0.01, "clip": 1.0},
        "privacy": {"noise_std": 0.1, "accounting": "none", **privacy},
        "train": {
            "steps": MOST_STEPS,
            "batch": workload.batch,
            "sampling": "cyclic",
            "evaluate_every": MOST_STEPS,
        },
    }
    nodes = [
        (torch.from_numpy(inputs), torch.from_numpy(labels))
        for inputs, labels in zip(records.inputs, records.labels, strict=True)
    ]
    config = tacit.load_config(experiment, count=workload.nodes, given_model=True)
    job = prepare(config, model=model_of(workload), nodes=nodes)
    gate: Gate

    def train() -> None:
        execute(
            job,
            on_step=lambda progress: gate.passed(),
            should_stop=lambda: gate.stopped,
        )

    gate = Gate(train)
    return gate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bands", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for model, batch in (("mlp", 32), ("mlp", 250), ("cnn", 32)):
        if given.only not in f"{model}-{batch}":
            continue
        workload = Workload("matrix noise", nodes=20, batch=batch, model=model)
        kinds = {"independent": {}, "banded": {"noise": "banded", "bands": given.bands}}
        runs = {name: runner(workload, **privacy) for name, privacy in kinds.items()}
        for run in runs.values():
            run.run(given.bands + 4)
        times: dict[str, list[float]] = {name: [] for name in runs}
        steps = 4 if batch == 32 and model == "mlp" else 1
        for turn in range(given.rounds):
            for name in sorted(runs, reverse=bool(turn % 2)):
                begin = time.process_time()
                runs[name].run(steps)
                times[name].append((time.process_time() - begin) / steps)
        ratios = [b / i for b, i in zip(times["banded"], times["independent"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        each = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        print(
            f"{model}, batch {batch}: {middle:.2f} ({low:.2f} to {high:.2f}); "
            f"{each['banded']:.1f} and {each['independent']:.1f} ms",
            flush=True,
        )
        for run in runs.values():
            run.stop(seconds=60.0)


if __name__ == "__main__":
    main()
