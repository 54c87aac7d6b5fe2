"""Draws the rooms of the house from their imports: `python tests/rooms.py` writes the picture.

A room is a folder or a file of `src/tacit`, a floor below the lowest that imports it. A line leads
to what a room imports; where a way over other rooms leads there as well, it is left out.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tacit"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

_WIDTH, _HEIGHT, _GAP, _BETWEEN, _EDGE = 118, 32, 14, 34, 10

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="title description">
  <title id="title">The rooms of the house</title>
  <desc id="description">Floors from above: {floors}.</desc>
  <style>
    text {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; \
fill: #111; text-anchor: middle; }}
    rect {{ fill: #fff; stroke: #111; stroke-width: 1.2; }}
    path {{ fill: none; stroke: #777; stroke-width: 1; }}
  </style>
  <rect width="{width}" height="{height}" style="stroke: none"/>
"""


@cache
def tree_of(path):
    """The syntax of a file, which several tests look through."""
    return ast.parse(path.read_text(encoding="utf-8"))


def rooms():
    """Every folder of the package, and every file beside them."""
    files = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    return sorted(files | {path.parent.name for path in SOURCE.glob("*/__init__.py")})


def imported_names(tree):
    """What the statements of a module import, anywhere in it, as `module.name`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def imported(room):
    """The rooms that the files of a room import, anywhere in them."""
    folder = SOURCE / room
    names = set()
    for path in folder.rglob("*.py") if folder.is_dir() else [SOURCE / f"{room}.py"]:
        names |= set(imported_names(tree_of(path)))
    used = {name.split(".")[1] for name in names if name.startswith("tacit.")}
    return used & set(rooms()) - {room}


def drawn():
    """The picture, as SVG."""
    edges = {room: imported(room) for room in rooms()}

    @cache
    def below(room):
        return edges[room].union(*map(below, edges[room]))

    @cache
    def depth(room):
        return 1 + max((depth(user) for user in edges if room in edges[user]), default=-1)

    lines = {
        room: sorted(used - set().union(*map(below, used))) for room, used in sorted(edges.items())
    }
    floors = [[room for room in edges if depth(room) == floor] for floor in range(len(edges))]
    floors = [floor for floor in floors if floor]
    width = 2 * _EDGE + max(map(len, floors)) * (_WIDTH + _GAP) - _GAP
    height = 2 * _EDGE + len(floors) * (_HEIGHT + _BETWEEN) - _BETWEEN
    middles = {}
    for row, floor in enumerate(floors):
        # From left to right as those above that lead to them.
        above = {
            room: [x for other, (x, _) in middles.items() if room in lines[other]] or [width / 2]
            for room in floor
        }
        floor.sort(key=lambda room: (sum(above[room]) / len(above[room]), room))
        for column, room in enumerate(floor):
            from_middle = (column - (len(floor) - 1) / 2) * (_WIDTH + _GAP)
            y = _EDGE + row * (_HEIGHT + _BETWEEN) + _HEIGHT / 2
            middles[room] = (width / 2 + from_middle, y)
    words = "; ".join(", ".join(floor) for floor in floors)
    parts = [_HEAD.format(width=width, height=height, floors=words)]
    for room, used in lines.items():
        x, y = middles[room]
        for to_x, to_y in map(middles.__getitem__, used):
            start, end = y + _HEIGHT / 2, to_y - _HEIGHT / 2
            half = (start + end) / 2
            curve = f"M{x:g} {start:g} C{x:g} {half:g} {to_x:g} {half:g} {to_x:g} {end:g}"
            parts.append(f'  <path d="{curve}"/>\n')
    for room, (x, y) in sorted(middles.items()):
        corner = f'x="{x - _WIDTH / 2:g}" y="{y - _HEIGHT / 2:g}"'
        parts.append(f'  <rect {corner} width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>\n')
        parts.append(f'  <text x="{x:g}" y="{y + 4:g}">{room}</text>\n')
    return "".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
