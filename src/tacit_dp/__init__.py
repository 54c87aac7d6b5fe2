"""What tells this project's package `tacit` from another one of that name, and starts the command.

The package index has a stranger's project `tacit`, whose files overlap these where both are
installed. This module lies outside `tacit`, so that it is ours whoever's `tacit` is found. It is
small, and imports nothing of either, nor runs it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

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
    # Not `find_spec` alone: it has nothing to say of a module that is being run.
    module = sys.modules.get("tacit") or find_spec("tacit")
    file = getattr(module, "__file__", None) or getattr(module, "origin", None)
    if file is None or not Path(file).is_file():
        raise _refused("tacit/__init__.py of tacit-dp has gone")
    if _OURS not in Path(file).read_text(encoding="utf-8", errors="replace"):
        raise _refused(f"{file} is another project's, and not of tacit-dp")
    for folder in sys.path:
        for found in Path(folder).glob("[Tt]acit[-.]*-info"):
            from importlib.metadata import PathDistribution  # slow to load, and seldom needed

            other = PathDistribution(found)
            if any(path.parts[0] in ("tacit", "tacit.py") for path in other.files or ()):
                raise _refused(
                    f"another project's tacit {other.version} lies in {found.parent.absolute()}, "
                    "and its files overlap those of tacit-dp"
                )


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
