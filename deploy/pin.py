"""Writes requirements with hashes from what pip would install, for `pip install --require-hashes`.

    pip install --dry-run --ignore-installed --report cpu.json -c constraints.txt '.[sites]'
    python deploy/pin.py cpu.json cuda.json > deploy/requirements.txt

Of several reports, such as for two builds of PyTorch, every file that one of them names is allowed.
With `--only-in`, only what the last report alone has is written.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path


def pins(reports: list[Path]) -> dict[str, set[str]]:
    """`name==version` to the SHA-256 of the files that the reports name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for report in reports:
        for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
            archive = item["download_info"].get("archive_info")
            if archive is None:  # the checkout itself
                continue
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            version = item["metadata"]["version"].partition("+")[0]
            found[f"{name}=={version}"].add(archive["hashes"]["sha256"])
    return dict(found)


def lines(found: dict[str, set[str]]) -> list[str]:
    """Of a requirements file."""
    return [
        " \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(found[pin]))])
        for pin in sorted(found)
    ]


def main(arguments: list[str]) -> None:
    """Print the requirements."""
    only = "--only-in" in arguments
    reports = [Path(argument) for argument in arguments if argument != "--only-in"]
    found = pins(reports)
    if only:
        known = {pin.partition("==")[0] for pin in pins(reports[:-1])}
        found = {pin: of for pin, of in found.items() if pin.partition("==")[0] not in known}
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
