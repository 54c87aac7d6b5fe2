"""The documentation does what it says: its code runs, and it names every key there is.

README, the tutorials and the how-to pages are followed to the letter by `test_docs_literally.py`;
here their experiments are read. How another page is run: in a folder of its own that holds a copy
of `examples/`, its blocks one after another. A block under `<!-- file: NAME -->` is written to that
file; ```python is executed, in one namespace a page (as doctest where it starts with >>>); ```toml
is read as an experiment, of the digits where it names no data set, and planned where that is cheap;
of ```console and ```sh the `tacit ...` and `python examples/...` lines are run, `train` and
`launch` for 3 steps. A page that names image files is run where `TACIT_DATA_DIR` has them.
Where output is printed below a command, the words of the real output must be the same; numbers
may differ.
"""

import doctest
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import tomli_w
import torch
from sklearn.datasets import load_digits

import tacit
from experiments import experiment, tree, wait_tacit
from experiments import tacit as command_line
from pages import ELSEWHERE, blocks, name_of, plain_words, prose
from pages import FOLLOWED as LITERALLY
from tacit.algorithms import ALGORITHMS
from tacit.analysis.compare.figure import FigureOptions, load_figure
from tacit.analysis.tune.search import load_search
from tacit.config import Config, load_config
from tacit.data import PARTITIONS, SOURCES
from tacit.gradients import LOSSES
from tacit.models import MODELS
from tacit.models.metrics import METRICS
from tacit.privacy.published import constant_mu, total_mu
from tacit.privacy.published.dyn_d2p import dyn_least_noise, dyn_noise, dyn_steps
from tacit.topology.graphs import GRAPHS
from tacit.topology.mixing import WEIGHTS
from tacit.training.prepare import prepare

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAPERS = sorted((DOCS / "papers").glob("*.md"))  # their figures take hours: links are checked alone
PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
] + sorted(set(DOCS.rglob("*.md")) - set(PAPERS))
KEYS = DOCS / "reference" / "experiment-file.md"
REPORT = DOCS / "reference" / "report.md"
RUN_FOLDER = DOCS / "reference" / "run-folder.md"
EXPERIMENTS = sorted([*ROOT.glob("examples/*.toml"), *ROOT.glob("papers/**/*.toml")])
DATA = Path(os.environ.get("TACIT_DATA_DIR", ROOT.parent / "shared" / "data")).resolve()
EXAMPLE = "falling_push"
WIDTH = "110"

_QUOTE = re.compile(
    r"^<!-- from: (?P<file>\S+) -->\n+```text\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_IMAGES = re.compile(r'^dataset = "((?:fashion-)?mnist)"', re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
_NOT_SET = "–"


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are tiny: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory of a page, where its own modules can be imported."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "data").symlink_to(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def example(folder, monkeypatch):
    """The algorithm that CONTRIBUTING.md adds, with its row in the table."""
    (source,) = [
        block.code for block in blocks(ROOT / "CONTRIBUTING.md") if block.file == f"{EXAMPLE}.py"
    ]
    (folder / f"{EXAMPLE}.py").write_text(source, encoding="utf-8")
    row = importlib.import_module(EXAMPLE).FALLING_PUSH
    assert row.name not in ALGORITHMS
    monkeypatch.setitem(cast("dict[str, Any]", ALGORITHMS), row.name, row)
    return row


# Pages run.


def run_page(page, folder, languages):
    """Every block of a page that is in one of these languages, in order."""
    for name in _IMAGES.findall(page.read_text(encoding="utf-8")):
        if not (DATA / name).is_dir():
            pytest.skip(f"no folder {DATA / name}: set TACIT_DATA_DIR to the real files")
    namespace = {"__name__": page.stem}
    runners = {
        "python": partial(run_python, namespace=namespace, page=page),
        "toml": partial(run_toml, planned="console" in languages),
        "console": run_console,
        "sh": run_console,
    }
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
        if block.language in languages and not (block.file and block.language == "python"):
            runners[block.language](block)


def run_python(block, *, namespace, page):
    if not block.code.startswith(">>>"):
        source = "\n" * (block.line - 1) + block.code  # errors then name the line of the page
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        return
    test = doctest.DocTestParser().get_doctest(
        block.code, namespace, page.name, str(page), block.line - 1
    )
    said = []
    failed, tried = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    assert tried
    assert not failed, "".join(said)
    namespace.update(test.globs)  # a doctest runs in a copy


def run_toml(block, *, planned):
    raw = {"task": {"dataset": "digits"}, **tomllib.loads(block.code)}
    if "tune" in raw:
        file = Path("shown-search.toml")
        file.write_text(tomli_w.dumps(raw), encoding="utf-8")
        assert load_search(file).choices
        return
    config = load_config(raw)
    if (
        planned
        and config.train.batch == "all"
        and config.task.dataset not in ("mnist", "fashion-mnist")
    ):
        prepare(config)


def run_console(block):
    for command, printed in commands(block.code):
        words = shlex.split(command)
        if words[0] == "python":
            with patch.object(sys, "argv", words[1:]):
                runpy.run_path(words[1], run_name="__main__")
            continue
        if words[1] in ("train", "launch"):
            words += ["--set", "train.steps=3"]
        # What the processes of a launch print goes past `sys.stdout`.
        start = wait_tacit if words[1] == "launch" else command_line
        answer = start(*words[1:])
        assert answer.code == 0, f"{command}: {answer.err}"
        if printed:
            assert plain_words(answer.out) == plain_words(printed), command


def commands(code):
    """The tacit commands of a block, each with the output that is printed below it."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").split(" # ")[0].strip()
        if command.startswith(("tacit ", "python examples/")):
            found.append((command, ""))
        elif found and not line.startswith("$ "):
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return [(command, printed.strip()) for command, printed in found]


@pytest.mark.parametrize("page", sorted({*PAGES} - {*LITERALLY, *ELSEWHERE}), ids=name_of)
def test_a_page_runs(page, folder, example):
    run_page(page, folder, ("python", "toml", "console", "sh"))


@pytest.mark.parametrize("page", LITERALLY, ids=name_of)
def test_experiments_of_a_page_are_read(page, folder):
    shutil.copy(folder / "examples" / "own_algorithm.py", folder)
    run_page(page, folder, ("toml",))


def test_each_kind_of_block_is_found():
    """A block that no rule recognises would silently not be run."""
    found = [block for page in PAGES for block in blocks(page)]
    assert {"python", "toml", "console", "sh"} <= {block.language for block in found}
    for page in PAGES:
        fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), page.name


# The example of CONTRIBUTING.md keeps the table's contract.


def trained(name, **changes):
    images, labels = load_digits(return_X_y=True)
    nodes = [(images[part] / 16, labels[part]) for part in (slice(0, 40), slice(40, 75))]
    sections = {
        "task": {"model": "logistic", "outputs": 10},
        "algorithm": {"name": name, "learning_rate": 0.5, **changes.pop("algorithm", {})},
        "privacy": {"epsilon": 2.0, "delta": 1e-3, "noise_seed": 3},
        "train": {"steps": 4, "batch": "all", "dtype": "float64"},
    }
    return tacit.train({**sections, **changes}, nodes=nodes)


def test_the_example_algorithm_keeps_the_contract(example):
    result = trained(example.name)
    assert result.parameters.shape == (2, 650)
    assert bool(torch.isfinite(result.parameters).all())
    assert torch.equal(result.parameters, trained(example.name).parameters)
    assert max(value for value in result.epsilon if value is not None) <= 2.0
    # At 0 its option changes nothing; elsewhere it does.
    same = trained(example.name, algorithm={"step_decay": 0.0}).parameters
    assert torch.equal(same, trained("privsgp").parameters)
    assert not torch.allclose(same, result.parameters)
    with pytest.raises(tacit.InputError, match=r"algorithm\.step_decay"):
        trained(example.name, algorithm={"step_decay": 2.0})


def test_the_example_algorithm_is_written_as_the_house_is(example):
    source = Path(f"{EXAMPLE}.py").read_text(encoding="utf-8")
    there = f"src/tacit/algorithms/{EXAMPLE}.py"
    for task in (["check"], ["format", "--check"]):
        linted = subprocess.run(
            [sys.executable, "-m", "ruff", *task, "--stdin-filename", there, "-"],
            input=source,
            text=True,
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert linted.returncode == 0, linted.stdout


def test_the_shown_diff_is_that_of_the_repository():
    """Three files: of each, the lines that it adds stand there one after another."""
    shown = [b.code for b in blocks(ROOT / "CONTRIBUTING.md") if b.language == "diff"]
    files = [re.findall(r"^\+\+\+ b/(\S+)$", code, re.MULTILINE) for code in shown]
    assert [len(named) for named in files] == [1, 1, 1]
    for (file,), code in zip(files, shown, strict=True):
        there = (ROOT / file).read_text(encoding="utf-8")
        body = code.partition(f"+++ b/{file}\n")[2]
        added = re.findall(r"(?:^\+.*\n)+", body, re.MULTILINE)
        assert added
        for run in added:
            assert re.sub(r"^\+", "", run, flags=re.MULTILINE) in there, run
        for line in re.findall(r"^ (.*)$", body, re.MULTILINE):
            assert f"{line}\n" in there


def test_what_is_quoted_from_a_file_stands_in_it():
    quotes = [match for page in PAGES for match in _QUOTE.finditer(page.read_text("utf-8"))]
    assert quotes
    wrong = [
        match["code"]
        for match in quotes
        if match["code"] not in (ROOT / match["file"]).read_text(encoding="utf-8")
    ]
    assert wrong == []


# Every key, option and file is documented.


def rows(text):
    """The cells of every table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def section(page, heading):
    """What stands under a heading of a page, up to the next heading."""
    found = re.search(
        rf"^{re.escape(heading)}$(.*?)(?=^#|\Z)", prose(page), re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"{page.name} has no {heading!r}"
    return found[1]


def table(page, heading):
    """The rows under a heading whose first cell is `code`, by that."""
    return {row[0].strip("`"): row for row in rows(section(page, heading)) if row[0][0] == "`"}


def value(cell):
    """The TOML value of a cell; None where it says that nothing is set."""
    return None if cell == _NOT_SET else tomllib.loads(f"cell = {cell.strip('`')}")["cell"]


def defaults(cell, names):
    """The default of each algorithm, of a cell such as `1`; `some`, `other`: `2`."""
    common, *others = cell.split("; ")
    found = dict.fromkeys(names, value(common))
    for other in others:
        some, _, own = other.partition(": ")
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", some), value(own))
    return found


DEFAULTS = load_config({"task": {"dataset": "digits"}})


@pytest.mark.parametrize("name", [name for name in Config.model_fields if name != "algorithm"])
def test_every_key_is_documented_with_its_default(name):
    documented = table(KEYS, f"## `[{name}]`")
    defaults = getattr(DEFAULTS, name).model_dump(mode="json")
    if name == "task":
        assert documented.pop("dataset")[2] == "required"
        del defaults["dataset"]
    assert {key: value(row[2]) for key, row in documented.items()} == defaults


def test_every_algorithm_and_option_is_documented():
    known = {key for row in ALGORITHMS.values() for key in row.options.model_fields}
    documented = table(KEYS, "### Options")
    assert set(documented) == known | {"name"}
    assert value(documented.pop("name")[2]) == DEFAULTS.algorithm.name
    for key, row in documented.items():
        takers = {
            name: algorithm.options.model_fields[key].default
            for name, algorithm in ALGORITHMS.items()
            if key in algorithm.options.model_fields
        }
        names = set(ALGORITHMS) if row[3] == "all" else set(re.findall(r"`([^`]+)`", row[3]))
        assert names == set(takers), key
        assert defaults(row[2], names) == takers, key
    listed = table(KEYS, "### Names")
    assert {name: value(row[2]) for name, row in listed.items()} == {
        name: row.default_clip if row.private else None for name, row in ALGORITHMS.items()
    }


@pytest.mark.parametrize(
    ("where", "known"),
    [
        ("### Data sets", SOURCES),
        ("### Models", MODELS),
        ("### Losses", LOSSES),
        ("### Metrics", METRICS),
        ("### Partitions", PARTITIONS),
        ("### Graphs", GRAPHS),
        ("### Weights", WEIGHTS),
    ],
)
def test_every_name_is_documented(where, known):
    names = {name for row in table(KEYS, where).values() for name in row[0].split("`") if name}
    assert set(known) <= names
    assert names - set(known) <= {", ", "module:function", "module:factory", "file:PATH"}


def test_the_page_of_the_algorithms_lists_them_as_the_table_has_them():
    listed = table(DOCS / "concepts" / "which-algorithm.md", "## The table")
    assert {name: row[1:4] for name, row in listed.items()} == {
        name: [
            row.paper,
            "yes" if row.private else "no",
            _NOT_SET if row.claims.formula is None else row.claims.formula.source,
        ]
        for name, row in ALGORITHMS.items()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("documented") / "run"
    tacit.train(experiment(train={"checkpoint_every": 6}), out=out)
    return out


def test_pages_count_the_algorithms_right():
    counts = {
        (file, int(count))
        for file in ("README.md", "docs/concepts/index.md", "docs/concepts/which-algorithm.md")
        for count in re.findall(r"(\d+) (?:\w+ and \w+ )?algorithms", (ROOT / file).read_text())
    }
    assert {count for _, count in counts} == {len(ALGORITHMS)}
    assert len(counts) == 3
    private = sum(algorithm.private for algorithm in ALGORITHMS.values())
    assert f"{private} of them private" in (ROOT / "README.md").read_text()


def test_every_file_of_a_run_is_documented(run):
    listed = set(table(RUN_FOLDER, "## The run folder"))
    found = {re.sub(r"-\d{8}\.", "-STEP.", name) for name in tree(run)}
    assert listed == found


def test_everything_in_a_result_is_documented(run):
    content = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert set(table(REPORT, "## result.json")) == set(content)
    line = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert set(table(REPORT, "## metrics.jsonl")) == set(line)


def test_every_part_of_the_report_is_documented(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    charts = re.findall(r"<figure id=\"[^\"]+\"><h3>([^<]+)</h3>", page)
    parts = re.findall(r"<section><h2>([^<]+)</h2>", page)
    tiles = re.findall(r"<p class=\"label\">([^<,]+)", page)
    assert len(charts) == 10
    assert len(tiles) == 6
    varying = "Noise level"  # it is drawn only where it is no flat line
    text = prose(REPORT)
    missing = [title for title in [*charts, varying, *parts, *tiles] if title not in text]
    assert missing == []


def test_the_exit_codes_are_documented():
    listed = {int(row[0]) for row in rows(section(RUN_FOLDER, "## Exit codes")) if row[0].isdigit()}
    raised = {error.exit_code for error in tacit.TacitError.__subclasses__()}
    assert listed == raised | {0, 1, 130}


# Links, commands and files.


def anchors(page):
    """The anchors of a page's headings."""
    texts = (match["text"].lower() for match in _HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-") for text in texts}


LINKED = [*PAGES, ROOT / "papers" / "README.md", *PAPERS]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for match in _LINK.finditer(prose(page)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("https://", "http://")):
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), match[0]
        assert not anchor or anchor in anchors(file), match[0]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_symbols_with_a_star_are_not_read_as_italics(page):
    """Of two in a paragraph, both stars would vanish."""
    text = re.sub(r"`[^`]*`|^ {4}.*$", "", prose(page), flags=re.MULTILINE)
    stars = [match[0] for match in re.finditer(r"(?<![\w*\\])[A-Z]\*(?=[_ ,.;:)('|]|$).*", text)]
    assert stars == []


def test_pages_that_the_code_names_exist():
    named = {
        page
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []


def test_every_proof_is_linked():
    text = (DOCS / "concepts" / "epsilon.md").read_text(encoding="utf-8")
    proofs = {path.name for path in (DOCS / "proofs").glob("*.md")}
    assert {name for name in proofs if f"(../proofs/{name})" in text} == proofs - {"index.md"}


def test_pages_link_to_each_other_and_to_the_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (
        "docs/how-to/deploy.md",
        "docs/reference/experiment-file.md",
        "docs/reference/report.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ):
        assert f"({name}" in text
    picture = DOCS / "images" / "report.png"
    assert "(docs/images/report.png)" in text
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size < 400_000


def test_make_commands_exist():
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    used = {
        target
        for page in PAGES
        for target in re.findall(
            r"(?:^\$? ?|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert {"demo", "test"} <= used <= targets


FIGURES = [file for file in EXPERIMENTS if "[figure]" in file.read_text(encoding="utf-8")]
SINGLE = [file for file in EXPERIMENTS if file not in FIGURES]


@pytest.mark.parametrize("file", SINGLE, ids=name_of)
def test_an_experiment_of_the_repository_is_valid(file):
    config = load_config(file)
    assert config.privacy.epsilon != "none"
    assert config.privacy.accounting == "certified"


def test_the_noise_of_dyn_d2p_is_what_its_page_says():
    script = runpy.run_path(str(ROOT / "papers" / "dyn-d2p" / "first_noise.py"))
    page = (DOCS / "papers" / "dyn-d2p.md").read_text()
    table = page[page.index("| 1/rho_mu | 1 |") :].splitlines()[:4]
    shares, _, first, last = [[cell.strip() for cell in row.split("|")[2:-1]] for row in table]
    assert len(shares) == 8
    for share, *printed in zip(shares, first, last, strict=True):
        noise = script["noise_over_bound"](float(share))
        assert [f"{noise[k]:#.3g}" for k in (0, -1)] == printed


def test_equation_8_and_theorem_1_of_dyn_d2p_are_what_its_page_says():
    page = (DOCS / "papers" / "dyn-d2p.md").read_text()
    for row in page[page.index("| K | mu-bar at 0.3 |") :].splitlines()[2:6]:
        steps, *printed = (cell.strip() for cell in row.split("|")[1:-1])
        mus = [
            constant_mu(records=3000, steps=int(steps.replace(",", "")), epsilon=e, delta=1e-4)
            for e in (0.3, 0.7, 1.0, 3.0)
        ]
        assert [*(f"{mu:#.3g}" for mu in mus), f"{mus[-1] / mus[0]:.2f}"] == printed
    clips = [4 * 0.1 ** (k / 1000) for k in range(1000)]
    noise = [c * 0.7 ** (k / 1000) for k, c in enumerate(clips)]
    t1, least = dyn_noise(clips, noise), dyn_noise(clips, dyn_least_noise(clips))
    assert f"T1 is {t1:.3g}, at its least for these bounds {least:.3g}." in page
    steps = dyn_steps(nodes=20, records=3000, mu_total=total_mu(1.0, 1e-4))
    assert f"K = n J^2 mu_tot^2, {steps / 1e7:.3g}e7 at epsilon 1" in page
    assert f"calls {steps / 1e7:.3g}e7 steps" in (DOCS / "how-to" / "planning.md").read_text()


WITHOUT_EPSILON = {
    "augmented-lagrangian.toml",
    "gamma.toml",
}  # they show what a paper's setting does, with noise and without


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("file", FIGURES, ids=name_of)
def test_a_figure_of_the_papers_is_valid(file, quick):
    figure = load_figure([file], FigureOptions(quick=quick))
    runs = [run for line in figure.lines for setting in line.settings for run in setting.runs]
    accounted = any(run.privacy.noisy and run.privacy.accounting != "none" for run in runs)
    assert accounted or file.name in WITHOUT_EPSILON
    assert figure.title
    assert figure.source
    if quick:
        assert max(run.train.steps for run in runs) <= 100
