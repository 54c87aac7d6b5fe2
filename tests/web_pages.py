"""Pages as a browser sees them: elements, words, charts and tables."""

import json
import re
from base64 import b64encode
from collections import Counter
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import plotly.graph_objects as go

EVIL = "\"'></script></style></title><script>alert(1)</script><img src=x onerror=alert(2)>&lt;"
"""A name that becomes markup wherever it is not escaped."""

PLOTLY = resources.files("tacit.report") / "plotly" / "plotly-basic.min.js.gz"
"""The code of plotly.js that every page with charts holds."""

_WITHOUT_END = ("meta", "link", "br", "img", "input")
_LOADING = {"src", "href", "srcset", "action", "background", "data"}


def drawn(chart):
    """A chart's figure as plotly reads it, which refuses attributes that it does not know."""
    assert chart.figure is not None
    return go.Figure(list(chart.figure.data), chart.figure.layout)


class Page(HTMLParser):
    """A page that was read, without the code of plotly, which it holds once or never.

    Args:
        html: of the whole page.
        has_charts: whether the code of plotly must be in it.
    """

    def __init__(self, html, *, has_charts=True):
        super().__init__()
        code = b64encode(PLOTLY.read_bytes()).decode()
        assert html.count(code) == has_charts, "plotly.js is embedded once"
        self.html = html.replace(code, "")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.charts: dict[str, Any] = {}  # plotly's figures by the id of their element
        self.rows: list[list[str]] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _WITHOUT_END:
            self._open.append(self.tags[-1])
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script":
            self.scripts.append(data)
            if attributes.get("type") == "application/json":
                figures = [attributes["id"] for name, attributes in self._open if name == "figure"]
                figure = json.loads(data)
                go.Figure(figure)  # refuses attributes that plotly does not know
                self.charts[str(figures[-1])] = figure
        elif tag != "style":
            self.words.append(data)
            if any(name in ("td", "th") for name, _ in self._open):
                self.rows[-1][-1] += data

    @property
    def text(self):
        """What is read, with a single plain space between words."""
        return re.sub(r"\s+", " ", " ".join(self.words))

    def count(self, tag, **attributes):
        """How many elements have this name and these attributes."""
        return sum(
            name == tag and attributes.items() <= present.items() for name, present in self.tags
        )

    def assert_loads_nothing(self):
        """A page is one file: nothing in it names another."""
        assert _LOADING.isdisjoint(name for _, attributes in self.tags for name in attributes)
        assert "link" not in {tag for tag, _ in self.tags}
        assert re.findall(r"https?://|url\(|@import", self.html) == []
        (policy,) = (tag["content"] for _, tag in self.tags if "http-equiv" in tag)
        assert policy is not None
        assert "default-src 'none'" in policy

    def assert_has_the_elements_of(self, harmless):
        """No text of this page has become an element or an attribute."""
        assert Counter(self._shapes()) == Counter(harmless._shapes())

    def _shapes(self):
        return [(tag, *sorted(attributes)) for tag, attributes in self.tags]


def poisoned(content, keep=()):
    """A document whose texts all end with markup, except empty ones and those under some keys."""
    if isinstance(content, dict):
        return {
            key: value if key in keep else poisoned(value, keep) for key, value in content.items()
        }
    if isinstance(content, list):
        return [poisoned(value, keep) for value in content]
    return content + EVIL if isinstance(content, str) and content else content
