"""Named schedules, their periods and options, and schedules from files."""

from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError
from tacit.topology import GRAPHS, GraphSchedule, build_schedule, graph_of

UNDIRECTED = {"ring", "complete", "star", "k-regular", "torus", "erdos-renyi"}
DIRECTED = {"directed-ring", "exponential"}
KEYS: dict[str, dict[str, Any]] = {
    "k-regular": {"degree": 2},
    "torus": {"shape": (2, 8)},
    "erdos-renyi": {"probability": 0.6},
}
BARE = sorted(UNDIRECTED.union(DIRECTED).difference(KEYS))


def test_every_known_graph_is_covered_here() -> None:
    assert set(GRAPHS) == UNDIRECTED | DIRECTED


@pytest.mark.parametrize(
    ("name", "nodes"),
    [(name, nodes) for name in sorted(GRAPHS) for nodes in (3, 4, 7, 16) if name != "torus"]
    + [("torus", 16)],
)
def test_named_schedules(name: str, nodes: int) -> None:
    schedule = build_schedule(name, nodes, **KEYS.get(name, {}))
    assert schedule.name == name
    assert schedule.nodes == nodes
    assert schedule.directed == (name in DIRECTED)
    assert schedule.period == ((nodes - 1).bit_length() if name == "exponential" else 1)


@pytest.mark.parametrize("name", BARE)
def test_one_and_two_nodes(name: str) -> None:
    assert build_schedule(name, 1).graphs == (graph_of(1, frozenset()),)
    assert build_schedule(name, 2).graphs == (graph_of(2, frozenset({(0, 1), (1, 0)})),)
    assert not build_schedule(name, 2).directed


def test_a_schedule_repeats() -> None:
    graphs = tuple(graph_of(3, frozenset({(i, (i + 1) % 3)})) for i in range(3))
    schedule = GraphSchedule("given", graphs)
    assert [schedule.at(k) for k in range(7)] == [*graphs, *graphs, graphs[0]]


def test_one_asymmetric_graph_makes_a_schedule_directed() -> None:
    both, one_way = graph_of(2, frozenset({(0, 1), (1, 0)})), graph_of(2, frozenset({(0, 1)}))
    assert GraphSchedule("given", (both, one_way)).directed
    assert not GraphSchedule("given", (both, both)).directed


def test_a_file_is_read_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.txt").write_text("0 1\n\n1 0\n")
    monkeypatch.chdir(tmp_path)
    schedule = build_schedule("file:net.txt", 2)
    assert schedule.name == "file:net.txt"
    assert schedule.graphs == (graph_of(2, frozenset({(0, 1)})), graph_of(2, frozenset({(1, 0)})))
    assert schedule.directed
    assert build_schedule(f"file:{tmp_path / 'net.txt'}", 2).graphs == schedule.graphs


@pytest.mark.parametrize(
    ("graph", "hint"),
    [("rings", "'ring'"), ("exponentail", "'exponential'"), ("zzz", "complete, directed-ring")],
)
def test_an_unknown_graph_is_told_the_nearest(graph: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as refused:
        build_schedule(graph, 4)
    assert refused.value.where == "topology.graph"
    assert refused.value.value == graph


@pytest.mark.parametrize("graph", [*BARE, "torus", "erdos-renyi", "file:net.txt"])
def test_a_degree_is_refused_where_none_is_taken(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.txt").write_text("0 1\n1 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=graph) as refused:
        build_schedule(graph, 4, degree=2)
    assert refused.value.where == "topology.degree"


@pytest.mark.parametrize("degree", [None, 3, 6])
def test_k_regular_needs_a_fitting_degree(degree: int | None) -> None:
    with pytest.raises(InputError, match="even") as refused:
        build_schedule("k-regular", 6, degree=degree)
    assert refused.value.where == "topology.degree"
    assert refused.value.value == degree


@pytest.mark.parametrize("graph", ["file:", "file:absent.txt"])
def test_a_file_that_is_not_there_is_refused(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        build_schedule(graph, 4)
    assert refused.value.where == "topology.graph"
