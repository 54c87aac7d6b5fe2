"""Forty defects, planted one at a time, and the tests that find them: `python tests/mutants.py`.

Each is a change of one place of the ledger, the wire, the loop or a refusal, and names the tests
that must fail with it. A defect that nobody finds, or a place that is not there any more, ends the
script with exit code 1. Names of defects, or parts of them, choose some.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 280.0  # seconds of the tests of one defect


class Mutant(NamedTuple):
    """A defect: in this file, `new` in place of `old`, and where the tests are that find it."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    chosen: str = ""  # of these, by pytest's -k


LEDGER, LOG, SHARED, SPENT = (
    f"privacy/ledger/{name}.py" for name in ("ledger", "file", "shared", "spent")
)
OF_LEDGER = "tests/privacy/test_privacy_ledger.py tests/privacy/test_privacy_ledger.py"
OF_SHARED = "tests/privacy/test_privacy_ledger_shared.py"
WIRE, STREAMS, FRAMES, JOURNAL = (
    f"communication/secure/{name}.py" for name in ("wire", "streams", "frames", "journal")
)
OF_WIRE = "tests/communication/secure/test_secure_wire.py"
OF_FRAMES = "tests/communication/secure/test_secure_frames.py"
OF_JOURNAL = "tests/communication/secure/test_secure_journal.py"
LOOP, BUDGET = "training/loop.py", "training/budget.py"
OF_LOOP = "tests/training/test_loop.py tests/training/test_resume.py tests/training/test_budget.py"
CHECKS, RECEIVED, COLOURS = (
    "config/checks.py",
    "communication/received.py",
    "communication/colours.py",
)
OF_CONFIG = "tests/config/test_config.py"

MUTANTS = (
    # The ledger.
    Mutant(
        "a settlement lengthens a block",
        LEDGER,
        'max(first, min(until, entry["until"]))',
        'max(first, entry["until"])',
        OF_LEDGER,
    ),
    Mutant(
        "a settlement ends blocks of every session",
        LEDGER,
        'for at in unsettled.pop(entry["session"], ()):',
        "for at in [at for blocks_of in unsettled.values() for at in blocks_of]:",
        OF_LEDGER,
    ),
    Mutant(
        "a block is settled twice",
        LEDGER,
        'unsettled.pop(entry["session"], ())',
        'unsettled.get(entry["session"], ())',
        OF_LEDGER,
    ),
    Mutant(
        "a repeated step is charged once",
        LEDGER,
        "        change[first] += 1\n",
        "        change[first] = 1\n",
        OF_LEDGER,
    ),
    Mutant(
        "an empty interval may be reserved",
        LEDGER,
        "if not 0 <= first_step < until:",
        "if not 0 <= first_step <= until:",
        OF_LEDGER,
    ),
    Mutant(
        "what stays charged need not have been reserved",
        LEDGER,
        "if charged_until < used_until or lacking:",
        "if charged_until < used_until:",
        OF_LEDGER,
    ),
    Mutant(
        "a session is numbered as the one before",
        LEDGER,
        "self._session = self.snapshot().sessions + 1",
        "self._session = self.snapshot().sessions",
        OF_LEDGER,
    ),
    Mutant(
        "a run is continued under another plan",
        LEDGER,
        "if digest not in (None, runs[0].digest):",
        "if False:",
        OF_LEDGER,
    ),
    Mutant(
        "a run enters a ledger of data with another mechanism",
        LEDGER,
        "!= (digest, texts):",
        "!= (digest, _all_texts(known[run_id].statements)):",
        OF_SHARED,
    ),
    Mutant(
        "bytes without a value may be changed",
        LOG,
        "if len(image) != len(_UNSEALED) or not _image_is_sound(connection, image):",
        "if False:",
        OF_LEDGER,
    ),
    Mutant(
        "an entry's digest is not compared",
        LOG,
        "if (row[0], row[2]) != (place, head):",
        "if row[0] != place:",
        OF_LEDGER,
    ),
    Mutant(
        "the last head need not be signed",
        LOG,
        "if not is_signed(public, _SIGNED + head, signature):",
        "if False:",
        OF_LEDGER,
    ),
    Mutant(
        "digests of records need not be signed",
        LOG,
        "if not is_signed(public, _records_message(connection, log.records), of_records):",
        "if False:",
        OF_SHARED,
    ),
    Mutant(
        "tables that were added are not seen",
        LOG,
        "fetchall() != [(s,) for s in _SCHEMA]:",
        "fetchall()[: len(_SCHEMA)] != [(s,) for s in _SCHEMA]:",
        OF_LEDGER,
    ),
    Mutant(
        "two processes share a ledger",
        LOG,
        '    connection.execute("PRAGMA locking_mode = EXCLUSIVE")\n',
        "",
        OF_LEDGER,
    ),
    # The wire.
    Mutant(
        "a body that was changed on its way is taken",
        FRAMES,
        "if digest_of(body) != digest:",
        "if False:",
        OF_FRAMES,
    ),
    Mutant(
        "a signature is not looked at",
        FRAMES,
        "if reason is not None:",
        "if reason is not None and reason is None:",
        OF_FRAMES,
    ),
    Mutant("a frame of another run is taken", FRAMES, "if of_run != run:", "if False:", OF_FRAMES),
    Mutant(
        "a frame for another site is taken",
        FRAMES,
        "if receiver != own or sender == own:",
        "if sender == own:",
        OF_FRAMES,
    ),
    Mutant(
        "a body may be longer than was agreed",
        FRAMES,
        "        or length > largest\n",
        "",
        OF_FRAMES,
    ),
    Mutant(
        "a frame of another session is taken",
        WIRE,
        "if head.session != self._digest():",
        "if False:",
        OF_WIRE,
    ),
    Mutant(
        "another message leaves in place of one that was sent",
        WIRE,
        "if out.number < out.before and self.streams.sent.get((rank, out.number)) != digest:",
        "if False:",
        f"{OF_WIRE} tests/communication/secure/test_secure_wire_returns.py",
    ),
    Mutant(
        "a fact is stated before it is on the disk",
        WIRE,
        "                self._journal.add_sent([Record(STATED, self.own, 0, key, text.encode())])",
        "                pass",
        "tests/communication/secure/test_secure_wire_returns.py",
        "fact_that_was_stated or on_the_disk",
    ),
    Mutant(
        "frames that are ahead are taken",
        STREAMS,
        "        if number != self.due:\n",
        "        if number < self.due:\n",
        OF_WIRE,
        "harms_itself or not_taken or cut_off",
    ),
    Mutant(
        "a fact is stated twice",
        STREAMS,
        "if (record.rank, record.topic.removeprefix(FACT_TOPIC)) in self.facts:",
        "if False:",
        f"{OF_WIRE} tests/communication/secure/test_secure_hostile.py",
    ),
    Mutant(
        "a beat that is older than the last is heard",
        STREAMS,
        "and not beat.is_after(before):",
        "and False:",
        f"{OF_WIRE} tests/communication/secure/test_secure_wire_returns.py",
        "beat or left_out or cut_off or comes_further",
    ),
    Mutant(
        "what was not acknowledged is forgotten",
        STREAMS,
        "while self.kept and self.kept[0].number < self.acknowledged:",
        "while self.kept and self.kept[0].number <= self.acknowledged:",
        OF_WIRE,
    ),
    # The loop.
    Mutant(
        "a block is reserved after its first step",
        LOOP,
        "if k >= run.reserved and run.ledger is not None:",
        "if k > run.reserved and run.ledger is not None:",
        f"{OF_LOOP} tests/training/test_loop_faults.py",
    ),
    Mutant(
        "one step less is reserved than is made",
        LOOP,
        "run.ledger.reserve(k, run.reserved)",
        "run.ledger.reserve(k, max(k + 1, run.reserved - 1))",
        OF_LOOP,
    ),
    Mutant(
        "a stop by a callback gives steps back",
        LOOP,
        "adaptive = called or (stop and peers.processes > 1)",
        "adaptive = stop and peers.processes > 1",
        f"{OF_LOOP} tests/training/test_hooks.py",
    ),
    Mutant(
        "a model that is not finite is saved",
        LOOP,
        "        if saved:\n            check_finite(run)\n",
        "",
        OF_LOOP,
    ),
    Mutant(
        "a budget is passed by a step",
        BUDGET,
        "        low, high = (middle, high) if fits else (low, middle)\n    return low\n",
        "        low, high = (middle, high) if fits else (low, middle)\n    return high\n",
        OF_LOOP,
    ),
    Mutant(
        "steps that are drawn again cost nothing",
        BUDGET,
        "charged = {node: (*intervals, *again) for node, intervals in before.items()}",
        "charged = {node: tuple(intervals) for node, intervals in before.items()}",
        "tests/training/test_random_allocation.py tests/training/test_budget.py",
    ),
    # Refusals.
    Mutant(
        "a ledger of data with noise that anybody can subtract",
        CHECKS,
        "privacy.noise_seed is not None,\n",
        "False,\n",
        f"{OF_CONFIG} tests/training/test_shared_budgets.py",
    ),
    Mutant(
        "as many may collude as there are nodes",
        CHECKS,
        '        expected = f"must be below the number of nodes, {count}"\n',
        "        return\n",
        f"{OF_CONFIG} tests/training/test_pair_noise.py",
    ),
    Mutant(
        "batches of fixed size under another relation",
        CHECKS,
        'misfixed = fixed and accounted and privacy.relation != "replace-one"',
        "misfixed = False",
        f"{OF_CONFIG} tests/training/test_sampling.py",
    ),
    Mutant(
        "lost messages of secure sums",
        CHECKS,
        'for key in ("drop", "drop_edges", "tolerate"):',
        'for key in ("drop_edges", "tolerate"):',
        f"{OF_CONFIG} tests/training/test_secure_sums.py tests/training/test_faults.py",
    ),
    Mutant(
        "a bound that nothing enforces is certified",
        CHECKS,
        'if options.clip_norm == ASSUMED and (privacy.accounting != "published" or not '
        "privacy.noisy):",
        "if False:",
        f"{OF_CONFIG} tests/training/test_assumed_bounds.py",
    ),
    Mutant(
        "what is private leaves",
        COLOURS,
        "if type(value) is Released or type(value) is Public:",
        "if type(value) is not Summand:",
        "tests/communication/test_colours.py",
    ),
    Mutant(
        "a text of any length is parsed",
        RECEIVED,
        "if len(text) > self.longest:\n            raise PeerError(",
        "if False:\n            raise PeerError(",
        "tests/communication/test_received.py",
    ),
)


def planted(mutant: Mutant, source: Path) -> str | None:
    """Plant a defect in a copy of the source; the text that was there, or None: it is not there."""
    path = source / "tacit" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return None
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return text


def failing(mutant: Mutant, source: Path) -> list[str]:
    """The tests that fail with a defect, up to the first; a run without an end counts as one."""
    chosen = ["-k", mutant.chosen] if mutant.chosen else []
    options = ["-q", "-x", "-m", "not nightly", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *mutant.tests.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"no end within {LIMIT:g} seconds"]
    lines = ended.stdout.splitlines()
    return [line for line in lines if line.startswith(("FAILED", "ERROR"))]


def main() -> int:
    words = sys.argv[1:]
    wanted = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    alive = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        for mutant in wanted:
            before = planted(mutant, source)
            found = [] if before is None else failing(mutant, source)
            how = found[0] if found else "is not there" if before is None else "SURVIVES"
            print(f"{mutant.name}: {how}", flush=True)
            if not found:
                alive.append(mutant.name)
            if before is not None:
                (source / "tacit" / mutant.file).write_text(before, encoding="utf-8")
    print(f"{len(wanted) - len(alive)} of {len(wanted)} are found")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
