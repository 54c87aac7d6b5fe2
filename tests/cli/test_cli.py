"""The command line: exit codes, one line for each wrong input, and what is printed and left."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments import (
    experiment,
    strict_json,
    tacit,
    tree,
    wait_tacit,
    write_experiment,
    write_module,
)
from tacit.algorithms import ALGORITHMS
from tacit.cli.signals import stop_signals
from tacit.config import load_config
from tacit.training.prepare import prepare
from tacit.training.run_folder.predictor import load_model

RUN_FILES = {
    "config.toml",
    "ledger.key",
    "ledger.sqlite",
    "lock",
    "metrics.jsonl",
    "model.safetensors",
    "nodes.safetensors",
    "report.html",
    "result.json",
    "status.json",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(folder):
    """The base experiment, in the current directory; without a seed there is nothing to warn of."""
    return write_experiment(folder, privacy={"noise_seed": None})


def sets(*overrides):
    return [word for override in overrides for word in ("--set", override)]


def metrics(run):
    return [strict_json(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# What is asked for is done.


def test_a_run_leaves_files_that_agree_with_each_other(finished):
    checkpoints = {f"checkpoint-{step:08d}.safetensors" for step in (5, 6)}
    assert tree(finished) == RUN_FILES | checkpoints
    assert load_config(finished / "config.toml") == load_config(experiment())

    nodes = load_file(finished / "nodes.safetensors")["parameters"]
    assert nodes.shape == (4, 650)
    fresh = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fresh.load_state_dict(load_file(finished / "model.safetensors"))
    vector = torch.nn.utils.parameters_to_vector(fresh.parameters())
    torch.testing.assert_close(vector.detach(), nodes.mean(0), rtol=0, atol=1e-7)

    result = strict_json((finished / "result.json").read_text())
    last = metrics(finished)[-1]
    assert (result["status"], result["steps"], last["step"]) == ("done", 6, 6)
    assert result["test_accuracy"] == last["test_accuracy"]
    assert result["bytes_sent"] == last["bytes_sent"]
    assert last["epsilon"] == {"max": max(result["epsilon"]), "min": min(result["epsilon"])}
    saved = load_file(finished / "checkpoint-00000006.safetensors")
    assert torch.equal(saved["x"] / saved["w"][:, None], nodes)
    page = (finished / "report.html").read_text()
    assert "PrivSGP" in page
    assert "seeded noise" in page

    test = prepare(load_config(experiment())).test
    assert test is not None
    right = load_model(finished)(test.inputs).argmax(1) == test.targets
    assert result["test_accuracy"]["consensus"] == pytest.approx(right.float().mean().item())


def test_train_prints_the_result_as_json(file, folder):
    answer = tacit("train", file, "--out", folder / "run", "--json")
    assert answer.err == ""
    content = answer.json
    assert content.pop("out") == str(folder / "run")
    assert content == strict_json((folder / "run" / "result.json").read_text())
    assert content["private"] is True
    assert len(content["epsilon"]) == len(content["claimed_epsilon"]) == 4
    assert set(content["test_accuracy"]) == {"mean", "worst", "consensus", "baseline"}
    assert content["steps"] == 6
    assert content["bytes_sent"] > 0


def test_an_infinite_claim_is_null_in_json_and_said_to_be_infinite(file, folder):
    # mu_k is about 1400, and Dyn-D2P's formula holds e^(mu_k^2)
    overrides = sets("algorithm.name=dyn-d2p", "privacy.noise_std=1e-5", "train.steps=2")
    content = tacit("train", file, "--out", folder / "run", "--json", *overrides).json
    assert content["claimed_epsilon"] == [None] * 4
    assert content["claim"]["infinite"] is True
    later = [metric for metric in metrics(folder / "run") if metric["step"]]
    assert later
    assert all(metric["claimed_epsilon"]["max"] is None for metric in later)
    assert tacit("plan", file, "--json", *overrides).json["per_node"][0]["claimed"] is None


def test_a_quiet_run_prints_its_new_folder_and_nothing_else(file):
    answer = tacit("train", file, "--quiet")
    assert (answer.code, answer.err) == (0, "")
    run = Path(answer.out.removesuffix("\n"))
    assert run.parent == Path("runs")
    assert tree(run) > RUN_FILES


def test_train_shows_progress_and_a_table(file, folder):
    answer = tacit("train", file, "--out", folder / "run")
    assert answer.code == 0
    assert "step 1/6" in answer.err
    assert "step 6/6" in answer.err
    for wanted in ("test accuracy", "epsilon certified", "claimed", "report.html"):
        assert wanted in answer.out
    assert "NOT PRIVATE" not in answer.out


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["privacy.noise_seed=1"], "seeded noise: anyone who knows the seed can subtract it"),
        (["privacy.accounting=none"], "the noise is not accounted, and nothing is certified"),
        (["privacy.epsilon=none"], "no noise is added"),
        (["algorithm.name=sgp"], "sgp adds no noise"),
        (["algorithm.name=d-psgd", "topology.graph=ring"], "d-psgd adds no noise"),
        (["algorithm.name=choco-sgd", "topology.graph=ring"], "choco-sgd adds no noise"),
        (["algorithm.name=fedavg", "topology.graph=star"], "fedavg adds no noise"),
    ],
)
@pytest.mark.parametrize("how", [[], ["--quiet"], ["--json"]])
def test_a_run_that_is_not_private_says_so(folder, overrides, reason, how):
    """On the screen, however quiet it is to be, in the result, on the page, and in a plan."""
    given = {"noise_std": 0.05} if "accounting" in overrides[0] else {"noise_std": None}
    file = write_experiment(folder, privacy={"noise_seed": None, **given}, train={"steps": 2})
    warning = f"this run is NOT PRIVATE: {reason}"
    answer = tacit("train", file, "--out", folder / "run", *how, *sets(*overrides))
    assert answer.code == 0
    assert answer.err.count(f"warning: {warning}\n") == 1
    assert how or f"NOT PRIVATE: {reason}" in " ".join(answer.out.split())
    content = strict_json((folder / "run" / "result.json").read_text())
    assert content["private"] is False
    assert content["not_private_reason"] == reason
    assert content["warnings"][0] == warning
    assert f"NOT PRIVATE: {reason}" in (folder / "run" / "report.html").read_text()
    assert tacit("plan", file, "--json", *sets(*overrides)).json["warnings"][0] == warning
    assert f"warning: {warning}\n" in tacit("plan", file, *sets(*overrides)).out


def test_a_private_run_warns_of_nothing(file, folder):
    answer = tacit("train", file, "--out", folder / "run", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json["private"] is True
    assert answer.json["warnings"] == []


def test_plan_tells_what_the_run_will_report_and_writes_nothing(file, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    before = tree(folder)
    planned = tacit("plan", file, "--json").json
    shown = tacit("plan", file)
    assert tree(folder) == before
    assert (shown.code, shown.err) == (0, "")
    for wanted in ("PrivSGP", "650", "certified", "exponential"):
        assert wanted in shown.out
    ran = tacit("train", file, "--out", folder / "run", "--json").json
    assert [node["epsilon"] for node in planned["per_node"]] == ran["epsilon"]
    assert [node["claimed"] for node in planned["per_node"]] == ran["claimed_epsilon"]
    assert [node["records"] for node in planned["per_node"]] == ran["records"]
    assert planned["bytes_per_step"] * 6 == ran["bytes_sent"]
    assert planned["mechanism"] == ran["mechanism"]


def test_algorithms_are_listed_with_their_options():
    rows = tacit("algorithms", "--json").json
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert all(row["options"].keys() >= {"learning_rate", "clip"} for row in rows)
    table = tacit("algorithms")
    assert (table.code, table.err) == (0, "")
    assert "privsgp" in table.out


def test_evaluate_scores_the_consensus_model(finished):
    score = tacit("evaluate", finished, "--json").json
    result = strict_json((finished / "result.json").read_text())
    assert score["accuracy"] == pytest.approx(result["test_accuracy"]["consensus"], abs=1e-6)
    assert score["loss"] == pytest.approx(result["test_loss"]["consensus"], rel=1e-5)
    assert (score["dataset"], score["records"]) == ("digits", 360)
    line = tacit("evaluate", finished)
    assert line.code == 0
    accuracy, baseline = score["accuracy"], score["baselines"]["accuracy"]
    assert line.out.startswith(
        f"digits: accuracy {100 * accuracy:.1f}\u202f%, baseline {100 * baseline:.1f}\u202f%; loss "
    )


def test_evaluate_on_records_of_the_users_own(finished, folder):
    name = write_module(
        folder,
        """
        def blank():
            return (torch.zeros(5, 1, 8, 8), torch.arange(5)), None
        """,
    )
    score = tacit("evaluate", finished, "--data", f"{name}:blank", "--json").json
    bias = load_file(finished / "model.safetensors")["1.bias"]
    expected = torch.nn.functional.cross_entropy(bias.expand(5, 10), torch.arange(5))
    assert score["records"] == 5
    assert score["accuracy"] == pytest.approx(0.2 * float(bias.argmax() < 5))
    assert score["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_report_writes_the_page_anew(run):
    (run / "report.html").unlink()
    answer = tacit("report", run)
    assert (answer.code, answer.out) == (0, f"{run / 'report.html'}\n")
    assert "<html" in (run / "report.html").read_text()


def test_help_is_help_with_and_without_being_asked():
    asked, bare = tacit("--help"), tacit()
    assert asked == bare
    assert (asked.code, asked.err) == (0, "")
    for command in ("train", "plan", "algorithms", "evaluate", "report"):
        assert command in asked.out
        assert tacit(command, "--help").code == 0


# What is wrong is answered with one line, and leaves nothing behind.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trai", "Did you mean 'train'?"),
        ("train", "Missing argument 'FILE'"),
        ("train experiment.toml --resume", "--out"),
        ("train experiment.toml --set train.steps", "section.key=value"),
        ("plan experiment.toml --set privacy.epsilonn=3", "did you mean 'epsilon'?"),
        ("train experiment.toml --set train.batch=1000", "at most 360"),
        ("plan experiment.toml --set task.model=os:getcwd", "must return a torch.nn.Module"),
        ("train experiment.toml --set task.dataset=no_module:load", "there is no module"),
        ("evaluate experiment.toml", "config.toml is missing"),
        ("report .", "result.json"),
    ],
)
def test_a_wrong_command_line_is_refused(file, folder, words, said):
    """One of each kind; `test_cli_wrong_inputs.py` has them all."""
    before = tree(folder)
    answer = tacit(*words.split())
    assert answer.code == 2
    assert said in answer.refusal
    assert tree(folder) == before


def test_an_output_that_cannot_be_made_is_refused(file, folder):
    (folder / "taken").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    before = tree(folder)
    said = {
        "taken": "exists already",
        "experiment.toml": "exists already",
        "dangling": "exists already",
        "experiment.toml/run": "cannot be written",
        "experiment.toml/deeper/run": "cannot be written",
        "n" * 300: "cannot be written",
    }
    for out, reason in said.items():
        answer = tacit("train", file, "--out", out)
        assert answer.code == 2
        assert reason in answer.refusal
        assert tree(folder) == before


def test_a_budget_that_cannot_be_met_is_refused_with_3(file, folder):
    before = tree(folder)
    overrides = sets("privacy.epsilon=0.5", "privacy.noise_std=0.01")
    for command in ("train", "plan"):
        answer = tacit(command, file, *overrides)
        assert answer.code == 3
        assert "above the budget of 0.5" in answer.refusal
        assert tree(folder) == before


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ("torch.zeros(5, 1, 8, 9), torch.arange(5)", "the model takes [1, 8, 8]"),
        ("torch.zeros(5, 64), torch.arange(5)", "the model takes [1, 8, 8]"),
        ("torch.zeros(5, 1, 8, 8), torch.arange(5) + 8", "10"),  # it has no output for a label
    ],
)
def test_evaluate_refuses_records_that_the_model_does_not_take(finished, folder, records, said):
    name = write_module(folder, f"def other():\n    return ({records}), None\n")
    answer = tacit("evaluate", finished, "--data", f"{name}:other")
    assert answer.code == 2
    assert said in answer.refusal


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", None),
        ("result.json", b'{"model": '),
        ("result.json", b"\xff"),
        ("config.toml", b"[task"),
        ("model.safetensors", None),
        ("model.safetensors", b"no tensors"),
    ],
)
def test_evaluate_refuses_a_damaged_run(run, name, content):
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    answer = tacit("evaluate", run)
    assert answer.code == 2
    assert str(run) in answer.refusal


def test_a_result_of_a_later_version_is_answered_alike_by_all_commands(run):
    later = {**strict_json((run / "result.json").read_text()), "format_version": 99}
    (run / "result.json").write_text(json.dumps(later))
    commands = [("report",), ("evaluate",), ("privacy", "statement"), ("audit",)]
    answers = [tacit(*words, run) for words in commands]
    assert {answer.code for answer in answers} == {2}
    (line,) = {answer.refusal for answer in answers}
    expected = "this version of tacit reads format 1: use the version that wrote it"
    assert line.strip() == f"tacit: {run}/result.json: format_version = 99: {expected}"


def test_evaluate_says_what_to_do_about_models_and_data_that_were_objects(tmp_path):
    import tacit as library

    sections = experiment(
        task={"dataset": None, "model": "linear", "outputs": 2}, train={"steps": 1}
    )
    nodes = [(torch.randn(6, 3), torch.tensor([0, 1] * 3)) for _ in range(2)]
    library.train(sections, nodes=nodes, out=tmp_path / "data")
    answer = tacit("evaluate", tmp_path / "data")
    assert answer.code == 2
    assert "name a data set" in answer.refusal
    library.train(sections, nodes=nodes, model=torch.nn.Linear(3, 2), out=tmp_path / "model")
    answer = tacit("evaluate", tmp_path / "model")
    assert answer.code == 2
    assert "load model.safetensors into it" in answer.refusal


# What the process itself does.


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def hangup():
    """SIGHUP as it is by default, whatever these tests were started by."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.surroundings
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("first", SIGNALS)
def test_the_first_signal_asks_for_a_stop_and_the_second_interrupts(first):
    before = list(map(signal.getsignal, SIGNALS))
    with stop_signals() as requested:
        assert not requested()
        signal.raise_signal(first)
        assert requested()
        if first == signal.SIGHUP:  # system and shell may each send one
            signal.raise_signal(first)
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(first)
    assert list(map(signal.getsignal, SIGNALS)) == before


@pytest.mark.surroundings
@pytest.mark.usefixtures("hangup")
def test_a_hangup_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals() as requested:
        signal.raise_signal(signal.SIGHUP)
        assert not requested()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.surroundings
def test_an_interrupt_before_the_first_step_exits_with_130(file, folder):
    name = write_module(
        folder,
        """
        import signal

        def interrupted():
            # A process that was started in the background ignores the signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)
        """,
    )
    before = tree(folder)
    answer = tacit("train", file, *sets(f"task.dataset={name}:interrupted"))
    assert answer.code == 130
    assert "interrupted" in answer.refusal
    assert tree(folder) == before


def test_a_defect_exits_with_1_and_asks_for_a_report(file, monkeypatch):
    def broken(job):
        raise ZeroDivisionError("one line\nanother")

    monkeypatch.setattr("tacit.cli.tables.plan_document", broken)
    answer = tacit("plan", file, "--json")
    assert answer.code == 1
    assert "a defect of ours: ZeroDivisionError: one line another" in answer.refusal
    monkeypatch.setenv("TACIT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        tacit("plan", file, "--json")


@pytest.mark.surroundings
@pytest.mark.process
def test_exit_codes_of_real_processes(file, folder):
    answers = [
        wait_tacit("train", file, "--out", folder / "run", "--quiet"),
        wait_tacit("plan", file, *sets("privacy.epsilon=0.4")),
    ]
    assert [answer.code for answer in answers] == [0, 3]
    assert (answers[0].out, answers[0].err) == (f"{folder / 'run'}\n", "")
    assert tree(folder / "run") > RUN_FILES
    assert "above the budget" in answers[1].refusal


def test_a_plan_is_what_a_run_would_prepare(file):
    planned = tacit("plan", file, "--json").json
    job = prepare(load_config(file))
    assert planned["parameters"] == job.plan.parameters
    assert planned["contraction"] == job.plan.contraction
    assert planned["warnings"] == json.loads(json.dumps(job.plan.warnings))
