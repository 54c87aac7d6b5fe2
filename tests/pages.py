"""Fenced blocks of the pages, and the commands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = [
    # A machine is a folder there: test_deploy.py.
    ROOT / "docs" / "how-to" / "deploy.md",
    # NVFlare has an environment of its own: hosts/test_nvflare.py.
    ROOT / "docs" / "how-to" / "nvflare.md",
]
"""The pages that tests of their own follow to the letter."""

FOLLOWED = [
    ROOT / "README.md",
    *(
        page
        for folder in ("start", "tutorials", "how-to")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
        if page not in ELSEWHERE
    ),
]
"""The pages that `test_docs_literally.py` follows."""

_BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, the file it is to be written to, and its first line's number."""

    language: str
    code: str
    file: str | None
    line: int


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["language"],
            match["code"],
            match["file"],
            text.count("\n", 0, match.start("code")) + 1,
        )
        for match in _BLOCK.finditer(text)
    ]


def name_of(file):
    """Its path within the repository."""
    return str(file.relative_to(ROOT))


def prose(page):
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def typed(block):
    """What a person types at a shell, command by command, each with what is printed below it."""
    if block.language not in ("console", "sh", "text"):
        return []
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        if line.startswith("$ ") or (block.language == "sh" and line.strip()):
            found.append((re.sub(r" +", " ", line.removeprefix("$ ")).strip(), ""))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return [(command, printed.strip()) for command, printed in found]


def plain_words(output):
    """Words of an output without the lines of tables, every number as #."""
    without_lines = re.sub("[\u2500-\u257f]", " ", output)
    return _NUMBER.sub("#", without_lines).split()
