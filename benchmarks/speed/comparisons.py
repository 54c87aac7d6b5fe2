"""The rows of the table in which contenders do the same work: who, on what, with which goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from contender import Contender
from workloads import Workload

OURS, PLAIN = "tacit", "tacit, not private"
GLOO, OPACUS = "a process a node (gloo)", "in sequence (Opacus)"
RECORDS = "a process a node (gloo, gradients of records)"
SEQUENCE, AUTOGRAD = "in sequence (PyTorch, closed form)", "in sequence (PyTorch, autograd)"
PFL, FLOWER = "pfl", "Flower"
INDEPENDENT, PAIRWISE = "independent noise", "pairwise noise"
PLANNED = "pairwise noise, rounds as planned"


@dataclass(frozen=True)
class Ratio:
    """One contender's seconds or bytes over another's, and the goal for it."""

    name: str
    of: str
    over: str
    quantity: Literal["seconds", "bytes"] = "seconds"
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One workload.

    Attributes:
        workload: what is done; `workload.name` names the row.
        contenders: who does it; the first is the one that the others must agree with.
        ratios: what is shown of it.
    """

    workload: Workload
    contenders: tuple[Contender, ...]
    ratios: tuple[Ratio, ...]


def comparisons(data_dir: str, peers: str) -> list[Comparison]:
    """All of them.

    Args:
        data_dir: where the original files are.
        peers: the interpreter that has Opacus, pfl and Flower.
    """
    rows: list[Callable[[str, str], Comparison]] = [
        _privsgp_one,
        _privsgp_batch,
        _dyn_d2p_cnn,
        _fedspd_adult,
        _dp_fedavg,
        _pairwise,
    ]
    return [row(data_dir, peers) for row in rows]


def _stacked() -> tuple[Contender, ...]:
    return (
        Contender(OURS, "tacit_stacked"),
        Contender(PLAIN, "tacit_stacked", private=False),
        Contender(GLOO, "gloo"),
    )


def _opacus(peers: str) -> Contender:
    return Contender(OPACUS, "opacus_sequential", python=peers, needs=("torch", "opacus"))


def _faster(than: str, at_least: float) -> Ratio:
    return Ratio(f"times as fast as {than}", than, OURS, at_least=at_least)


def _private(at_most: float) -> Ratio:
    return Ratio("private over not private", OURS, PLAIN, at_most=at_most)


def _privsgp_one(data_dir: str, peers: str) -> Comparison:
    return Comparison(
        Workload("privsgp-one", nodes=50, batch=1, records=1200, data_dir=data_dir),
        _stacked(),
        (
            _faster(GLOO, 3),
            Ratio(f"memory over {GLOO}", OURS, GLOO, "bytes", at_most=1 / 20),
            _private(1.5),
        ),
    )


def _privsgp_batch(data_dir: str, peers: str) -> Comparison:
    return Comparison(
        Workload("privsgp-batch", nodes=20, batch=32, records=3000, data_dir=data_dir),
        (
            *_stacked(),
            Contender(RECORDS, "gloo", options={"way": "per-record"}),
            _opacus(peers),
        ),
        (_faster(GLOO, 2), _faster(RECORDS, 7), _faster(OPACUS, 4.5), _private(1.5)),
    )


def _dyn_d2p_cnn(data_dir: str, peers: str) -> Comparison:
    workload = Workload(
        "dyn-d2p-cnn",
        algorithm="dyn-d2p",
        model="cnn",
        dataset="fashion-mnist",
        nodes=20,
        batch=32,
        records=3000,
        data_dir=data_dir,
    )
    return Comparison(
        workload,
        (*_stacked(), _opacus(peers)),
        (_faster(GLOO, 3), _faster(OPACUS, 5), _private(1.5)),
    )


def _fedspd_adult(data_dir: str, peers: str) -> Comparison:
    workload = Workload(
        "fedspd-adult",
        algorithm="fedspd-dp",
        model="logistic",
        dataset="adult",
        nodes=100,
        records=325,
        shape=(105,),
        classes=1,
        active=20,
        batch=10,
        local_steps=5,
        data_dir=data_dir,
    )
    contenders = (
        Contender(OURS, "tacit_federated"),
        Contender(SEQUENCE, "fedspd_sequential"),
        Contender(AUTOGRAD, "fedspd_sequential", options={"way": "autograd"}),
    )
    return Comparison(workload, contenders, (_faster(SEQUENCE, 3), _faster(AUTOGRAD, 8)))


def _dp_fedavg(data_dir: str, peers: str) -> Comparison:
    workload = Workload(
        "dp-fedavg",
        algorithm="dp-fedavg",
        model="cnn3",
        dataset="generated",
        nodes=1000,
        records=50,
        shape=(3, 32, 32),
        active=50,
        batch=10,
        local_steps=5,
        learning_rate=0.1,
        clip=0.1,  # the median change of a client is about so long
        data_dir=data_dir,
    )
    contenders = (
        Contender(OURS, "tacit_federated"),
        Contender(PFL, "pfl_peer", python=peers, needs=("torch", "pfl")),
        Contender(FLOWER, "flower_peer", python=peers, needs=("torch", "flwr", "ray")),
    )
    return Comparison(workload, contenders, (_faster(PFL, 1.5), _faster(FLOWER, 6)))


def _pairwise(data_dir: str, peers: str) -> Comparison:
    """Noise that cancels between the 80 pairs of the exponential graph of 20 nodes, of degree 8.

    Pairwise noise takes a certified budget, so both have the same one, and steps enough for all
    turns. As many rounds of gossip: what is compared is noise. `PLANNED` has as many as its plan
    chooses, since the cancelling noise has to be mixed away.
    """
    budget = {"epsilon": 8.0, "delta": 1e-5, "relation": "replace-one"}
    planned = {"graph": "exponential", "partners": "graph"}
    once = {**planned, "rounds": 1}

    def contender(name: str, noise: str, topology: dict[str, Any]) -> Contender:
        privacy = {**budget, "noise": noise}
        return Contender(
            name,
            "tacit_stacked",
            {"steps": 100_000, "privacy": privacy, "topology": topology},
        )

    return Comparison(
        Workload("pairwise", nodes=20, batch=32, records=3000, data_dir=data_dir),
        (
            contender(INDEPENDENT, "independent", {"graph": "exponential"}),
            contender(PAIRWISE, "pairwise", once),
            contender(PLANNED, "pairwise", planned),
        ),
        (
            Ratio(f"{PAIRWISE} over {INDEPENDENT}", PAIRWISE, INDEPENDENT, at_most=1.6),
            Ratio(f"{PLANNED}, over {INDEPENDENT}", PLANNED, INDEPENDENT, at_most=1.6),
        ),
    )
