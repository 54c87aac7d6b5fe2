"""The site asks nobody for anything: the build fails where a page would load a file from a host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# What a browser loads by itself. A link that a reader follows (`<a href>`) is none of them.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*?\ssrc\s*=\s*["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b[^>]*?\shref\s*=\s*["']?(?P<href>[^"'\s>]+)"""
    r"""|<object\b[^>]*?\sdata\s*=\s*["']?(?P<data>[^"'\s>]+)""",
    re.IGNORECASE,
)
_STYLED = re.compile(r"""url\(\s*["']?(?P<url>[^"')]+)|@import\s+["'](?P<imported>[^"']+)""")
_EXTERNAL = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


def external_assets(text: str, *, styles: bool = False) -> list[str]:
    """The addresses on other hosts that a page (or, with `styles`, a style sheet) would load."""
    pattern = _STYLED if styles else _LOADED
    found = [next(filter(None, match.groups())) for match in pattern.finditer(text)]
    return [address for address in found if _EXTERNAL.match(address)]


def on_post_build(*, config: Any) -> None:
    """Refuse a site that would load anything from elsewhere."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    files = [(path, path.suffix == ".css") for path in site.rglob("*")]
    wrong = [
        f"{path.relative_to(site)}: {address}"
        for path, styles in files
        if path.suffix in (".html", ".css", ".svg")
        for address in external_assets(path.read_text(encoding="utf-8"), styles=styles)
    ]
    if wrong:
        raise PluginError("the site would load from other hosts:\n" + "\n".join(sorted(wrong)))
