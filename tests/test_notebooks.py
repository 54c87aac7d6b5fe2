"""Notebooks of the documentation run from top to bottom, and show what they say."""

import os
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT = 240  # seconds a cell, on a machine that is busy; all of a notebook takes a few
LARGEST = 100_000  # bytes: outputs are kept small

sys.path.insert(0, str(ROOT / "docs" / "hooks"))
from notebooks import as_markdown  # noqa: E402

_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)[^)\s]*\)")

named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def printed(notebook):
    """The words that each cell printed; numbers, and bars of #, may differ from run to run."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(part.get("text", "") for part in cell.outputs) for cell in cells]
    return [_NUMBER.sub("0", re.sub(r"#+", "", text)).split() for text in texts]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.slow
@named
def test_a_notebook_runs_and_prints_what_it_holds(path, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    here = str(Path(sys.executable).parent)  # where the `tacit` is that cells call
    monkeypatch.setenv("PATH", here, prepend=os.pathsep)
    kept, again = read(path), read(path)
    for cell in again.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    with TemporaryDirectory() as sockets:  # whose paths are short; ports could be taken by others
        kernel = AsyncKernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=f"{sockets}/kernel",
            connection_file=f"{sockets}/kernel.json",
        )
        NotebookClient(
            again,
            kernel,
            timeout=LIMIT,
            startup_timeout=LIMIT,
            resources={"metadata": {"path": str(tmp_path)}},
        ).execute()
    assert printed(again) == printed(kept)


@named
def test_a_notebook_was_run_from_top_to_bottom_and_is_small(path):
    notebook = read(path)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert sum(map(bool, printed(notebook))) >= len(counts) / 2
    assert "error" not in {
        part.output_type for cell in notebook.cells for part in cell.get("outputs", [])
    }
    assert path.stat().st_size < LARGEST
    assert str(Path.home()) not in path.read_text(encoding="utf-8")


@named
def test_links_of_a_notebook_lead_somewhere(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    targets = [match["target"] for text in texts for match in _LINK.finditer(text)]
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


@named
def test_a_notebook_is_a_page_with_its_code_and_outputs(path):
    notebook = read(path)
    page = as_markdown(path.read_text(encoding="utf-8"))
    assert page.startswith("# ")
    for cell in notebook.cells:
        assert cell.source.rstrip() in page
        for output in cell.get("outputs", []):
            assert output.get("text", "").rstrip() in page
