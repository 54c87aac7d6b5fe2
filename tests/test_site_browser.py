"""The built site in a browser, opened as files: it searches, fits a telephone, and asks nobody."""

import os
from pathlib import Path

import pytest

from browser import SCREENS, running_browser

pytestmark = [pytest.mark.slow, pytest.mark.process]

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


def test_pages_fit_every_screen_and_load_files_of_the_site_alone(tab):
    asked: set[str] = set()
    wrong: list[str] = []
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
