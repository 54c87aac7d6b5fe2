"""The files that tools and newcomers read first agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import tacit

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"


def values(name: str, key: str) -> list[str]:
    """What stands behind a key of a YAML file, wherever the key begins a line."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^[ -]*{key}: *(.+)$", text, re.MULTILINE)


def test_the_citation_is_of_this_version() -> None:
    assert values("CITATION.cff", "version") == [tacit.__version__] == [PROJECT["version"]]
    assert values("CITATION.cff", "license") == [PROJECT["license"]]
    authors = [author["name"] for author in PROJECT["authors"]]
    assert values("CITATION.cff", "name") == authors
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    keywords = re.findall(r"^  - (.+)$", text.partition("keywords:\n")[2], re.MULTILINE)
    assert keywords == PROJECT["keywords"]


def test_a_commit_is_checked_as_make_check_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^check:.*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert values(".pre-commit-config.yaml", "entry") == commands


def test_hosted_ci_runs_what_a_change_must_pass_on_every_python_that_is_named() -> None:
    workflow = ".github/workflows/ci.yml"
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    (tested,) = [re.findall(r"3\.\d+", line) for line in values(workflow, "python")]
    assert tested == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert values(workflow, "run") == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_a_privacy_bug_is_led_to_the_private_way() -> None:
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "## How to report one" in security
    assert "before anything is published" in security
    form = (TEMPLATES / "privacy-bug.yml").read_text(encoding="utf-8")
    assert "SECURITY.md#how-to-report-one" in form
    assert "Do not publish a leak that can be exploited" in form
    assert "SECURITY.md" in (TEMPLATES / "bug.yml").read_text(encoding="utf-8")
