"""README, the first steps, the tutorials and the how-to pages are followed to the letter.

Each page in a clone of its own, from an environment that is empty at first. The page's commands
install; before a page that makes no environment come those of `docs/start/index.md`, which it
presupposes. (Pages that need no more than these share what they installed, in a fresh clone each.)
The blocks are worked through in order. A block under `<!-- file: NAME -->` is written to that file;
what is typed at a shell is typed at one shell (`$ ` in any block, every line of ```sh); ```python
is run in the interpreter of that shell, one for a page. A command must end with 0, or as `ENDS`
says, and the words of what ```console prints below it must be the same; numbers may differ. At the
end, the environment holds what the commands name, what that requires, and nothing else.

What is not run, or not as it stands, is in the tables below, with the reason.
"""

import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from environments import LIMIT, OURS, Shell, builders, fetched, installed, required
from pages import FOLLOWED as PAGES
from pages import blocks, name_of, plain_words, typed

pytestmark = pytest.mark.timeout(3000)

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TACIT_DATA_DIR", ROOT.parent / "shared" / "data")).resolve()
START = ROOT / "docs" / "start" / "index.md"
NOT_RUN = {
    "make test": "these tests",
    "tacit compare papers/dyn-d2p/fashion-mnist-table.toml --jobs 2": "takes an hour",
    "python benchmarks/recommend.py --data-dir DIR --records 1500 --seeds 1": "takes an hour",
    "export GLOO_SOCKET_IFNAME=eth1": "of three machines",
    "torchrun --nnodes=3 --nproc-per-node=1 --node-rank=0 --master-addr=10.0.0.1"
    " --master-port=29500 --max-restarts=3 -m tacit train sites.toml --out runs/wards": (
        "of three machines"
    ),
    "tacit watch runs/wards": "goes on until it is interrupted; --once is run",
}
SHORTENED = {  # commands that take minutes, made shorter by these words
    "tacit compare table.toml": "--set train.steps=20",
    "tacit compare nine.recommended.toml": "--seeds 1 --set train.steps=5",
    "tacit compare jobs.recommended.toml": "--seeds 1 --set train.steps=5",
    "tacit train fashion.toml --out runs/fashion": "--set train.steps=3",
    "tacit train fashion.toml --set privacy.epsilon=none --out runs/open": "--set train.steps=3",
}
ENDS = {"tacit train shared.toml --out runs/fourth": 3}  # exit codes other than 0
_IMAGES = re.compile(r'^dataset = "((?:fashion-)?mnist|adult)"', re.MULTILINE)
_PYTHON = (ROOT / "tests" / "page_python.py").read_text(encoding="utf-8")


def commands(page):
    return [command for block in blocks(page) for command, _ in typed(block)]


def prelude(page):
    """What is typed before a page that makes no environment: the first steps, if none is made."""
    made = any("venv .venv" in line or line == "make demo" for line in commands(page))
    return [] if made else commands(START)


def installs(page):
    """Whether a page installs anything itself, so that its environment is its own."""
    return not prelude(page) or any("pip install" in line for line in commands(page))


class Followed:
    """A page that is being followed."""

    def __init__(self, page, shell):
        self.page, self.shell = page, shell

    def type(self, command, printed=""):
        if command in NOT_RUN:
            return
        answer = self.shell.run(f"{command} {SHORTENED.get(command, '')}".strip())
        said = f"{name_of(self.page)}: $ {command}\n{answer.stdout}\n{answer.stderr}"
        assert answer.returncode == ENDS.get(command, 0), said
        assert "Traceback" not in answer.stderr, said
        if printed:
            assert plain_words(answer.stdout) == plain_words(printed), said

    def follow(self):
        python = None
        try:
            for block in blocks(self.page):
                if block.file is not None:
                    (self.shell.clone / block.file).write_text(block.code, encoding="utf-8")
                elif block.language == "python":
                    python = python or Python(self.shell)
                    python.run(block, name_of(self.page))
                for command, printed in typed(block):
                    self.type(command, printed if block.language == "console" else "")
        finally:
            if python is not None:
                python.end()


class Python:
    """The interpreter of a page, which runs its blocks one after another."""

    def __init__(self, shell):
        read, write = os.pipe()
        self._log = shell.folder / "python.txt"
        self._process = shell.start(["python", "-c", _PYTHON, str(write)], self._log, (write,))
        os.close(write)
        self._answers = os.fdopen(read)

    def run(self, block, page):
        assert self._process.stdin is not None
        asked = {"code": block.code, "line": block.line, "page": page}
        timer = threading.Timer(LIMIT, self._process.kill)
        timer.start()
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        timer.cancel()
        assert answer == "done\n", f"{page}, line {block.line}:\n{self._log.read_text()[-3000:]}"

    def end(self):
        self._process.kill()
        self._process.communicate()
        self._answers.close()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    return builders(tmp_path_factory.mktemp("tools") / "wheels")


@pytest.fixture(scope="session")
def started(tmp_path_factory, wheels):
    """A clone where someone has done what `docs/start/index.md` says, and nothing more."""
    made = Shell(tmp_path_factory.mktemp("started"), wheels)
    Followed(START, made).follow()
    made.keep()
    yield made
    shutil.rmtree(made.folder)


@pytest.fixture
def shell(page, request):
    """Of a page that installs nothing, the environment is that of the first steps, unchanged."""
    if installs(page):
        folder = request.getfixturevalue("tmp_path")
        shell = Shell(folder, request.getfixturevalue("wheels"))
        for command in prelude(page):
            Followed(START, shell).type(command)
    else:
        shell = request.getfixturevalue("started")
        shell.again()
    if DATA.is_dir():
        (shell.clone / "data").symlink_to(DATA)
    yield shell
    if installs(page):
        shutil.rmtree(shell.folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_followed_to_the_letter(page, shell):
    for name in _IMAGES.findall(page.read_text(encoding="utf-8")):
        if not (DATA / name).is_dir():
            pytest.skip(f"no folder {DATA / name}: set TACIT_DATA_DIR to the real files")
    Followed(page, shell).follow()
    named = [each for line in [*prelude(page), *commands(page)] for each in fetched(line)]
    of_python = {"pip", "setuptools"}
    assert installed(shell.environment) - of_python == {*required(named), OURS} - of_python


@pytest.mark.slow
def test_every_exception_is_of_a_command_that_stands_on_a_page():
    every = {command for page in PAGES for command in commands(page)}
    assert {*NOT_RUN, *SHORTENED, *ENDS} <= every
