"""The site of the documentation: every page has a place in it, and it asks nobody for anything."""

import os
import re
import sys
from pathlib import Path

import pytest

from browser import SCREENS, running_browser

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

sys.path.insert(0, str(DOCS / "hooks"))
from nothing_external import external_assets  # noqa: E402
from repository_files import linked_files, page_of, relinked  # noqa: E402
from table_labels import labelled  # noqa: E402


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<script src="https://host/a.js"></script>', ["https://host/a.js"]),
        ("<script defer src=//host/a.js></script>", ["//host/a.js"]),
        ('<link rel="stylesheet" href="http://host/a.css">', ["http://host/a.css"]),
        ('<img alt="a" src="HTTPS://host/a.png">', ["HTTPS://host/a.png"]),
        ('<object data="https://host/a.svg"></object>', ["https://host/a.svg"]),
        ('<img src="../images/a.png"><script src="assets/a.js"></script>', []),
        ('<img src="data:image/png;base64,aGk=">', []),
        ('<a href="https://host/">a link that a reader follows</a>', []),
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(page, found):
    assert external_assets(page) == found


def test_what_a_style_would_load_from_elsewhere_is_found():
    style = "a{background:url(https://host/a.png)} b{background:url('b.svg')} @import 'https://h/c'"
    assert external_assets(style, styles=True) == ["https://host/a.png", "https://h/c"]


def test_our_own_scripts_and_styles_name_no_host():
    for path in [*(DOCS / "assets").iterdir(), *DOCS.rglob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|href|url\(|fetch\()\s*=?\s*[\"']?https?:", text), path.name


def test_links_are_changed_outside_blocks_alone():
    text = "[a](x.md#one) [b](https://h/x.md)\n```text\n[c](x.md)\n```\n![d](x.md)\n"
    changed = relinked(text, lambda target: f"../{target}")
    assert changed == (
        "[a](../x.md#one) [b](https://h/x.md)\n```text\n[c](x.md)\n```\n![d](../x.md)\n"
    )


def test_files_outside_the_docs_that_pages_link_to_become_pages():
    linked = linked_files({"docs/performance.md", "docs/concepts/noise.md"})
    assert {"benchmarks/README.md", "src/tacit/kernels/compile.py"} <= linked
    assert not any(file.startswith("docs/") for file in linked)
    assert page_of("benchmarks/README.md") == "repository/benchmarks/README.md"
    assert page_of("src/tacit/kernels/compile.py") == "repository/src/tacit/kernels/compile.py.md"
    assert page_of("docs/concepts/noise.md") == "concepts/noise.md"


def test_cells_carry_the_head_of_their_column():
    table = "<table><thead><tr><th>key</th><th>a &lt; b</th><th><code>c</code></th></tr></thead>"
    table += "<tbody><tr><td>1</td><td>2</td><td></td></tr></tbody></table>"
    made = labelled(table)
    assert '<td data-label="key">1</td><td data-label="a &lt; b">2</td>' in made
    assert '<td data-label="c"></td>' in made
    names = "<table><thead><tr><th>k</th></tr></thead><tr><td><code>d-psgd</code></td></tr></table>"
    assert '<code class="name">d-psgd</code>' in labelled(names)
    assert "class" not in labelled(names.replace("d-psgd", "epsilon = 3"))
    assert labelled("<table><tr><td>no head</td></tr></table>").count("data-label") == 0


def test_every_page_stands_in_the_navigation_once():
    named = re.findall(r"([\w/.-]+\.(?:md|ipynb))\s*$", _nav(), re.MULTILINE)
    pages = {
        str(path.relative_to(DOCS))
        for kind in ("*.md", "*.ipynb")
        for path in DOCS.rglob(kind)
        if ".ipynb_checkpoints" not in path.parts
    }
    assert sorted(named) == sorted(set(named))
    assert set(named) == pages


def _nav():
    return (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def test_ci_builds_the_site():
    assert "\n  make docs\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs:")[2]
    build = next(line for line in recipe.splitlines() if "mkdocs build" in line)
    assert build.endswith("mkdocs build --strict")  # with --quiet, warnings would not be counted


# The built site in a browser, opened as files: it searches, fits a telephone, and asks nobody.


SITE = Path(__file__).resolve().parents[1] / "build" / "site"
LIMIT = 60_000  # milliseconds, of a machine that is busy
PAGES = (
    "index.html",
    "concepts/which-algorithm.html",
    "papers/dyn-d2p.html",
    "reference/command-line.html",
    "reference/experiment-file.html",
    "reference/python.html",
)
HIDDEN = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter((table) => table.scrollWidth > table.clientWidth + 1)
  .map((table) => table.innerText.slice(0, 60))"""


@pytest.fixture(scope="module")
def tab():
    if not (SITE / "index.html").is_file():
        message = "no site in build/site: `make docs` builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with running_browser() as browser:
        context = browser.new_context(offline=True)
        yield context.new_page()
        context.close()


@pytest.mark.slow
@pytest.mark.process
def test_pages_fit_every_screen_and_load_files_of_the_site_alone(tab):
    asked = set()
    wrong = []
    tab.on("request", lambda request: asked.add(request.url))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    for width, height in SCREENS:
        tab.set_viewport_size({"width": width, "height": height})
        for page in PAGES:
            tab.goto((SITE / page).as_uri())
            wide = tab.evaluate("document.documentElement.scrollWidth")
            wrong += [f"{page} is {wide} px wide at {width}"] if wide > width else []
            wrong += [f"{page}, {width} px, cuts: {table}" for table in tab.evaluate(HIDDEN)]
    home = SITE.as_uri()
    outside = [url for url in asked if not url.startswith((home, "data:", "blob:", "about:"))]
    assert (wrong, outside) == ([], [])


@pytest.mark.slow
@pytest.mark.process
def test_the_search_finds_a_page_without_a_server(tab):
    width, height = SCREENS[-1]
    tab.set_viewport_size({"width": width, "height": height})
    tab.goto((SITE / "index.html").as_uri())
    tab.click(".md-search__input", timeout=LIMIT)
    tab.keyboard.type("lawyer")
    found = tab.locator(".md-search-result__item a[href*='epsilon-for-a-lawyer.html']").first
    found.click(timeout=LIMIT)
    tab.wait_for_url("**/epsilon-for-a-lawyer.html*", timeout=LIMIT)
    assert tab.inner_text("h1").startswith("Epsilon for a lawyer")
