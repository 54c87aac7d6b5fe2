"""Notebooks are pages of the site, with the text that their cells printed; none is run for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

SUFFIX = ".ipynb"


def as_markdown(notebook: str) -> str:
    """The cells and outputs of a notebook, given as its file has it, as Markdown."""
    import nbformat

    cells = nbformat.reads(notebook, as_version=4).cells
    return "\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: Any) -> Iterator[str]:
    """A cell, and what it printed and showed."""
    if cell.cell_type == "markdown":
        yield f"{cell.source}\n"
        return
    yield _fenced("python", cell.source)
    for output in cell.outputs:
        yield _fenced("text", output.get("text") or output.data["text/plain"])


def _fenced(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Have notebooks count as pages, so that the navigation and links find them."""
    from mkdocs.structure.files import File

    class Notebook(File):
        def is_documentation_page(self) -> bool:
            return True

    for file in list(files):
        if file.src_uri.endswith(SUFFIX):
            files.remove(file)
            files.append(
                Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
            )
    return files


def on_page_read_source(*, page: Page, config: Any) -> str | None:
    """The source of a notebook's page; None leaves other pages as they are."""
    if not page.file.src_uri.endswith(SUFFIX):
        return None
    return as_markdown(page.file.content_string)
