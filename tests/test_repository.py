"""The files that tools and newcomers read first agree with the project."""

import re
import tomllib
from pathlib import Path

import pytest

import mutants
import tacit
from environments import tracked

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"


def values(name, key):
    """What stands behind a key of a YAML file, wherever the key begins a line."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^[ -]*{key}: *(.+)$", text, re.MULTILINE)


def test_the_citation_is_of_this_version():
    assert values("CITATION.cff", "version") == [tacit.__version__] == [PROJECT["version"]]
    assert values("CITATION.cff", "license") == [PROJECT["license"]]
    authors = [author["name"] for author in PROJECT["authors"]]
    assert values("CITATION.cff", "name") == authors
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    keywords = re.findall(r"^  - (.+)$", text.partition("keywords:\n")[2], re.MULTILINE)
    assert keywords == PROJECT["keywords"]


def test_a_commit_is_checked_as_make_check_does():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^check:.*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert values(".pre-commit-config.yaml", "entry") == commands


def test_hosted_ci_runs_what_a_change_must_pass_on_every_python_that_is_named():
    workflow = ".github/workflows/ci.yml"
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    (tested,) = [re.findall(r"3\.\d+", line) for line in values(workflow, "python")]
    assert tested == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert values(workflow, "run") == [".ci/run", "make test-nightly"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_a_privacy_bug_is_led_to_the_private_way():
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "## How to report one" in security
    assert "before anything is published" in security
    form = (TEMPLATES / "privacy-bug.yml").read_text(encoding="utf-8")
    assert "SECURITY.md#how-to-report-one" in form
    assert "Do not publish a leak that can be exploited" in form
    assert "SECURITY.md" in (TEMPLATES / "bug.yml").read_text(encoding="utf-8")


# A package index has a stranger's project called `tacit`: whoever asks for that name gets it.

_TOOL = (
    r"(?:pip[\d.]*|pipx|uvx?|conda|mamba|micromamba|poetry|pdm|rye|pixi|hatch|pipenv|easy_install)"
)
# Words of a command up to the name. A sentence, another command, or a path of this clone ends it.
_ASKED = re.compile(
    rf"\b{_TOOL}\b(?P<words>(?:\s+[^\s`;|&.)#$][^\s`;|&)#]*){{0,9}}?)"
    r"\s+(?P<name>tacit)(?:\[[\w,\s-]*\])?(?:\s*[=<>~!]=?[^\s`]*)?(?![\w./:@-])",
    re.IGNORECASE,
)
_VERBS = re.compile(
    r"\b(?:install|add|download|wheel|inject|run|upgrade|update|require|sync|get)\b|^$|^\s+-"
)
_EXTRA = re.compile(r"(?<![\w.-])tacit\[\s*[a-z][\w,\s-]*\]", re.IGNORECASE)
_LINE = re.compile(  # of requirements, of a list in YAML or TOML
    r"^\s*(?:- )?tacit(?:=\d.*|\s*(?:(?:==|>=|<=|~=|!=|<|>)\s*[\d*].*|@ .*))$", re.IGNORECASE
)
_OF_REQUIREMENTS = re.compile(r"(?:require|constraint|environment|peers|packages)[^/]*$")


def asked_for(text, name=""):
    """Where a text has someone install `tacit` by its name."""
    plain = re.sub(r"\\+\r?\n|\\n(?=[\"' ])", " ", text)  # lines that go on; lines of a notebook
    plain = re.sub(r"[\"',]+(?=[\s\w.\[\])=<>~!-]|$)", " ", plain)  # words of a list
    found = [
        match[0]
        for match in _ASKED.finditer(re.sub(r"\[(?=\s)", " ", plain))
        if _VERBS.search(match["words"]) and not re.search(r"\buninstall\b", match["words"])
    ]
    found += _EXTRA.findall(plain)
    found += [line for line in plain.splitlines() if _LINE.match(line)]
    if _OF_REQUIREMENTS.search(name):
        found += [line for line in plain.splitlines() if re.fullmatch(r"\s*(- )?tacit\s*", line)]
    return found


ASKED = [
    "pip install tacit",
    "$ pip install --upgrade 'tacit'",
    'pip install "tacit[sites]"',
    "python -m pip install --no-cache-dir tacit==0.1.0",
    "`pip3 install tacit`, then",
    "pip install numpy tacit pandas",
    "pip install \\\n    --constraint constraints.txt \\\n    tacit",
    'RUN ["pip", "install", "tacit"]',
    "- run: pip install tacit",
    '"!pip install tacit\\n",',
    '   "%pip install -q tacit>=0.1\\n"',
    "uv pip install tacit",
    "uv add tacit",
    "uv tool install tacit",
    "uvx tacit",
    "pipx install tacit",
    "pipx run tacit",
    "conda install -c conda-forge tacit",
    "mamba install tacit",
    "poetry add tacit",
    "comes with tacit[sites]",
    "the extra 'tacit[mlflow]'",
    "tacit==0.1.0",
    "  - tacit>=0.1",
    '  "tacit >= 0.1",',
    "tacit @ https://example.org/tacit.whl",
]
NOT_ASKED = [
    "pip install '.[sites]'",
    "pip install --constraint constraints.txt .",
    "pip install '.[sites]' in a clone of the repository",
    "pip install --no-index --find-links wheels tacit-dp",
    "pip uninstall --yes tacit tacit-dp",
    "`pip wheel .` and then `tacit train`",
    "pip install . && tacit --version",
    "tacit train digits.toml",
    "python -m tacit train",
    "tacit relay --site relay",
    "tacit = 3",
    "import tacit",
    "docker build --tag tacit .",
]


@pytest.mark.parametrize("text", ASKED)
def test_it_is_noticed_where_someone_is_told_to_install_tacit_by_name(text):
    assert asked_for(text)


@pytest.mark.parametrize("text", NOT_ASKED)
def test_other_words_are_not_mistaken_for_that(text):
    assert asked_for(text) == []


@pytest.mark.slow
def test_nobody_is_told_to_install_tacit_by_name():
    """In no file: pages, messages, examples, notebooks, `deploy/`, workflows."""
    own = Path(__file__).resolve()
    files = {path: read for path in tracked() if path != own and (read := _text(path))}
    for needed in ("README.md", "deploy/Containerfile", ".ci/run", "docs/how-to/deploy.md"):
        assert ROOT / needed in files
    assert any(path.suffix == ".ipynb" for path in files)
    assert {
        str(path.relative_to(ROOT)): found
        for path, text in files.items()
        if (found := asked_for(text, path.name))
    } == {}


def _text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture, or what is packed
        return ""


def test_the_project_has_a_name_of_its_own_and_does_not_require_the_other():
    assert PROJECT["name"] == "tacit-dp"
    extras = PROJECT["optional-dependencies"].values()
    required = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    assert [line for line in required if re.match(r"tacit\b(?!-dp)", line)] == []
    assert PROJECT["scripts"] == {"tacit": "tacit_dp:main"}
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"^tacit\b", constraints, re.MULTILINE)


def test_defects_of_the_script_can_be_planted():
    """`python tests/mutants.py` plants each, and runs the tests that must find it."""
    assert len(mutants.MUTANTS) >= 40
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
    for mutant in mutants.MUTANTS:
        text = (ROOT / "src" / "tacit" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant.name
        assert mutant.new != mutant.old, mutant.name
        assert all((ROOT / file).is_file() for file in mutant.tests.split()), mutant.name
