"""Numbers of nodes go to parties by name, through every door, in whatever order they stand."""

import contextlib
import json
from collections.abc import Mapping

import numpy as np
import polars as pl
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacit
from experiments import tacit as command
from experiments import write_module
from tacit.communication.peers import Peers, PeerState
from tacit.config import Config, load_config, to_toml
from tacit.errors import InputError, RecordsError
from tacit.training.prepare import prepare
from tacit.training.records import node_records

NAMES = ("west", "site10", "site2")
BUDGETS = {"west": 1.0, "site10": 2.0, "site2": 4.0}
DELTAS = {"west": 1e-4, "site10": 1e-5, "site2": 1e-6}
ROWS = 90
Tables = Mapping[str, Mapping[str, float]]


def sections(privacy, **more):
    common = {
        "task": {"model": "logistic", "outputs": 2, **more.get("task", {})},
        "nodes": dict(more.get("nodes", {})),
        "algorithm": {"name": "privsgp", "learning_rate": 0.5, "clip": 1.0},
        "privacy": dict(privacy),
        "train": {"steps": 2, "batch": "all"},
    }
    return {name: section for name, section in common.items() if section}


def rows():
    """Records of unequal parties: `west` has half of them."""
    draw = np.random.default_rng(3)
    owners = [NAMES[0 if row % 2 else 1 + row % 3 % 2] for row in range(ROWS)]
    return [(name, float(draw.uniform(0, 10)), "ny"[draw.integers(2)]) for name in owners]


def schema(order):
    return {
        "confirmed_public": True,
        "target": {"column": "ill", "kind": "class", "labels": ["n", "y"]},
        "node": {"column": "site", "values": list(order)},
        "columns": {"lab": {"kind": "number", "low": 0, "high": 10}},
    }


def table(folder, order):
    lines = ["site,lab,ill", *(",".join(map(str, row)) for row in rows())]
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "t.schema.toml").write_text(tomli_w.dumps(schema(order)), encoding="utf-8")


def arrays():
    every = rows()
    return {
        name: (
            np.array([[lab] for owner, lab, _ in every if owner == name], dtype=np.float32),
            np.array(["ny".index(ill) for owner, _, ill in every if owner == name]),
        )
        for name in NAMES
    }


def by_table(folder, order, tables):
    table(folder, order)
    text = tomli_w.dumps(sections(tables, task={"dataset": f"csv:{folder}/t.csv"}))
    file = folder / "experiment.toml"
    file.write_text(text.replace("outputs = 2\n", ""), encoding="utf-8")
    return prepare(load_config(file)).plan


def by_column(folder, order, tables):
    module = write_module(
        folder,
        f"""
        import numpy as np
        import tacit
        rows = {rows()!r}
        def load():
            inputs = np.array([[lab] for _, lab, _ in rows], dtype=np.float32)
            targets = np.array(["ny".index(ill) for _, _, ill in rows])
            train = tacit.Dataset(inputs, targets)
            return tacit.TaskData("t", train, columns={{"site": [name for name, _, _ in rows]}})
        """,
    )
    nodes = {"partition": "by:site", "count": 3}
    config = Config(**sections(tables, task={"dataset": f"{module}:load"}, nodes=nodes))
    with contextlib.chdir(folder):
        return prepare(config).plan


def by_mapping(folder, order, tables):
    own = arrays()
    nodes, _, names = node_records({name: own[name] for name in order}, None)
    return prepare(load_config(sections(tables), count=3, names=names), nodes=nodes).plan


def by_frame(folder, order, tables):
    frame = pl.DataFrame(rows(), schema=["site", "lab", "ill"], orient="row")
    nodes, declared, names = node_records(frame, schema(order))
    config = load_config(sections(tables), count=3, names=names)
    return prepare(config, nodes=nodes, schema=declared).plan


def by_rank(folder, order, tables):
    table(folder, order)
    for node, name in enumerate(order):
        own = [f"{lab},{ill}" for owner, lab, ill in rows() if owner == name]
        (folder / f"own-{node}.csv").write_text("\n".join(["lab,ill", *own]) + "\n")
    nodes = {"data": "by-rank", "count": 3, "source": f"{folder}/own-{{node}}.csv"}
    task = {"schema": f"{folder}/t.schema.toml"}
    return prepare(Config(**sections(tables, task=task, nodes=nodes))).plan


def by_names(folder, order, tables):
    own = arrays()
    config = load_config(sections(tables, nodes={"names": list(order)}), count=3)
    return prepare(config, nodes=[own[name] for name in order]).plan


def by_estimator(folder, order, tables):
    owners, labs, ills = zip(*rows(), strict=True)
    model = tacit.TacitClassifier(classes=["n", "y"], steps=1, **tables)
    return model.fit(np.array(labs)[:, None], ills, nodes=list(owners)).result_.plan


DOORS = {
    "a table in TOML": by_table,
    "by:COLUMN of a function": by_column,
    "nodes= as a mapping": by_mapping,
    "one frame": by_frame,
    "a file for each node": by_rank,
    "names for arrays": by_names,
    "an estimator": by_estimator,
}


@pytest.mark.parametrize("door", DOORS)
@settings(
    max_examples=4,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(order=st.permutations(NAMES), written=st.permutations(NAMES))
def test_whose_budget_is_whose_depends_on_no_order(door, order, written, tmp_path):
    tables = {
        "epsilon": {name: BUDGETS[name] for name in written},
        "delta": {name: DELTAS[name] for name in order},
    }
    plan = DOORS[door](tmp_path, order, tables)
    names = plan.config.nodes.names
    assert names is not None
    assert sorted(names) == sorted(NAMES)
    for name, node in zip(names, plan.nodes, strict=True):
        assert (node.budget, node.delta) == (BUDGETS[name], DELTAS[name])
        assert node.records == len(arrays()[name][0])
        assert node.epsilon == pytest.approx(BUDGETS[name], rel=1e-3)
    # The experiment that is written down says the same when it is read again.
    assert load_config(_saved(plan, tmp_path), saved=True).per_node(tables["epsilon"]) == tuple(
        node.budget for node in plan.nodes
    )


def _saved(plan, folder):
    path = folder / "config.toml"
    path.write_text(to_toml(plan.config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        ([1.0, 2.0, 4.0], ("a list of 3", "privacy.epsilon = {", '"site10" = NUMBER')),
        ({"west": 1.0, "site10": 2.0, "sit2": 4.0}, ("'sit2'", "did you mean 'site2'?")),
        ({"west": 1.0, "site10": 2.0}, ("lacks site2",)),
    ],
)
@pytest.mark.parametrize("door", ["a table in TOML", "nodes= as a mapping", "names for arrays"])
def test_numbers_that_are_nobodys_are_refused(door, epsilon, words, tmp_path):
    with pytest.raises(InputError) as caught:
        DOORS[door](tmp_path, NAMES, {"epsilon": epsilon})
    assert caught.value.where == "privacy.epsilon"
    assert all(word in str(caught.value) for word in words)


def test_of_an_undeclared_column_no_name_is_quoted(tmp_path):
    with pytest.raises(InputError, match=r"\{ NAME = NUMBER, \.\.\. \}") as caught:
        by_column(tmp_path, NAMES, {"epsilon": [1.0, 2.0, 4.0]})  # type: ignore[dict-item]
    assert not any(name in str(caught.value) for name in NAMES)
    other = {"west": 1.0, "site10": 2.0, "elsewhere": 4.0}
    with pytest.raises(RecordsError, match="15 of 90 records") as refused:
        by_column(tmp_path, NAMES, {"epsilon": other})
    assert "site2" not in str(refused.value)


def test_numbers_go_by_name_only_where_there_are_names():
    own = list(arrays().values())
    with pytest.raises(InputError, match=r"nodes\.names"):
        prepare(load_config(sections({"epsilon": BUDGETS}), count=3), nodes=own)
    plan = prepare(load_config(sections({"epsilon": [1.0, 2.0, 4.0]}), count=3), nodes=own).plan
    assert [node.budget for node in plan.nodes] == [1.0, 2.0, 4.0]


class Sites(Peers):
    """What the first of three sites hears, the second of which has two of the four nodes."""

    authenticated = True
    processes = 3

    def __init__(self, names):
        self.names = names

    def share(self, what, value, schema):
        pair = value.model_copy(update={"records": [45, 45]}) if what == "experiment" else value
        return [value, pair, value]

    def seen(self):
        return [PeerState(rank, name, "connected") for rank, name in enumerate(self.names)]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
def test_sites_are_known_by_their_names(order):
    own = [arrays()["west"]] * 4
    placed = {"nodes": {"placement": [0, 1, 1, 2]}}
    config = load_config(sections({"epsilon": BUDGETS}, **placed), count=4)
    plan = prepare(config, nodes=own, peers=Sites(order)).plan
    hosts = [order[rank] for rank in (0, 1, 1, 2)]
    assert plan.config.nodes.names == tuple(hosts)
    assert [node.budget for node in plan.nodes] == [BUDGETS[name] for name in hosts]
    listed = load_config(sections({"epsilon": [1.0, 2.0, 2.0, 4.0]}, **placed), count=4)
    with pytest.raises(InputError, match='"site10" = NUMBER'):
        prepare(listed, nodes=own, peers=Sites(order))


def test_no_site_has_the_place_of_another(tmp_path):
    own = [arrays()["west"]] * 4
    placed = {"names": [NAMES[0], "elsewhere", "elsewhere", NAMES[2]], "placement": [0, 1, 1, 2]}
    config = load_config(sections({}, nodes=placed), count=4)
    for sites in (NAMES, ("a", "b", "c")):  # who is called otherwise by experiment and certificate
        plan = prepare(config, nodes=own, peers=Sites(sites)).plan
        assert plan.config.nodes.names == tuple(placed["names"])
    with pytest.raises(
        InputError, match=r"nodes\.names.*those of the sites, by their ranks: site2"
    ):
        prepare(config, nodes=own, peers=Sites(NAMES[::-1]))


def test_names_stand_in_plan_report_ledger_and_result(tmp_path):
    table(tmp_path, NAMES)
    file = tmp_path / "experiment.toml"
    text = tomli_w.dumps(sections({"epsilon": BUDGETS}, task={"dataset": f"csv:{tmp_path}/t.csv"}))
    file.write_text(text.replace("outputs = 2\n", ""), encoding="utf-8")
    planned = command("plan", file, "--json").json["per_node"]
    assert [(row["name"], row["budget"]) for row in planned] == list(BUDGETS.items())
    assert "0 (west)" in command("plan", file).out
    run = tmp_path / "run"
    assert command("train", file, "--out", run).code == 0
    assert json.loads((run / "result.json").read_text())["node_names"] == list(NAMES)
    assert "1 (site10)" in (run / "report.html").read_text(encoding="utf-8")
    rows_of_ledger = command("privacy", "ledger", run, "--json").json["nodes"]
    assert [row["name"] for row in rows_of_ledger] == list(NAMES)
    assert command("privacy", "statement", run).code == 0
    stated = json.loads((run / "statement.json").read_text())
    assert [(row["name"], row["budget"]) for row in stated["nodes"]] == list(BUDGETS.items())
    assert "2 (site2)" in (run / "statement.html").read_text(encoding="utf-8")
