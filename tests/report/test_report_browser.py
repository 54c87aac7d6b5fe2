"""Every kind of page, made from small real runs, as a browser shows and prints it."""

import pytest
import tomli_w
from playwright.sync_api import expect

import tacit
from browser import Findings, look_at, running_browser
from tacit.analysis import optimise
from tacit.analysis.claims import claims_document
from tacit.analysis.compare.document import figure_document
from tacit.analysis.compare.figure import FigureOptions, load_figure
from tacit.analysis.compare.session import gather, open_folder
from tacit.analysis.statement import write_statement
from tacit.config import load_config
from tacit.errors import NotPrivateWarning
from tacit.report.claims_page import claims_blocks
from tacit.report.compare_page import compare_page
from tacit.report.documents.base import plain_json
from tacit.report.html import html
from tacit.report.optimise_page import optimise_blocks

# The browser is a process, and so is each run of a comparison.
pytestmark = [pytest.mark.slow, pytest.mark.process]

EXPERIMENT = {
    "task": {"dataset": "digits", "model": "logistic"},
    "nodes": {"count": 4},
    "topology": {"graph": "exponential"},
    "algorithm": {"name": "privsgp", "learning_rate": 1.0, "clip": 0.5},
    "privacy": {"epsilon": [0.5, 1.0, 2.0, 3.0], "delta": 1e-4},
    "train": {"steps": 6, "batch": "all", "evaluate_every": 2},
}


def experiment(**changes):
    return {**EXPERIMENT, **changes}


def write_toml(path, content):
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    with running_browser() as started:
        yield started


def a_run(folder):
    tacit.train(experiment(), out=folder / "run")
    return folder / "run" / "report.html"


def a_run_that_is_not_private(folder):
    """Of 21 nodes: its table is folded away."""
    content = experiment(
        nodes={"count": 21}, algorithm={"name": "sgp"}, privacy={"epsilon": "none"}
    )
    with pytest.warns(NotPrivateWarning):
        tacit.train(content, out=folder / "run")
    return folder / "run" / "report.html"


def a_run_over_its_budget(folder):
    """The formula of the paper gives less noise than the budgets need."""
    content = experiment(
        algorithm={"name": "const-d2p", "clip": 0.5},
        privacy={"epsilon": 3.0, "delta": 1e-4, "accounting": "published"},
        train={"steps": 6, "batch": 1},
    )
    tacit.train(content, out=folder / "run")
    return folder / "run" / "report.html"


def shared_noise():
    """Nodes on a ring that hide behind each other, of which one may give away what it knows."""
    noise = {"epsilon": 1.0, "delta": 1e-4, "noise": "pairwise"}
    return experiment(privacy=noise, topology={"graph": "ring", "partners": "complete"})


def a_run_of_shared_noise(folder):
    """A simulation of its trust model, with a forecast beside what was measured."""
    tacit.train(shared_noise(), out=folder / "run")
    return folder / "run" / "report.html"


def a_statement(folder):
    """Of nodes that count on each other, which says more than one of others."""
    tacit.train(shared_noise(), out=folder / "run")
    return next(path for path in write_statement(folder / "run") if path.suffix == ".html")


def claims(folder):
    """Of a formula that promises too much, and of a claim that is beyond all meaning."""
    files = [
        write_toml(
            folder / f"{name}.toml",
            experiment(algorithm={"name": name}, privacy=privacy, train={"steps": 6, "batch": 1}),
        )
        for name, privacy in (
            ("const-d2p", {"epsilon": 3.0, "delta": 1e-4, "accounting": "published"}),
            ("dyn-d2p", {"epsilon": 3.0, "delta": 1e-4}),
        )
    ]
    documents = [plain_json(claims_document(file)) for file in files]
    rows = [row for document in documents for row in document["rows"]]
    return page(folder, html(claims_blocks({**documents[0], "rows": rows})))


def a_plan(folder):
    options = optimise.OptimiseOptions(batch=True, most_steps=50)
    config = load_config(experiment(privacy={"epsilon": 1.0, "delta": 1e-4}))
    found = optimise.optimise(config, options)
    return page(folder, html(optimise_blocks(plain_json(found))))


def a_comparison(folder):
    lines = [{"name": "one"}, {"name": "two", "set": {"algorithm.clip": 2.0}}]
    figure = {"title": "Two clips", "x": ["steps", "epsilon"], "line": lines}
    return compared(folder, {**experiment(), "figure": figure})


def sites_beside_their_baselines(folder):
    baselines = ["alone", "alone-plain", "pooled-plain"]
    section = {"title": "What each site gains", "seeds": 2, "baselines": baselines}
    divided = {"count": 3, "partition": "dirichlet", "alpha": 0.5}
    own = experiment(nodes=divided, privacy={"epsilon": 3.0, "delta": 1e-4})
    return compared(folder, {**own, "compare": section})


def compared(folder, experiments):
    file = write_toml(folder / "compared.toml", experiments)
    wanted = load_figure([file], FigureOptions((), False, None))
    gathered = gather(wanted, open_folder(folder / "compared"))
    return page(folder, compare_page(plain_json(figure_document(gathered))))


def page(folder, content):
    (folder / "page.html").write_text(content, encoding="utf-8")
    return folder / "page.html"


PAGES = (
    a_run,
    a_run_that_is_not_private,
    a_run_over_its_budget,
    a_run_of_shared_noise,
    a_statement,
    claims,
    a_plan,
    a_comparison,
    sites_beside_their_baselines,
)


@pytest.mark.parametrize("make", PAGES, ids=lambda make: make.__name__)
def test_nothing_is_cut_pale_lost_or_broken(make, browser, tmp_path):
    file = make(tmp_path)
    assert file.stat().st_size < 1_200_000
    assert look_at(browser, file) == Findings()


def test_a_name_in_a_legend_hides_and_shows_its_line(browser, tmp_path):
    tab = browser.new_page()
    tab.set_default_timeout(60_000)
    tab.goto(a_run_over_its_budget(tmp_path).as_uri())
    lines = tab.locator("#accuracy-steps .scatterlayer .trace")
    entry = tab.locator("#accuracy-steps .legend button").nth(1)
    names = tab.locator("#accuracy-steps .legend button").count()
    for pressed, count in (("false", names - 1), ("true", names)):
        entry.click()  # as soon as it can be clicked: when the charts are drawn
        assert entry.get_attribute("aria-pressed") == pressed
        expect(lines).to_have_count(count, timeout=60_000)
    tab.close()


def test_without_a_browser_tests_are_skipped_but_not_where_it_is_demanded(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TACIT_BROWSER", raising=False)
    for demanded, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", demanded)
        with pytest.raises(outcome, match="TACIT_BROWSER"), running_browser():
            pass


DEFECTS = """
<style>
  .narrow { width: 60px; overflow: hidden; white-space: nowrap; }
  .pale { color: #9a9a9a; }
  @media (prefers-color-scheme: dark) { .dark-on-dark { color: #1b2027; } }
  @media print { .not-printed { display: none; } }
</style>
<p class="narrow">words that are cut</p>
<p style="white-space: nowrap; width: 100px">words that stick out of their own box</p>
<p style="margin-left: -40px">words that begin before the page</p>
<p class="pale">pale words</p>
<p class="dark-on-dark">dark words</p>
<p style="opacity: 0.5">faint words</p>
<table><tr><th>first</th><th class="not-printed">secret</th></tr>
<tr><td>1</td><td class="not-printed">concealed</td></tr></table>
<div style="width: 120vw">a wide element</div>
<script>console.error("a message on the console"); throw new Error("a fault");</script>
"""


def test_what_is_planted_is_found(browser, tmp_path):
    """The checks can fail: each of them names what it is there for."""
    file = page(tmp_path, statement_with(DEFECTS, tmp_path))
    found = look_at(browser, file)
    for sentence in (
        '1280 px, light: "words that are cut" is in a box that is cut: narrow',
        '390 px, dark: "words that stick out of their own box" sticks out of its box',
        '390 px, light: "words that begin before the page" leaves the page',
        "390 px, light: the page is 480 px wide in 390",
    ):
        assert sentence in found.clipped, sentence
    for where in ("390 px, light", "1280 px, light", "paper"):
        assert any(f'{where}: "pale words" has' in said for said in found.pale)
        assert any(f'{where}: "faint words" has' in said for said in found.pale)
    dark = [said for said in found.pale if '"dark words"' in said]
    assert [said.partition(":")[0] for said in dark] == ["390 px, dark", "1280 px, dark"]
    assert 'paper: 1 of 2 columns: "1concealed"' in found.lost
    assert "'concealed' is printed 0 times, not 1" in found.paper
    assert "a message on the console" in found.console
    assert "a fault" in found.console


def statement_with(markup, folder):
    """A page without charts, and with something more."""
    html = a_statement(folder).read_text(encoding="utf-8")
    return html.replace("</main>", f"{markup}</main>")
