"""A run that was stopped ends as if it had not been: further options of what is kept.

Every row of the battery is stopped by `test_resume`.
"""

import pytest
import recursion_oracle as oracle
import torch

from tacit.config import load_config
from tacit.training.loop import execute
from tacit.training.prepare import prepare

STEPS = 7
DIFFERENCES = {"clip": 0.4, "clip_difference": 0.1}
MASKS = {"compressor": "bernoulli", "keep": 0.6}
FEW = {"clients_per_round": 3, "clip": 0.5}
FEDSPD = {"name": "fedspd-dp", "clients_per_round": 3, "local_steps": 2, "inverse_step": "paper"}
WAYS = {
    "do-adp": {"name": "do-adp", "activation": 0.6, "compressor": "rand-k", "keep": 0.4}
    | {"momentum": 0.3},
    "dp-sgd": {"name": "dp-sgd", **FEW},
    "fedavg": {"name": "fedavg", **FEW},
    "dp-fedavg": {"name": "dp-fedavg", **FEW},
    "dp-admm": {"name": "dp-admm", **FEW},
    "fedspd": {**FEDSPD, "state": "public"},
    "fedspd-private": {**FEDSPD, "state": "private"},
    "table": {"name": "privsgp-vr", "state": "private", **DIFFERENCES},
    "groups": {"name": "privsgp-vr", "state": "private", "clip": 0.4, "table_batch": 2},
    "anchors": {"name": "privsgp-vr", "anchor_every": 4, **DIFFERENCES},
    "saga": {"name": "soteriafl-saga", **DIFFERENCES, **MASKS},
    "svrg": {"name": "soteriafl-svrg", "anchor_every": 3, **MASKS},
    "svrg-private": {"name": "soteriafl-svrg", "state": "private", "anchor_every": 3}
    | {**DIFFERENCES, **MASKS},
    "srm": {"name": "dp-srm", "gradient_share": 0.2, **DIFFERENCES, **FEW},
    "ldp-svrg": {"name": "ldp-svrg", "anchor_every": 3, **DIFFERENCES, **FEW},
    "spider": {"name": "ldp-spider", "anchor_every": 4, **DIFFERENCES, **FEW},
}
TRAIN = {"fedspd": {"batch": "all"}, "fedspd-private": {"batch": 1, "sampling": "fixed"}}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_ends_as_if_it_had_not_been(way, tmp_path):
    task = oracle.problem("logistic", 4)
    privacy = {"noise_std": 0.3, "noise_seed": 2, "delta": 1e-4, "relation": "replace-one"}
    config = {
        "task": {"loss": "logistic"},
        "algorithm": WAYS[way],
        "privacy": {} if way == "fedavg" else privacy,
        "train": {"steps": STEPS, "batch": 2, "dtype": "float64", **TRAIN.get(way, {})},
    }
    settings = load_config(config, count=4, given_model=True)
    job = prepare(settings, model=task.module, nodes=task.nodes)
    whole, made = execute(job), iter(range(1, STEPS))
    stopped = execute(job, out=tmp_path / "run", should_stop=lambda: next(made) == 4)
    assert (stopped.status, stopped.steps) == ("stopped", 4)
    resumed = execute(job, out=tmp_path / "run", resume=True)
    assert resumed.status == "done"
    assert torch.equal(resumed.parameters, whole.parameters)
    assert torch.equal(resumed.consensus, whole.consensus)
    assert (resumed.epsilon, resumed.bytes_sent) == (whole.epsilon, whole.bytes_sent)
