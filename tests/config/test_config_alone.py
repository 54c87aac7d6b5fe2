"""What a file says by itself that cannot be is refused with the file, before a record is read."""

import pytest

from experiments import experiment
from tacit.config import load_config
from tacit.errors import InputError
from tacit.topology.graphs import GRAPHS
from tacit.topology.own import build_schedule

CONTRADICTIONS = [
    ({"task": {"features_cache": "cache"}}, "task.features_cache", "goes with task.features"),
    ({"task": {"model": "mpl"}}, "task.model", "not a model; did you mean 'mlp'"),
    ({"topology": {"graph": "rign"}}, "topology.graph", "did you mean 'ring'"),
    ({"topology": {"graph": "ring", "degree": 4}}, "topology.degree", "ring takes none"),
    ({"topology": {"graph": "ring", "shape": [2, 2]}}, "topology.shape", "ring takes none"),
    ({"topology": {"probability": 0.5}}, "topology.probability", "exponential takes none"),
    ({"topology": {"graph": "k-regular"}}, "topology.degree", "k-regular needs it"),
    ({"topology": {"mixing": "metropolis"}}, "topology.mixing", "exponential is directed"),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"mixing": "uniform"}},
        "topology.mixing",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"graph": "ring"}},
        "topology.graph",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "dp2-sgd"}, "topology": {"graph": "exponential"}},
        "topology.graph",
        "is directed, and dp2-sgd needs symmetric weights",
    ),
    (
        {"algorithm": {"name": "dp-fedavg"}, "topology": {"rounds": 2}},
        "topology.rounds",
        "dp-fedavg has a server",
    ),
    (
        {"algorithm": {"name": "privsgp-vr", "state": "private"}, "faults": {"down": [[0, 1, 2]]}},
        "faults.down",
        "privsgp-vr takes gradients as differences",
    ),
    (
        {"algorithm": {"momentum": 0.5}, "faults": {"down": [[0, 1, 2]]}},
        "faults.down",
        "set algorithm.momentum = 0",
    ),
    ({"nodes": {"partition": "idd"}}, "nodes.partition", "did you mean 'iid'"),
    ({"nodes": {"alpha": 0.5}}, "nodes.alpha", "partition 'iid' does not take it"),
    ({"nodes": {"partition": "by:label", "per_node": 3}}, "nodes.per_node", "does not take it"),
]


@pytest.mark.parametrize(("changes", "where", "why"), CONTRADICTIONS)
def test_it_is_refused_with_the_file(changes, where, why):
    with pytest.raises(InputError) as refused:
        load_config(experiment(**changes))
    assert refused.value.where == where
    assert why in str(refused.value)


def test_what_is_known_of_a_named_graph_is_so():
    keys = {"degree": 4, "shape": (2, 3), "probability": 0.9}
    for name, kind in GRAPHS.items():
        given = {key: keys[key] for key in kind.takes}
        for nodes in [6] if kind.takes else [2, 8] if name == "hypercube" else range(1, 10):
            made = build_schedule(name, nodes, **given)
            assert (kind.directed and nodes > 2) == made.directed, (name, nodes)
            assert (kind.periodic and nodes > 2) == (made.period > 1), (name, nodes)
