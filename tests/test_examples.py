"""Every program in `examples/` runs, and says what it is there to show."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LIMIT = 240.0  # seconds, on a machine that is busy; each takes a few

# What each prints, among other lines.
IN_THIS_PROCESS = {
    "own_module": r"node 3: certified epsilon [78]\.\d\d of 8\n(.*\n)*"
    r"batch normalisation is refused: .*GroupNorm",
    "own_data": r"node 4: 700 records, certified epsilon (1\.00|0\.\d\d)\n",
    "own_algorithm": r"Push-sum tracking: 60 steps\ncertified epsilon, most: [23]\.\d\d of 3\n"
    r"test accuracy of the worst node: [78]\d\.\d%\nPrivSGP: 60 steps\n",
    "accounting_alone": r"2,000 sampled steps: epsilon at most 2\.1\d; .*\n(.*\n)*"
    r"epsilon 1 needs a noise multiplier of 1\.8\d\d\n",
}
# These leave files behind, which is what they are for; the same ones every time.
WRITE = {
    "patients": (
        {"patients.csv", "patients-sample.csv"},
        r"patients\.csv: 5,000 patients, 525 of them readmitted\n",
    ),
    "hospitals": (
        {"stays.csv", "stays-sample.csv"},
        r"stays\.csv: 20,460 stays, 754 of them ended in death\n",
    ),
}
# With packages that are no part of tacit, which take seconds to load.
WITH_EXTRAS = {
    "lora": (
        ("transformers", "peft"),
        r"trained and sent: 578 of [\d,]+ parameters\n(.*\n)*"
        r"certified epsilon, most: [78]\.\d\d of 8\nfirst test text: class [01]\n",
    )
}
IN_OTHERS = {"several_processes": r"node 3: certified epsilon [34]\.\d\d, by: rank 1\n"}


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty folder, and nothing left of a program afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as when Python is given the file
    yield
    for name in (*IN_THIS_PROCESS, *WRITE):
        sys.modules.pop(name, None)


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *IN_THIS_PROCESS,
        *WITH_EXTRAS,
        *WRITE,
        *IN_OTHERS,
    }


@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_an_example_runs(name, alone, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(IN_THIS_PROCESS[name], capsys.readouterr().out)
    assert list(Path().iterdir()) == []  # what it writes, it removes


@pytest.mark.parametrize("name", WRITE)
def test_an_example_writes_the_same_files_again(name, alone, capsys):
    files, printed = WRITE[name]
    written = []
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert re.search(printed, capsys.readouterr().out)
        written.append({path.name: path.read_bytes() for path in Path().iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == files


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXTRAS)
def test_an_example_with_packages_of_others_runs(name, alone, capsys):
    packages, printed = WITH_EXTRAS[name]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed (the extra huggingface)")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(printed, capsys.readouterr().out)
    assert list(Path().iterdir()) == []  # what it writes, it removes


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_OTHERS)
def test_an_example_of_several_processes_runs(name, tmp_path):
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(IN_OTHERS[name], ended.stdout)
