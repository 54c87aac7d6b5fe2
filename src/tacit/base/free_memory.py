"""How much memory there is for what is about to be made.

A leaf: imports nothing of tacit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def host_bytes(*, proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Bytes that could be allocated now without swapping, at most; an estimate, not a promise.

    The least of what the system could give (Linux's `MemAvailable`; elsewhere all memory there is)
    and what is left under every memory limit of the process's control groups (cgroup v1 and v2).
    """
    return min([_system_bytes(proc), *_group_bytes(proc, groups)])


def in_words(count: float) -> str:
    """A number of bytes for people, decimal units: `64.3 MB`."""
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {_UNITS[power]}"


def _system_bytes(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_bytes(proc: Path, groups: Path) -> Iterator[int]:
    """What is left under each limit, from the process's group up to the root."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = groups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = groups / "memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = root / path.lstrip("/")
        # A container sees its own group as the root, whatever path it is told.
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                values = [next(iter(_lines(folder / name)), "max") for name in (limit, used)]
                if all(value.isdecimal() for value in values):
                    yield max(0, int(values[0]) - int(values[1]) + _cached(folder))


def _cached(folder: Path) -> int:
    """What a group holds of files and would give up first; its usage counts it."""
    counts = dict(line.split() for line in _lines(folder / "memory.stat"))
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
