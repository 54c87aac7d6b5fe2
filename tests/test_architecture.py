"""docs/concepts/architecture.md names what exists, and tells the two ways as a run goes them."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import rooms
import tacit
from experiments import write_experiment
from tacit.analysis.statement import check_statement, write_statement
from tacit.config import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
DRAWING = ROOT / "docs" / "images" / "architecture.svg"
NOT_NAMES = ("result.json",)
WAYS = ("## One epsilon", "## One gradient")

_DOTTED = re.compile(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)`")


def named():
    """Every dotted name of the page and of its drawing, relative to `tacit`."""
    page = set(_DOTTED.findall(PAGE.read_text(encoding="utf-8"))) - set(NOT_NAMES)
    drawn = re.findall(r'class="name"[^>]*>([^<]+)<', DRAWING.read_text(encoding="utf-8"))
    assert len(drawn) > 10
    return page | set(drawn)


def resolved(name):
    """What a dotted name stands for; a field of a dataclass is its name."""
    parts = name.removeprefix("tacit.").split(".")
    for length in range(len(parts), 0, -1):
        dotted = ".".join(["tacit", *parts[:length]])
        try:
            value = importlib.import_module(dotted)
        except ModuleNotFoundError as error:
            if error.name != dotted and not dotted.startswith(f"{error.name}."):
                raise
            continue
        for part in parts[length:]:
            fields = getattr(value, "__dataclass_fields__", {})
            value = part if part in fields else getattr(value, part)
        return value
    raise AttributeError(name)


def told(heading):
    """The names in the first column under a heading, in order."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")
    section = section.partition("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(names) > 15
    return names


def test_every_name_exists():
    missing = []
    for name in sorted(named()):
        try:
            resolved(name)
        except AttributeError:
            missing.append(name)
    assert missing == []


def code_of(name):
    """The code of a function, whatever wraps it."""
    function = inspect.unwrap(resolved(name))
    return getattr(function, "__func__", function).__code__


def calls_of(run, names):
    """Which of these functions a run calls, call by call."""
    by_code = {code_of(name): name for name in names}
    calls = []

    def note(frame, event, argument):
        """Asked of each call alone, since nothing that would trace its lines is answered."""
        if frame.f_code in by_code:
            calls.append(by_code[frame.f_code])

    before = sys.gettrace()
    sys.settrace(note)
    try:
        run()
    finally:
        sys.settrace(before)
    return calls


def test_a_run_goes_the_ways_that_the_page_tells(tmp_path):
    """In their order, though what is called often may be called before and after as well."""
    privacy = {"noise_std": None, "noise_seed": None, "epsilon": 3.0, "delta": 1e-4}
    changes = {"task": {"model": "mlp"}, "train": {"steps": 1, "batch": 20}}
    file = write_experiment(tmp_path, privacy=privacy, **changes)

    def run():
        tacit.train(load_config(file), out=tmp_path / "run")
        statement, _ = write_statement(tmp_path / "run")
        check_statement(statement)

    ways = [told(heading) for heading in WAYS]
    calls = calls_of(run, {name for way in ways for name in way})
    for way in ways:
        left = iter(calls)
        missing = next((name for name in way if name not in left), None)  # uses `left` up to it
        assert missing is None, f"{missing} is not called after what stands before it"


def test_the_rooms_are_drawn_from_their_imports():
    """`python tests/rooms.py` draws them anew."""
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.drawn()
    page = PAGE.read_text(encoding="utf-8")
    assert "(../images/rooms.svg)" in page
    table, _, _ = page.partition("## The rooms\n")[2].partition("\nWhere something new goes")
    told = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(told))) == rooms.rooms()


def test_newcomers_are_led_to_the_page():
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/concepts/architecture.md)" in (ROOT / page).read_text(encoding="utf-8")
    assert "(../images/architecture.svg)" in PAGE.read_text(encoding="utf-8")
