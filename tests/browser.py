"""A page as a real browser shows it, on a screen, on a telephone, and on paper."""

import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from unicodedata import normalize

import pytest
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

SCREENS = ((390, 844), (1280, 900))  # CSS pixels: of a telephone and of a computer
PAPER = 703  # CSS pixels that an A4 sheet has between the margins of page.css
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_CHECKS = Path(__file__).with_name("browser_checks.js").read_text(encoding="utf-8")
_DRAWN = """() => {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  return [...document.querySelectorAll(".plot")].every(
    (plot) => plot._fullLayout?.font.color === ink && plot.querySelector(".main-svg"));
}"""
_LIMIT = 60_000  # milliseconds, of a machine that is busy


@dataclass
class Findings:
    """What is wrong with a page: sentences, each with the place where it was seen."""

    clipped: list[str] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)
    pale: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    paper: list[str] = field(default_factory=list)

    def add(self, found, where, *, but=""):
        """Take what the checks of `browser_checks.js` found, except one kind."""
        for kind, sentences in found.items():
            if kind != but:
                getattr(self, kind).extend(f"{where}: {sentence}" for sentence in sentences)


@contextmanager
def running_browser():
    """The browser of the machine; without one tests are skipped, or fail where `CI` is set."""
    path = os.environ.get("TACIT_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        message = f"no browser: name one in TACIT_BROWSER, or install one of {', '.join(_NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, timeout=_LIMIT)
        yield browser
        browser.close()


def look_at(browser, file):
    """Open a page at both widths, light and dark, and print it."""
    found = Findings()
    tab = browser.new_page()
    tab.set_default_timeout(_LIMIT)
    tab.on(
        "console",
        lambda message: found.console.append(message.text) if message.type == "error" else None,
    )
    tab.on("pageerror", lambda error: found.console.append(str(error)))
    for width, height in SCREENS:
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme="light")
        tab.goto(file.as_uri())
        _unfold(tab, True)
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            tab.wait_for_function(_DRAWN)
            # on a telephone a row is a card, whose names of columns stand in its cells
            found.add(
                tab.evaluate(_CHECKS, 0), f"{width} px, {scheme}", but="lost" if width < 960 else ""
            )
    _unfold(tab, False)
    _print(tab, found)
    tab.close()
    return found


def _unfold(tab, unfolded):
    tab.evaluate(
        "(open) => document.querySelectorAll('details').forEach((part) => { part.open = open; })",
        unfolded,
    )


def _print(tab, found):
    """From a screen that is dark, which paper never is, and where all is folded away."""
    headings = tab.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, summary')].map((one) => one.textContent)"
    )
    cells = tab.evaluate("[...document.querySelectorAll('th, td')].map((one) => one.textContent)")
    sheets = [page.extract_text() for page in PdfReader(BytesIO(tab.pdf(format="A4"))).pages]
    printed = _letters("".join(sheets))
    words = Counter(word for text in (*headings, *cells) for word in text.split())
    found.paper.extend(
        f"{word!r} is printed {printed.count(_letters(word))} times, not {count}"
        for word, count in words.items()
        if printed.count(_letters(word)) < count
    )
    ends = [_letters(sheet.strip().rpartition("\n")[2]) for sheet in sheets]
    found.paper.extend(
        f"{heading!r} ends a sheet" for heading in headings if _letters(heading) in ends
    )
    # A browser that prints lays the page out anew, but tells no chart of another size.
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.add_style_tag(content=f"main {{ width: {PAPER}px; margin: 0 !important; }}")
    tab.emulate_media(media="print")
    found.add(tab.evaluate(_CHECKS, PAPER), "paper")


def _letters(text):
    """Without the spaces, which lines that are broken add or lose, and without ligatures."""
    return "".join(normalize("NFKC", text).split())
