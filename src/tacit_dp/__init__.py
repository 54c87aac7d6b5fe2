"""What tells this project's package `tacit` from another one of that name, and starts the command.

The package index has a stranger's project `tacit`, whose files overlap these where both are
installed. This module lies outside `tacit`, so that it is ours whoever's `tacit` is found. It is
small, and imports nothing of either, nor runs it; and little else, since every import of `tacit`
and every command begin with it.
"""

from __future__ import annotations

import os
import sys

__all__ = ["check_alone", "main"]

_OURS = "import tacit_dp.alone"  # stands in our `tacit/__init__.py`
_REMEDY = (
    "run `pip uninstall --yes tacit tacit-dp` and install tacit-dp anew, or use an environment of "
    "its own"
)


def check_alone() -> None:
    """Refuse to work beside another project's `tacit`, or with a part of this one.

    Raises:
        ImportError: in one line: what is in the way, where, and what to do.
    """
    file = getattr(sys.modules.get("tacit"), "__file__", None)
    if "tacit" not in sys.modules:
        from importlib.util import find_spec  # says nothing of a module that is being run

        file = getattr(find_spec("tacit"), "origin", None)
    if file is None or not os.path.isfile(file):
        raise _refused("tacit/__init__.py of tacit-dp has gone")
    with open(file, encoding="utf-8", errors="replace") as opened:
        is_ours = _OURS in opened.read()
    if not is_ours:
        raise _refused(f"{file} is another project's, and not of tacit-dp")
    for folder in sys.path:
        for name in filter(_is_named_alike, _names(folder or os.curdir)):
            from importlib.metadata import PathDistribution
            from pathlib import Path

            found = Path(folder, name)
            other = PathDistribution(found)
            if any(path.parts[0] in ("tacit", "tacit.py") for path in other.files or ()):
                raise _refused(
                    f"another project's tacit {other.version} lies in {found.parent.absolute()}, "
                    "and its files overlap those of tacit-dp"
                )


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # an archive, or not there
        return []


def _is_named_alike(name: str) -> bool:
    """Whether a folder of metadata is of a version of `tacit`, as installers write its name."""
    alike = name.startswith(("tacit-", "Tacit-", "tacit.", "Tacit."))
    return alike and name.endswith("-info", 6)


def _refused(fault: str) -> ImportError:
    return ImportError(f"{fault}: {_REMEDY}", name="tacit")  # so that `python -m` says one line


def main() -> None:
    """The command `tacit`."""
    try:
        check_alone()
    except ImportError as error:
        sys.stderr.write(f"tacit: {error}\n")
        sys.exit(2)
    from tacit.__main__ import main as command

    command()
