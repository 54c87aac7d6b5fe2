"""Files of the repository that pages link to become pages of the site, so that no link is lost.

A page such as `docs/performance.md` links to `../benchmarks/README.md`, which is right where the
repository is read. On the site that file is `repository/benchmarks/README.md`. A program that a
page links to is a page too, as a block of code.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "repository"
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".txt": "text"}

_BLOCK = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<open>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<close>\))")


def relinked(markdown: str, change: Callable[[str], str]) -> str:
    """Markdown with every relative link target outside code blocks as `change` gives it."""

    def changed(link: re.Match[str]) -> str:
        if "://" in link["target"]:
            return link[0]
        return f"{link['open']}{change(link['target'])}{link['anchor'] or ''}{link['close']}"

    blocks = [found.span() for found in _BLOCK.finditer(markdown)]
    parts, at = [], 0
    for start, end in [*blocks, (len(markdown), len(markdown))]:
        parts += [_LINK.sub(changed, markdown[at:start]), markdown[start:end]]
        at = end
    return "".join(parts)


def links_of(file: str) -> set[str]:
    """The files of the repository, as paths from its root, that a Markdown file links to."""
    found: set[str] = set()

    def note(target: str) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        if (ROOT / path).is_file():
            found.add(path)
        return target

    relinked((ROOT / file).read_text(encoding="utf-8"), note)
    return found


def linked_files(pages: set[str]) -> set[str]:
    """What these pages link to outside `docs/`, and what that links to, and so on."""
    seen: set[str] = set()
    ahead = {file for page in pages for file in links_of(page)}
    while new := {file for file in ahead if not file.startswith("docs/")} - seen:
        seen |= new
        ahead = {file for page in new if page.endswith(".md") for file in links_of(page)}
    return seen


def page_of(file: str) -> str:
    """Where a file of the repository stands in the site, as a path from `docs/`."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    name = file if file.endswith(".md") else f"{file}.md"
    return f"{FOLDER}/{name}"


def _content(file: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(file).suffix, "text")
    return f"# {file}\n\n````{language}\n{text}````\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for every file of the repository that a page links to."""
    from mkdocs.structure.files import File

    pages = {f"docs/{file.src_uri}" for file in files.documentation_pages()}
    pages = {page for page in pages if page.endswith(".md") and (ROOT / page).is_file()}
    for name in sorted(linked_files(pages)):
        files.append(File.generated(config, page_of(name), content=_content(name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: Any, files: Files) -> str:
    """Lead links that leave `docs/`, and those of the pages above, to pages of the site."""
    here = page.file.src_uri
    generated = here.startswith(f"{FOLDER}/")
    if generated and not here.removesuffix(".md").endswith(".md"):
        source = here.removeprefix(f"{FOLDER}/")
    else:
        source = f"docs/{here}"

    def lead(target: str) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        outside = not path.startswith("docs/")
        if not (ROOT / path).is_file() or not (generated or outside):
            return target
        return os.path.relpath(page_of(path), posixpath.dirname(here) or ".")

    return relinked(markdown, lead)
