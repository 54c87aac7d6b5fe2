"""tacit inside NVFlare 2.9, in its own environment: `make .venv-nvflare/.installed`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tacit
from pages import blocks, typed

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-nvflare" / "bin"
PAGE = ROOT / "docs" / "how-to" / "nvflare.md"
SITES = ("site-1", "site-2", "site-3")

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        not BIN.is_dir() and "CI" not in os.environ, reason="make .venv-nvflare/.installed"
    ),
]


def ran(words, folder, limit, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:]
    return ended.stdout


def test_a_site_by_the_runner_of_nvflare(tmp_path):
    cases = Path(__file__).with_name("nvflare_cases.py")
    plain = ("-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--basetemp", tmp_path / "cases")
    said = ran([BIN / "python", "-m", "pytest", cases, *plain], ROOT, 280)
    assert " passed" in said


class Shell:
    """A folder with the files of the page, whose noise is seeded so that models can be compared."""

    def __init__(self, folder):
        self.folder = folder
        for block in blocks(PAGE):
            if block.file is not None:
                code = block.code.replace("delta = 1e-5\n", "delta = 1e-5\nnoise_seed = 5\n")
                (folder / block.file).write_text(code, encoding="utf-8")
        self.environment = {
            "HOME": str(folder),
            "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
            "PATH": os.pathsep.join([str(BIN), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]),
        }
        self.lines = [
            line
            for block in blocks(PAGE)
            for line, _ in typed(block)
            if block.file is None and not line.startswith("pip ")
        ]

    def type(self, *lines, limit=600):
        return ran(["bash", "-ec", "\n".join(lines)], self.folder, limit, **self.environment)

    def experiment(self, name):
        return tacit.train(self.folder / f"{name}.toml")


def same(result, run_of):
    """Whether each site has its node's model of a run of all nodes, and its certified epsilon."""
    for node, site in enumerate(SITES):
        folder = run_of(site)
        (model,) = load_file(folder / "nodes.safetensors")["parameters"]
        torch.testing.assert_close(model, result.parameters[node], rtol=0, atol=1e-12)
        statement = (folder / "statement.json").read_text(encoding="utf-8")
        assert f"{result.epsilon[node]:.6g}"[:5] in statement


def stated(job):
    return [
        f"for each in {' '.join(SITES)}; do tacit privacy statement {job}; done",
    ]


def test_the_page_in_the_simulator(tmp_path):
    shell = Shell(tmp_path)
    poc = shell.lines.index("export NVFLARE_POC_WORKSPACE=$PWD/poc")
    shell.type(*shell.lines[:poc], limit=280)
    shell.type(*stated("simulated/$each/simulate_job/tacit/rank-0001"))
    result = shell.experiment("averaged")
    same(result, lambda site: tmp_path / "simulated" / site / "simulate_job" / "tacit/rank-0001")
    assert shell.lines[-1].startswith("tacit privacy statement simulated/site-1")
    shell.type(shell.lines[-1])


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_page_with_three_sites_and_a_server_as_processes(tmp_path):
    shell = Shell(tmp_path)
    first = shell.lines.index("export NVFLARE_POC_WORKSPACE=$PWD/poc")
    last = shell.lines.index("nvflare poc stop")
    sites = tmp_path / "poc" / "example_project" / "prod_00"
    try:
        shell.type("python jobs.py", *shell.lines[first:last], limit=900)
        jobs = (tmp_path / "submitted.txt").read_text().split()
        for job, name in zip(jobs, ("averaged", "peers"), strict=True):
            shell.type(*stated(f"poc/example_project/prod_00/$each/{job}/tacit/rank-0001"))
            same(
                shell.experiment(name), lambda site, job=job: sites / site / job / "tacit/rank-0001"
            )
        # A site whose file says something else ends the job, and its name is told.
        other = sites / "site-3" / "local" / "averaged.toml"
        other.write_text(other.read_text().replace("steps = 4", "steps = 5"))
        failed = shell.lines[last - 2].replace("averaged peers", "averaged")
        shell.type("rm submitted.txt", failed, "nvflare job wait $(cat submitted.txt) || true")
        log = (sites / "server" / "poc_console.log").read_text()
        assert "sites have different experiments, or different models" in log
    finally:
        shell.type("nvflare poc stop || true")
        shutil.rmtree(tmp_path / "poc", ignore_errors=True)
