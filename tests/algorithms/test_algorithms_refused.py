"""Options that cannot be: each is refused by its key."""

import math

import pytest
import recursion_oracle as oracle

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.errors import InputError

SERVERS = ("dp-sgd", "fedavg", "dp-fedavg", "dp-admm")
GRAPH_ADMM = ("ddp-admm-gradient", "dp-madmm-gradient", "dp-radmm-gradient")
CONVEX = [name for name, row in ALGORITHMS.items() if row.claims.convex]

# The algorithms, their options, and the key that is refused.
REFUSED = [
    (SERVERS, {"clients_per_round": 4}, "clients_per_round"),
    (SERVERS, {"clients_per_round": 0}, "clients_per_round"),
    (SERVERS, {"regulariser": "l3"}, "regulariser"),
    (SERVERS, {"regularisation": -1.0}, "regularisation"),
    (SERVERS, {"clip_norm": "coordinate"}, "clip_norm"),
    (SERVERS, {"momentum": 0.9}, "momentum"),
    (["fedavg"], {"local_steps": 0}, "local_steps"),
    (["dp-fedavg"], {"sampling": "without"}, "sampling"),
    (["dp-sgd"], {"local_steps": 2}, "local_steps"),
    (["dp-admm"], {"penalty": 0.0}, "penalty"),
    (["dp-admm"], {"penalty": -1.0}, "penalty"),
    (["dp-admm"], {"regulariser": "box"}, "regulariser"),
    (GRAPH_ADMM, {"penalty": 0.0}, "penalty"),
    (GRAPH_ADMM, {"penalty": math.inf}, "penalty"),
    (GRAPH_ADMM, {"regulariser": "box"}, "regulariser"),
    (GRAPH_ADMM, {"regularisation": 0.5}, "regularisation"),
    (GRAPH_ADMM, {"clients_per_round": 2}, "clients_per_round"),
    (["dp-madmm-gradient"], {"penalty_growth": 0.9}, "penalty_growth"),
    (["dp-madmm-gradient"], {"penalty_growth": 1e37}, "penalty_growth"),
    (["dp-madmm-gradient"], {"penalty": 1e37, "penalty_growth": 1.5}, "penalty_growth"),
    (["dp-madmm-gradient"], {"noise_decay": 0.0}, "noise_decay"),
    (["dp-madmm-gradient"], {"noise_decay": 1.1}, "noise_decay"),
    (["dp-madmm-gradient"], {"noise_decay": 1e-30}, "noise_decay"),
    (["dp-madmm-gradient"], {"dual_step": 0.0}, "dual_step"),
    (["fedspd-dp"], {"penalty": 0.0}, "penalty"),
    (["fedspd-dp"], {"inverse_step": "papers"}, "inverse_step"),
    (["fedspd-dp"], {"inverse_step": -1.0}, "inverse_step"),
    (["fedspd-dp"], {"inverse_step": True}, "inverse_step"),
    (["fedspd-dp"], {"local_steps": 0}, "local_steps"),
    (["fedspd-dp"], {"regulariser": "l0"}, "regulariser"),
    (["fedspd-dp"], {"state": "secret"}, "state"),
    (["fedspd-dp"], {"clients_per_round": 5}, "clients_per_round"),
    (["fedspd-dp"], {"momentum": 0.9}, "momentum"),
    (["fedspd-dp"], {"clip_norm": "l1", "smoothness": 9.0}, "clip_norm"),
    (["fedspd-dp"], {"smoothness": 100.0}, "smoothness"),
    (["fedspd-dp"], {"local_steps": 400}, "local_steps"),
    (["dpdo"], {"rate_decay": 0.9, "noise_decay": 0.8}, "noise_decay"),
    (["dpdo"], {"clip_norm": "l2"}, "clip_norm"),
    (["dpdo"], {"regulariser": "l1"}, "regulariser"),
    (["cpgt"], {"keep": 1.2}, "keep"),
    (["cpgt"], {"keep": 0.0}, "keep"),
    (["cpgt"], {"compressor": "topk"}, "compressor"),
    (["do-adp"], {"keep": 0}, "keep"),
    (["do-adp"], {"keep": 1.5}, "keep"),
    (["do-adp"], {"activation": 0.0}, "activation"),
    (["do-adp"], {"activation": 1.2}, "activation"),
    (["do-adp"], {"consensus_step": 0.0}, "consensus_step"),
    (["do-adp"], {"consensus_step": 1.1}, "consensus_step"),
    (["do-adp"], {"compressor": "top_k"}, "compressor"),
    (["do-adp"], {"momentum": 1.0}, "momentum"),
    (["do-adp"], {"clip_norm": "linf"}, "clip_norm"),
    (["do-adp"], {"final_mixing": 3}, "final_mixing"),
    (["dp-dda"], {"activation": 0.0}, "activation"),
    (["dp-dda"], {"activation": 1.5}, "activation"),
    (["dp-dda"], {"regulariser": "x"}, "regulariser"),
    (["adp2-sgd"], {"stragglers": 1.5}, "stragglers"),
    (["adp2-sgd"], {"straggler_factor": 0.5}, "straggler_factor"),
    (["privsgp-vr"], {"state": "hidden"}, "state"),
    (["privsgp-vr"], {"table_batch": 4}, "table_batch"),
    (["privsgp-vr"], {"table_directory": "folder"}, "table_directory"),
    (["privsgp-vr"], {"state": "private", "table_batch": 0}, "table_batch"),
    (
        ["privsgp-vr"],
        {"state": "private", "table_batch": 2, "clip_difference": 1.0},
        "clip_difference",
    ),
    (["privsgp-vr"], {"clip_difference": 0.0}, "clip_difference"),
    (["privsgp-vr"], {"anchor_every": 0}, "anchor_every"),
    (["privsgp-vr"], {"anchor_share": 1.0}, "anchor_share"),
    (["privsgp-vr"], {"clip_norm": "coordinate"}, "clip_norm"),
    (["soteriafl-saga"], {"state": "public"}, "state"),
    (["soteriafl-saga"], {"anchor_every": 3}, "anchor_every"),
    (["soteriafl-svrg"], {"table_batch": 3}, "table_batch"),
    (["soteriafl-svrg"], {"shift_step": 0.0}, "shift_step"),
    (["soteriafl-svrg"], {"keep": 1.5}, "keep"),
    (["soteriafl-saga"], {"keep": 0.5}, "keep"),
    (["soteriafl-svrg"], {"compressor": "sign"}, "compressor"),
    (["soteriafl-saga"], {"clip_norm": "l1"}, "clip_norm"),
    (["dp-srm"], {"gradient_share": 0.0}, "gradient_share"),
    (["dp-srm"], {"gradient_share": 1.0, "clip_difference": 0.1}, "clip_difference"),
    (["dp-srm"], {"anchor_every": 3}, "anchor_every"),
    (["dp-srm"], {"anchor_share": 1.0}, "anchor_share"),
    (["ldp-svrg"], {"momentum": 0.5}, "momentum"),
    (["ldp-svrg"], {"anchor_every": 0}, "anchor_every"),
    (["ldp-svrg"], {"state": "private"}, "state"),
    (["ldp-spider"], {"clip_difference": -1.0}, "clip_difference"),
    (["ldp-spider"], {"clip_difference": math.nan}, "clip_difference"),
    (["ldp-spider"], {"anchor_every": 1, "clip_difference": 0.1}, "clip_difference"),
    (["ldp-spider"], {"anchor_every": 1, "anchor_share": 0.1}, "anchor_share"),
    (["ldp-spider"], {"clip_norm": "l1", "clip": 1.0}, "clip_norm"),
    (["ldp-svrg"], {"clients_per_round": 9}, "clients_per_round"),
    (["ldp-svrg"], {"regularisation": 0.1}, "regularisation"),
]


def train(name, options, *, model=None, **sections):
    """A run of nine steps: of that model of the table, or of a linear one."""
    task = oracle.problem("mse", 3)
    config = {
        "task": {"loss": "mse"} | ({} if model is None else {"model": model}),
        "algorithm": {"name": name, **options},
        "privacy": {"epsilon": "none"},
        "train": {"steps": 9, "batch": 2, "dtype": "float64"},
    }
    module = task.module if model is None else None
    return tacit.train({**config, **sections}, model=module, nodes=task.nodes)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [(name, options, key) for names, options, key in REFUSED for name in names],
)
def test_bad_options(name, options, key):
    with pytest.raises(InputError) as refused:
        train(name, options)
    assert refused.value.where == f"algorithm.{key}"


def test_a_server_has_no_graph():
    with pytest.raises(InputError) as refused:
        train("fedspd-dp", {}, topology={"graph": "ring"})
    assert refused.value.where == "topology.graph"


@pytest.mark.parametrize("name", CONVEX)
def test_a_model_that_is_not_convex_is_warned_of(name):
    for model, warned in (("linear", False), ("mlp", True)):
        warnings = train(name, {}, model=model).plan.warnings
        assert any("is not convex" in line for line in warnings) == warned
