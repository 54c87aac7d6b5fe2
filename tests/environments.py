"""Environments such as users have: empty, then what they install, and nothing else.

Nothing is fetched. What `pip install` would bring is linked from the environment of the tests,
package by package as the metadata require it, with what was compiled of it; pip itself then runs
without any index, so that it fails where something is lacking. So an environment holds what was
asked for, at the cost of links.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = "tacit-dp"
LIMIT = 900.0  # seconds of one command, on a machine that is busy; most take a few
_SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def requirements(extras=()):
    """What the project itself requires, with these of its extras."""
    named = PROJECT["project"]["optional-dependencies"]
    return [
        *PROJECT["project"]["dependencies"],
        *(each for extra in extras for each in named[extra]),
    ]


def required(wanted):
    """The installed distributions that requirements ask for, and those that these ask for."""
    found = {}
    seen = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = metadata.distribution(name)
        for line in found[name].requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in (*extras, "")
            ):
                waiting.append(inner)
    return found


def link(distribution, environment):
    """Put an installed distribution into another environment; its programs start that Python."""
    site = environment / _SITE
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        target = Path(os.path.normpath(site / file))
        if target.exists() or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if ".." in file.parts:
            content = re.sub(
                rb"\A#!.*", b"#!" + bytes(environment / "bin/python"), source.read_bytes()
            )
            target.write_bytes(content)
            target.chmod(source.stat().st_mode)
            continue
        for one, other in ((source, target), *_compiled(source, target.parent)):
            other.parent.mkdir(exist_ok=True)
            try:
                os.link(one, other)
            except OSError:  # on another disk
                shutil.copy2(one, other)


def _compiled(source, folder):
    """What Python and Numba keep of a file, and where they look for it in another folder."""
    kept = source.parent.glob(f"__pycache__/{source.stem}.*") if source.suffix == ".py" else ()
    return [(one, folder / "__pycache__" / one.name) for one in kept]


def as_wheel(distribution, folder):
    """A wheel of an installed distribution of Python alone, which needs no index then."""
    name = distribution.metadata["Name"].replace("-", "_")
    path = folder / f"{name}-{distribution.version}-py3-none-any.whl"
    left_out = ("INSTALLER", "REQUESTED", "direct_url.json")
    with zipfile.ZipFile(path, "w") as wheel:
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc" and file.name not in left_out:
                wheel.write(str(distribution.locate_file(file)), str(file))
    return path


def builders(folder):
    """A folder of wheels of what builds the project."""
    folder.mkdir()
    tools = [*PROJECT["build-system"]["requires"], "editables"]  # the latter for `--editable`
    for distribution in required(tools).values():
        as_wheel(distribution, folder)
    return folder


def tracked():
    """The files of the working tree that git does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = (ROOT / name for name in names.split("\0") if name)
    return [path for path in paths if path.is_file()]


def clone(folder):
    """Copy the working tree, as a clone has it, and what was compiled of `src`."""
    for path in tracked():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        ours = _compiled(path, target.parent) if ROOT / "src" in path.parents else ()
        for one, other in ((path, target), *ours):
            other.parent.mkdir(exist_ok=True)
            shutil.copy2(one, other)


class Shell:
    """A person's shell in a clone: what one command exports, the next ones see.

    Before a command that installs, what it would fetch is linked into `.venv`.
    """

    def __init__(self, folder, wheels):
        self.folder = folder
        self.clone = folder / "tacit"
        self.clone.mkdir()
        clone(self.clone)
        self._wheels = wheels
        self._state, self._kept = folder / "exported", folder / "kept"
        python = Path(os.path.realpath(sys._base_executable)).parent  # type: ignore[attr-defined]
        (folder / "home").mkdir()
        self._environment = {
            "HOME": str(folder / "home"),
            "PATH": os.pathsep.join([str(python), "/usr/bin", "/bin"]),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "COLUMNS": "110",
            "OMP_NUM_THREADS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(wheels),
        }

    @property
    def environment(self):
        return self.clone / ".venv"

    def keep(self):
        """Remember what is installed and exported now, for `again`."""
        shutil.copy2(self._state, self._kept)

    def again(self):
        """A clone as it was when it was kept: what has been made in it since is gone."""
        for path in self.clone.iterdir():
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path != self.environment:
                shutil.rmtree(path)
        clone(self.clone)
        shutil.copy2(self._kept, self._state)

    def _command(self, line):
        """The words that run a line of the shell with what was exported before."""
        kept = shlex.quote(str(self._state))
        return ["bash", "-c", f"[ ! -e {kept} ] || . {kept}\nset -e\n{line}\nexport -p >{kept}"]

    def run(self, line, limit=LIMIT):
        """Run a line to its end."""
        self._fetch(line)
        with subprocess.Popen(
            self._command(line),
            cwd=self.clone,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                raise
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    def start(self, words, log, kept):
        """Start a program that goes on, writes to a log, and has these descriptors."""
        with log.open("w") as written:
            return subprocess.Popen(
                self._command(f"exec {shlex.join(words)}"),
                cwd=self.clone,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=written,
                pass_fds=kept,
                text=True,
            )

    def _fetch(self, line):
        """Have at hand what a line would fetch."""
        distributions = required(fetched(line)).values()
        if "pip wheel" in line:
            for distribution in distributions:
                as_wheel(distribution, self._wheels)
            return
        if distributions and not self.environment.exists():  # `make` begins with it
            self.run("python3 -m venv .venv")
        for distribution in distributions:
            link(distribution, self.environment)


def fetched(line):
    """What a command would fetch, as requirements."""
    if re.search(r"\bmake demo\b", line):
        return requirements()
    found = []
    for named in re.findall(r"\bpip (?:install|wheel) ([^&|;#]*)", line):
        words = iter(shlex.split(named))
        for word in words:
            if word == "--no-index":
                return []
            if word in ("--constraint", "--find-links", "--wheel-dir"):
                next(words)
            elif ours := re.fullmatch(r"\.(?:\[([\w,]+)\])?", word):
                found += requirements(ours[1].split(",") if ours[1] else ())
            elif not word.startswith("-") and not word.endswith(".whl"):
                found.append(word)
    return found


def installed(environment):
    """The names of what an environment holds."""
    found = metadata.distributions(path=[str(environment / _SITE)])
    return {canonicalize_name(each.metadata["Name"]) for each in found}
