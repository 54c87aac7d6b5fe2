"""What runs, plans and help pages give: a net under changes that are to change nothing.

`PYTHONPATH=tests python tests/algorithms/golden.py CASE...` adds the results of new rows of the
battery, and the plans of new figures; all that is there stays. Without a case it writes all of
`golden.json` anew. A commit that is meant to change a result says why, and holds the new file.
"""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import typer
from battery_experiments import experiment, schedule_options
from battery_table import ROWS

import tacit
from experiments import tacit as command_line
from tacit.analysis.compare.figure import load_figure
from tacit.analysis.statement import statement_document
from tacit.cli import main as cli
from tacit.cli.tables import plan_document
from tacit.errors import NotPrivateWarning, TacitError
from tacit.report.documents.base import plain_json
from tacit.training.prepare import prepare

FILE = Path(__file__).with_name("golden.json")
FIGURES = Path(__file__).resolve().parents[2] / "papers"
STEPS = 4
SIZES = (7, 5, 6, 8)


def records(seed, size, classes, shape):
    """Inputs that are no ties for any order of sums, and labels."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, *shape, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(classes, (size,), generator=draw)


def summary(model):
    """Norm, weighted sum and first entries: no change of a model leaves all as they are."""
    weights = torch.linspace(0.5, 1.5, model.numel(), dtype=torch.float64)
    flat = model.double().flatten()
    return [flat.norm().item(), (flat @ weights).item(), *flat[:3].tolist()]


def ran(case, folder):
    """A seeded run of one row of the battery in float64, on mini-batches."""
    options = {**schedule_options(case, STEPS), **ROWS[case].resumed}
    network = ROWS[case].network
    settings = experiment(case, model=network, steps=STEPS, batch=2, options=options)
    settings["nodes"] = {**settings.get("nodes", {}), "weights": "equal"}
    nodes = [records(node, size, 10, (1, 8, 8)) for node, size in enumerate(SIZES)]
    test = records(99, 12, 10, (1, 8, 8))
    with warnings.catch_warnings(action="ignore", category=NotPrivateWarning):
        result = tacit.train(settings, nodes=nodes, test=test, out=folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "models": [summary(model) for model in result.parameters],
        "consensus": summary(result.consensus),
        "epsilon": list(result.epsilon),
        "claims": [asdict(claim) for claim in result.claims],
        "bytes_sent": list(result.bytes_sent),
        "test_loss": dict(result.test_loss or {}),
        "train_loss": [row["train_loss"] for row in rows],
        "result.json": sorted(json.loads((folder / "result.json").read_text())),
        "metrics.jsonl": sorted(rows[0]),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def stated(folder):
    """What stands in the statement of a private run, whose noise is secret: names alone."""
    nodes = [records(node, size, 10, (1, 8, 8)) for node, size in enumerate(SIZES)]
    settings = experiment("privsgp", privacy={"epsilon": 3.0, "delta": 1e-5})
    tacit.train(settings, nodes=nodes, out=folder)
    return {"statement": keys(plain_json(statement_document(folder)))}


def keys(document):
    """A document with every value that is no mapping or list of them left out."""
    if isinstance(document, Mapping):
        return {name: keys(value) for name, value in document.items()}
    if isinstance(document, list) and document and isinstance(document[0], Mapping):
        return [keys(document[0])]
    return None


def figures():
    """The figure files of the papers, relative to their folder."""
    return sorted(path.relative_to(FIGURES).as_posix() for path in FIGURES.rglob("*.toml"))


def planned(figure):
    """The plan of the first line of each algorithm of a figure, on generated records."""
    found = {}
    for line in load_figure([FIGURES / figure]).lines:
        config = _smaller(line.settings[0].runs[0])
        name = config.algorithm.name
        if name not in found:
            try:
                document = plain_json(plan_document(prepare(config, **_data(config))))
            except TacitError as error:
                found[name] = str(error)
                continue
            found[name] = document | {"per_node": document["per_node"][:2]}
    return found


def _smaller(config):
    """The same experiment with few nodes, and a model that is built in no time."""
    task = {"model": "mlp"} if config.task.model in ("resnet18", "cnn3") else {}
    if config.task.features is not None and ":" in config.task.features:
        task["features"] = None  # a function that reads a data set of its own
    federated = config.algorithm.definition.graph.weights == "server"
    nodes = {} if federated else {"count": min(config.nodes.count, 8)}
    return config.model_copy(
        update={
            "task": config.task.model_copy(update=task),
            "nodes": config.nodes.model_copy(update=nodes),
        }
    )


def _data(config):
    binary = config.task.loss == "logistic" or config.task.dataset == "adult"
    shape = (12,) if binary else (1, 28, 28)
    size = 2000 if binary else 400
    made = [
        records(seed, size, 2 if binary else 10, shape) for seed in range(config.nodes.count + 1)
    ]
    return {"nodes": made[1:], "test": made[0]}


def helped():
    """What every command says of itself, eighty columns wide."""
    os.environ["COLUMNS"] = "80"
    return {
        " ".join(words): command_line(*words, "--help").out
        for words in _commands(typer.main.get_command(cli.app), ())
    }


def _commands(command, words):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def main(cases):
    """Write the file: anew, or with these cases, in the order of the battery."""
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text(encoding="utf-8")) if cases else {}
    runs, plans = kept.get("runs", {}), kept.get("plans", {})
    with tempfile.TemporaryDirectory() as folder:
        made = {case: ran(case, Path(folder) / case) for case in cases or ROWS}
        statement = kept.get("statement") or stated(Path(folder) / "statement")
    document = {
        "runs": {case: made.get(case) or runs[case] for case in ROWS if case in {**runs, **made}},
        "statement": statement,
        "plans": {figure: plans.get(figure) or planned(figure) for figure in figures()},
        "help": kept.get("help") or helped(),
    }
    FILE.write_text(lines(document), encoding="utf-8")


def lines(document):
    """The document as JSON, with one line for each run, plan or help page."""
    sections = []
    for name, entries in document.items():
        rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
        sections.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
