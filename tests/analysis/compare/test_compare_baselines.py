"""Each site alone and all pooled, beside an experiment: what one would write by hand."""

import statistics
import tomllib
from io import StringIO
from pathlib import Path

import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import tacit
from experiments import experiment, write_module
from experiments import tacit as command_line
from tacit import privacy
from tacit.analysis.compare.document import figure_document
from tacit.analysis.compare.figure import FigureOptions, load_figure
from tacit.analysis.compare.session import gather, open_folder
from tacit.analysis.recommend import recommend
from tacit.analysis.settings.processes import Monitor
from tacit.analysis.settings.spent import spent_together
from tacit.config import load_config, to_toml
from tacit.data import load
from tacit.errors import InputError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import dominating, run_mechanism
from tacit.report.compare_page import compare_page, figure_blocks
from tacit.report.compare_panels import panels
from tacit.report.documents.base import as_dict
from tacit.report.pictures import svg_picture
from tacit.report.terminal import terminal
from tacit.training.records import load_records

SITES = {"north": 14, "south": 41, "west": 90}
ALL = ["alone", "alone-plain", "pooled-plain"]
MODULE = f"""
    import numpy as np

    sizes = {SITES!r}

    def records(count, seed):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 5, generator=draw)
        y = (x @ torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0]) > 0.3).long()
        return Dataset(x, y)

    def load():
        owners = np.random.default_rng(0).permutation(np.repeat(list(sizes), list(sizes.values())))
        return TaskData(
            "sites", records(len(owners), 1), records(60, 2), 2,
            columns={{"site": owners}}, values={{"site": tuple(sizes)}},
        )

    def untested():
        data = load()
        return TaskData("sites", data.train, None, 2, columns=data.columns, values=data.values)

    def undeclared():
        data = load()
        return TaskData("sites", data.train, data.test, 2, columns=data.columns)
"""  # fmt: skip


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return write_module(tmp_path, MODULE)


def of_sites(module, **changes):
    """An experiment of the three sites, by a method that has no rule for its rate."""
    own = {
        "task": {"dataset": f"{module}:load", "metric": ["auc", "accuracy"]},
        "nodes": {"count": 3, "partition": "by:site"},
        "algorithm": {"name": "const-d2p", "learning_rate": 0.4, "clip": 0.7},
        "privacy": {"noise_std": None, "epsilon": 2.0, "delta": 1e-3},
    }
    return experiment(
        **{key: {**own.get(key, {}), **changes.get(key, {})} for key in own | changes}
    )


def write(experiment, names=ALL, **section):
    file = Path("sites.toml")
    content = {**experiment, "compare": {"baselines": names, **section}}
    file.write_text(tomli_w.dumps(content), encoding="utf-8")
    return file


def compared(file, out="out", **monitor):
    folder = open_folder(Path(out))
    gathered = gather(load_figure([file]), folder, monitor=Monitor(**monitor))
    return gathered, as_dict(figure_document(gathered))


def models(path):
    return torch.cat([part.flatten() for part in tacit.load_model(path).state_dict().values()])


def by_hand(experiment, rows, data):
    """What an experiment of one node comes to, which is given its records as they are."""
    own = {name: dict(keys) for name, keys in experiment.items() if name != "topology"}
    del own["task"]["dataset"]
    own["nodes"] = {"count": 1}
    result = tacit.train(
        own,
        nodes=[(data.train.inputs[rows], data.train.targets[rows])],
        test=(data.test.inputs, data.test.targets),
    )
    return torch.cat([part.flatten() for part in result.model("consensus").state_dict().values()])


HARD = {
    "gossip": {},
    "shared noise, a ring, a budget each": {
        "topology": {"graph": "ring"},
        "privacy": {
            "noise": "pairwise",
            "epsilon": {"north": 1.0, "south": 2.0, "west": 4.0},
            "delta": {"north": 1e-4, "south": 1e-3, "west": 1e-2},
        },
    },
    "a server, some clients a round, sums alone": {
        "algorithm": {"name": "dp-fedavg", "clients_per_round": 2},
        "privacy": {"aggregation": "secure-sum"},
    },
    "batches larger than the smallest site": {"train": {"batch": 30}},
    "faults": {"faults": {"down": [[2, 1, 3]]}},
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if HARD[kind] else ()) for kind in HARD]
)
def test_a_baseline_is_the_experiment_that_one_would_write_by_hand(kind, module):
    base = of_sites(module, **HARD[kind])
    data = load(f"{module}:load", data_dir=Path())
    gathered, _ = compared(write(base))
    lines = {line.name: line for line in gathered.figure.lines}
    paths = dict(zip(lines, gathered.runs, strict=True))
    assert list(lines) == [
        "together", *(f"alone: {site}" for site in SITES),
        *(f"alone-plain: {site}" for site in SITES), "pooled-plain",
    ]  # fmt: skip
    algorithm = {k: v for k, v in base["algorithm"].items() if k != "clients_per_round"}
    rates = [
        setting.choice["algorithm.learning_rate"] for setting in lines["pooled-plain"].settings
    ]
    assert rates == sorted(rates)
    assert len(rates) == 3
    for site, size in SITES.items():
        rows = torch.from_numpy(data.columns["site"] == site)
        assert int(rows.sum()) == size
        wanted = {
            key: value[site] if isinstance(value, dict) else value
            for key, value in base["privacy"].items()
            if key not in ("noise", "aggregation")
        }
        batch = base["train"]["batch"]
        train = {**base["train"], "batch": batch if batch == "all" else min(batch, size)}
        alone = {**base, "algorithm": algorithm, "privacy": wanted, "train": train}
        alone.pop("faults", None)
        ((run,),) = paths[f"alone: {site}"]
        assert run.error is None
        assert models(run.path).equal(by_hand(alone, rows, data)), site
        plain = {"task": base["task"], "train": train}
        for rate, (run,) in zip(rates, paths[f"alone-plain: {site}"], strict=True):
            sgp = {"name": "sgp", "momentum": 0.9, "learning_rate": rate}
            found = by_hand({**plain, "algorithm": sgp}, rows, data)
            assert models(run.path).equal(found), (site, rate)
    everyone = torch.ones(len(data.train), dtype=torch.bool)
    for rate, (run,) in zip(rates, paths["pooled-plain"], strict=True):
        sgp = {"name": "sgp", "momentum": 0.9, "learning_rate": rate}
        whole = {"task": base["task"], "train": base["train"], "algorithm": sgp}
        assert models(run.path).equal(by_hand(whole, everyone, data)), rate


def test_alone_has_the_rate_that_is_recommended_for_it_alone(module):
    base = of_sites(module, algorithm={"name": "privsgp"}, privacy={"noise_seed": None})
    figure = load_figure([write(base, ["alone"])])
    found = []
    for site, line in zip(SITES, figure.lines[1:], strict=True):
        (run,) = line.settings[0].runs
        one = {**base, "nodes": {"count": 1, "partition": "by:site", "part": list(run.nodes.part)}}
        one["algorithm"] = {"name": "privsgp", "clip": base["algorithm"]["clip"], "momentum": 0.0}
        assert run.algorithm.options.learning_rate == pytest.approx(
            recommend(one).config.algorithm.options.learning_rate
        ), site
        found.append(run.algorithm.options.learning_rate)
    assert found == sorted(set(found))  # less noise, longer steps
    (note,) = [note for note in figure.notes if note.startswith("alone:")]
    assert "privsgp at one node" in note
    assert "--recommend" in note


def test_what_is_open_is_completed_once_for_all_lines(module):
    base = of_sites(module, algorithm={"name": None}, privacy={"noise_seed": None})
    own = {name: base[name] for name in ("task", "nodes", "privacy")}
    whole = tomllib.loads(to_toml(recommend(own).config))
    found, wanted = (load_figure([write(kind)]).lines for kind in (own, whole))
    assert [line.name for line in found] == [line.name for line in wanted]
    for one, other in zip(found, wanted, strict=True):
        for left, right in zip(one.settings, other.settings, strict=True):
            assert [*map(to_toml, left.runs)] == [*map(to_toml, right.runs)]


@settings(max_examples=20)
@given(
    kind=st.sampled_from(
        [{"partition": "iid"}, {"partition": "dirichlet", "alpha": 0.4},
         {"partition": "shards", "per_node": 2}, {"partition": "equal", "per_node": 60}]
    ),
    nodes=st.integers(1, 5),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_a_part_is_what_that_node_has_among_all(kind, nodes, seed):
    def inputs(**own):
        config = load_config(experiment(nodes={**kind, **own}, train={"seed": seed}))
        hosted = range(config.nodes.count)
        return load_records(config, None, None, None, torch.float32, torch.device("cpu"), hosted)

    everyone = inputs(count=nodes).train
    for part in range(nodes):
        alone = inputs(count=1, part=[part, nodes]).train
        first = int(everyone.offsets[part])
        assert alone.sizes.tolist() == [int(everyone.sizes[part])]
        rows = slice(first, first + int(everyone.sizes[part]))
        assert alone.stored.equal(everyone.stored[rows])
        assert alone.targets.equal(everyone.targets[rows])


def test_parts_of_a_column_that_only_the_file_names(module):
    """Whose part it is: of a column that declares its values, and of one that does not."""
    names = list(reversed(SITES))
    base = of_sites(module, task={"dataset": f"{module}:undeclared"}, nodes={"names": names})
    _, document = compared(write(base, ["alone"]))
    (auc, _) = document["sites"]
    assert [(row["name"], row["records"]) for row in auc["rows"]] == [
        (name, SITES[name]) for name in names
    ]
    assert [line["name"] for line in document["lines"][1:]] == [f"alone: {name}" for name in names]


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A private comparison over two seeds, with a budget for each site."""
    epsilon = {"north": 1.0, "south": 2.0, "west": 4.0}
    folder = tmp_path_factory.mktemp("private")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        name = write_module(folder, MODULE)
        base = of_sites(name, privacy={"noise_seed": None, "epsilon": epsilon})
        yield compared(write(base, seeds=2), str(folder / "out"))


@pytest.mark.slow
def test_tables_are_those_of_the_runs(private):
    gathered, document = private
    lines = dict(zip([line.name for line in gathered.figure.lines], gathered.runs, strict=True))
    chosen = {line["name"]: line["chosen"] for line in document["lines"]}

    def ends(name):
        return [run.result for run in lines[name][chosen[name]]]

    assert [table["metric"] for table in document["sites"]] == ["auc", "accuracy"]
    for table in document["sites"]:
        assert table["columns"] == ["together", *ALL]
        assert table["private"] == [True, True, False, False]
        columns = []
        for place, (site, size) in enumerate(SITES.items()):
            row = table["rows"][place]
            assert (row["name"], row["records"]) == (site, size)
            metric = table["metric"]
            columns.append([
                [end.test_metrics_by_node[metric][place] for end in ends("together")],
                *([end.test_metrics_by_node[metric][0] for end in ends(name)] for name in
                  (f"alone: {site}", f"alone-plain: {site}", "pooled-plain")),
            ])  # fmt: skip
            for score, values in zip(row["scores"], columns[-1], strict=True):
                assert score["mean"] == pytest.approx(statistics.mean(values))
                assert score["deviation"] == pytest.approx(statistics.stdev(values))
            together = max(end.epsilon[place] for end in ends("together"))
            alone = max(end.epsilon[0] for end in ends(f"alone: {site}"))
            assert row["epsilon"] == [together, alone, None, None]
            assert alone <= [1.0, 2.0, 4.0][place]
            assert alone > 0.9 * [1.0, 2.0, 4.0][place]
        for mean, kinds in zip(table["mean"], zip(*columns, strict=True), strict=True):
            of_seeds = [statistics.mean(seed) for seed in zip(*kinds, strict=True)]
            assert mean["mean"] == pytest.approx(statistics.mean(of_seeds))
            assert mean["deviation"] == pytest.approx(statistics.stdev(of_seeds))


@pytest.mark.slow
def test_what_is_not_private_says_so_wherever_it_is_shown(private):
    _, document = private
    out = StringIO()
    terminal(figure_blocks(document), Console(file=out, width=80))
    (by_site, _) = panels(document, "records")
    shown = {
        "terminal": out.getvalue().replace("\n", " "),
        "page": compare_page(document),
        "picture": svg_picture("sites", panels(document, "records")),
    }
    for where, text in shown.items():
        for name in ("alone-plain", "pooled-plain"):
            assert name in text, where
        assert text.count("not private") >= 2, where
    assert [curve.name for curve in by_site.curves] == [
        "together", "alone", "alone-plain, not private", "pooled-plain, not private",
    ]  # fmt: skip
    assert [curve.budget for curve in by_site.curves] == ["epsilon 4.00"] * 2 + [""] * 2
    assert by_site.curves[0].x == (14.0, 41.0, 90.0)
    assert (by_site.axis, by_site.log_x, by_site.y_title) == ("records", True, "test AUC, by site")
    rows = [{**row, "records": 50} for row in document["sites"][0]["rows"]]
    (equal,) = panels({**document, "sites": [{**document["sites"][0], "rows": rows}]}, "records")
    assert (equal.axis, equal.log_x, equal.curves[0].x) == ("sites", False, (1.0, 2.0, 3.0))


@pytest.mark.slow
def test_runs_on_parts_of_one_division_cost_what_one_run_costs(module):
    base = of_sites(module, privacy={"noise_seed": None})
    gathered, document = compared(write(base, ["alone"]))

    def released(path):
        (run,) = read_ledger(path / "ledger.sqlite").runs
        return [found for node in run.statements if (found := run_mechanism(run, node))]

    joint, *alone = [released(run.path) for run in gathered.members]
    apart = [mechanism for own in alone for mechanism in own]
    both = [dominating(joint), dominating(apart)]
    (row,) = document["together"]
    assert row["runs"] == 4
    assert row["epsilon"] == pytest.approx(privacy.epsilon(privacy.Composed(both), delta=1e-3))
    # Another run of one of the parts is on records that have paid for the first.
    more = write(of_sites(module, privacy={"noise_seed": None, "epsilon": 1.0}), ["alone"])
    again, _ = compared(more)
    folders = [run.path for run in (*gathered.members, again.members[1])]
    (row,) = spent_together(folders)
    both.append(released(again.members[1].path)[0])
    assert row.epsilon == pytest.approx(privacy.epsilon(privacy.Composed(both), delta=1e-3))


@pytest.mark.slow
def test_what_was_stopped_goes_on(module):
    file = write(of_sites(module), ["alone"])
    _, none = compared(file, should_stop=lambda: True)
    assert (none["sites"], none["x"]) == ([], ["steps"])
    compare_page(none)
    _, whole = compared(file, "whole")
    ended = []
    gathered, part = compared(
        file,
        done=lambda request, outcome: ended.append(request.name),
        should_stop=lambda: len(ended) >= 3,
    )
    assert gathered.stopped
    assert gathered.made == 3
    assert part["sites"][0]["rows"][2]["scores"][1:] == [None]
    assert part["sites"][0]["mean"][1:] == [None]
    compare_page(part)
    gathered, rest = compared(file)
    assert (gathered.cached, gathered.made) == (3, 1)
    assert rest["sites"] == whole["sites"]


def refusal(**changes):
    with pytest.raises(InputError) as caught:
        load_figure([write(**changes)])
    return caught.value


def test_what_cannot_be_compared_is_refused_by_name(module):
    base = of_sites(module)
    error = refusal(experiment=base, names=["alone", "alone-plian"])
    assert error.where == "compare.baselines"
    assert error.expected == "must be 'alone', 'alone-plain' or 'pooled-plain'"
    assert refusal(experiment=base, names=[]).where == "compare.baselines"
    assert refusal(experiment=base, liine=[]).where == "compare.liine"
    assert refusal(experiment=base, line=[{"name": "one"}]).where == "[compare]"
    assert refusal(experiment={**base, "figure": {}}).where == "[compare]"
    own = {**base, "nodes": {"count": 3, "data": "by-rank", "source": "site-{node}.npz"}}
    error = refusal(experiment=own)
    assert (error.where, error.value) == ("nodes.data", "by-rank")
    assert "only who holds them all" in error.expected
    one = of_sites(module, nodes={"count": 1, "part": [1, 3]})
    assert refusal(experiment=one).where == "nodes.count"
    ledger = of_sites(module, privacy={"noise_seed": None, "ledger": "ledgers"})
    assert refusal(experiment=ledger).where == "privacy.ledger"
    untested = of_sites(module, task={"dataset": f"{module}:untested", "metric": None})
    assert refusal(experiment=untested).where == "task.test"
    Path("plain.toml").write_text(tomli_w.dumps(base), encoding="utf-8")
    with pytest.raises(InputError, match=r"has a \[compare\] of its own"):
        load_figure([write(base), Path("plain.toml")])


@pytest.mark.parametrize("command", [["train"], ["plan"], ["plan", "--recommend"]])
def test_only_a_comparison_runs_such_a_file(command: list[str], module: str) -> None:
    answer = command_line(command[0], write(of_sites(module)), *command[1:])
    assert answer.code == 2
    assert "[compare]" in answer.refusal
    assert "`tacit compare`" in answer.refusal


def test_one_of_several_processes_compares_nothing(module, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = command_line("compare", write(of_sites(module)))
    assert answer.code == 2
    assert "WORLD_SIZE" in answer.refusal


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        ({"count": 2, "part": [0, 2]}, False),
        ({"count": 1, "part": [2, 2]}, False),
        ({"count": 1, "part": [0, []]}, False),
        ({"count": 1, "part": [0]}, False),
        ({"count": 1, "part": [0, 2]}, True),
        ({"count": 1, "part": [0, 2], "data": "by-rank", "source": "a-{node}.npz"}, False),
    ],
)
def test_a_part_that_is_none_is_refused(nodes, given):
    own = experiment(nodes=nodes)
    records = [(torch.randn(9, 3), torch.arange(9) % 2)]
    if given:
        own["task"] = {"model": "logistic", "outputs": 2}
    with pytest.raises(InputError) as caught:
        tacit.train(own, nodes=records if given else None)
    assert caught.value.where == "nodes.part"


@pytest.mark.slow
def test_the_command_writes_table_picture_and_page(module):
    file = write(of_sites(module), ["pooled-plain"])
    said = command_line("compare", file, "--out", "made", "--json").json
    (auc, accuracy) = said["sites"]
    assert (auc["metric"], accuracy["metric"]) == ("auc", "accuracy")
    assert auc["columns"] == ["together", "pooled-plain"]
    assert {path.name for path in Path("made").glob("*.*")} == {
        "format.json", "compare.json", "compare.html", "figure-records.svg", "figure-steps.svg",
    }  # fmt: skip
    assert "What each site gains: AUC" in Path("made/compare.html").read_text(encoding="utf-8")
    again = command_line("compare", file, "--out", "made")
    assert "4 of 4 runs cached" in again.err
    assert "north" in again.out


def test_quick_and_set_change_the_baselines_too(module):
    with pytest.raises(InputError) as caught:
        load_figure([write(of_sites(module), quick={"seeds": "two"})], FigureOptions(quick=True))
    assert caught.value.where == "compare.quick.seeds"
    file = write(of_sites(module), quick={"train.steps": 2, "seeds": 2})
    quick = load_figure([file], FigureOptions(("privacy.epsilon=0.5",), quick=True))
    for line in quick.lines:
        run, other = line.settings[0].runs
        assert (run.train.seed, other.train.seed) == (0, 1)
        assert run.train.steps == 2
        assert run.privacy.epsilon == (None if "plain" in line.group else 0.5)
