"""tacit inside NVFlare 2.9, in its own environment: `make .venv-nvflare/.installed`."""

import json
import os
import re
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

pytestmark = pytest.mark.host


def ran(words, folder, **more):
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
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:]
    return ended.stdout


def test_a_site_by_the_runner_of_nvflare(tmp_path):
    cases = Path(__file__).with_name("nvflare_cases.py")
    plain = ("-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--basetemp", tmp_path / "cases")
    said = ran([BIN / "python", "-m", "pytest", cases, *plain], ROOT)
    assert " passed" in said


class Shell:
    """A folder with the files of the page, maybe for the first of its sites alone.

    `seeded` noise lets models be compared.
    """

    def __init__(self, folder, *, seeded, sites=3):
        self.folder = folder

        def fewer(text):
            for site in SITES[sites:]:
                text = text.replace(f', "{site}"', "")
            return re.sub(r"(count = |clients=|sites=|clients |threads )3", rf"\g<1>{sites}", text)

        for block in blocks(PAGE):
            if block.file is not None:
                seed = "delta = 1e-5\n" + "noise_seed = 5\n" * seeded
                code = fewer(block.code).replace("delta = 1e-5\n", seed)
                (folder / block.file).write_text(code, encoding="utf-8")
        self.environment = {
            "HOME": str(folder),
            "PATH": os.pathsep.join([str(BIN), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]),
        }
        self.lines = [
            fewer(line)
            for block in blocks(PAGE)
            for line, _ in typed(block)
            if block.file is None and not line.startswith("pip ")
        ]

    def type(self, *lines):
        return ran(["bash", "-ec", "\n".join(lines)], self.folder, **self.environment)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sites", [2, pytest.param(len(SITES), marks=pytest.mark.slow)])
def test_each_site_has_the_model_of_a_run_of_all_nodes_in_the_simulator(tmp_path, sites):
    shell = Shell(tmp_path, seeded=True, sites=sites)
    made, prepared, simulated = shell.lines[:3]
    other = [
        line.replace("simulated", "others").replace("averaged", "peers") for line in shell.lines
    ]
    both = [f"{simulated} & first=$!", other[2], "wait $first"]
    shell.type(made, prepared, other[1], *both)
    for name, workspace in (("averaged", "simulated"), ("peers", "others")):
        result = tacit.train(tmp_path / f"{name}.toml")
        for node, site in enumerate(SITES[:sites]):
            run = tmp_path / workspace / site / "simulate_job" / "tacit" / "rank-0001"
            (model,) = load_file(run / "nodes.safetensors")["parameters"]
            torch.testing.assert_close(model, result.parameters[node], rtol=0, atol=1e-12)


@pytest.mark.slow  # NVFlare's own start and stop of a POC give up, or hang, on a busy machine
@pytest.mark.timeout(900)
def test_three_sites_and_a_server_that_are_processes_train_and_state_what_it_cost(tmp_path):
    shell = Shell(tmp_path, seeded=False)
    stop = shell.lines.index("nvflare poc stop")
    sites = tmp_path / "poc" / "example_project" / "prod_00"
    begun, submit, waited = shell.lines[3 : stop - 2], shell.lines[stop - 2], shell.lines[stop - 1]
    shell.environment["NVFLARE_POC_WORKSPACE"] = str(tmp_path / "poc")
    try:
        shell.type(shell.lines[0], *begun, submit, waited, shell.lines[-1])
        jobs = (tmp_path / "submitted.txt").read_text().split()
        for job, name in zip(jobs, ("averaged", "peers"), strict=True):
            certified = tacit.train(tmp_path / f"{name}.toml").epsilon
            for node, site in enumerate(SITES):
                run = sites / site / job / "tacit" / "rank-0001"
                shell.type(f"tacit privacy statement {run}")
                (stated,) = json.loads((run / "statement.json").read_text())["nodes"]
                assert (stated["node"], stated["name"]) == (node, site)
                assert stated["epsilon"] == pytest.approx(certified[node], rel=1e-9)
        # A site whose file says something else ends the job, and all are told why.
        other = sites / "site-3" / "local" / "averaged.toml"
        other.write_text(other.read_text().replace("steps = 4", "steps = 5"))
        failed = submit.replace("averaged peers", "averaged")
        shell.type("rm submitted.txt", failed, "nvflare job wait $(cat submitted.txt) || true")
        log = (sites / "server" / "poc_console.log").read_text()
        assert "sites have different experiments, or different models" in log
    finally:  # on a machine that is busy it gives up after half a minute
        shell.type(f"for _ in 1 2 3; do {shell.lines[stop]} && exit 0; done; exit 1")
