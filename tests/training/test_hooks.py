"""Callbacks: what they are told, and that a stop of theirs leaves the whole plan charged."""

import logging
import re
from functools import partial

import pytest
import torch

import tacit
from communication.cluster import crew as crews
from experiments import experiment, strict_json, write_experiment
from experiments import tacit as command_line
from tacit.analysis.ledger_report import ledger_document
from tacit.analysis.statement import check_statement, write_statement
from tacit.callbacks import Callback
from tacit.errors import InputError
from tacit.privacy.ledger.ledger import Ledger, read_ledger, step_runs
from tacit.report.documents.metrics import PrivateMeasurement, PublicMeasurement
from tacit.training import loop
from tacit.training.hooks import Progress

PRIVATE = {"noise_std": None, "noise_seed": None, "epsilon": 2.0}
EVERY = {"evaluate_every": 1, "checkpoint_every": 2}
STEPS = 6


class Told(Callback):
    """Writes down what it is told."""

    def __init__(self):
        self.order: list[str] = []
        self.rows: list[PublicMeasurement] = []
        self.progress: list[Progress] = []

    def on_start(self, plan):
        self.order.append("start")

    def on_metrics(self, metrics):
        self.order.append(f"metrics {metrics.step}")
        self.rows.append(metrics)

    def on_step(self, progress):
        self.order.append(f"step {progress.step}")
        self.progress.append(progress)

    def on_end(self, result):
        self.order.append(f"end {result.status}")

    def on_error(self, error):
        self.order.append(f"error {type(error).__name__}")


class StopAt(Callback):
    """Asks for a stop at a step."""

    def __init__(self, step):
        self.step = step

    def on_metrics(self, metrics):
        return metrics.step >= self.step


class Failing(Callback):
    """Fails in one of its methods."""

    def __init__(self, method, step=0):
        self.method, self.step = method, step

    def _maybe(self, method, step=0):
        if method == self.method and step >= self.step:
            raise ValueError("no disk\nat all")

    def on_start(self, plan):
        self._maybe("on_start")

    def on_metrics(self, metrics):
        self._maybe("on_metrics", metrics.step)

    def on_step(self, progress):
        self._maybe("on_step", progress.step)

    def on_end(self, result):
        self._maybe("on_end", STEPS)


def sections(**changes):
    return experiment(**{"privacy": PRIVATE, "train": EVERY, **changes})


def charged(ledger):
    """The charged steps of the first node, as (first, until, times)."""
    (run,) = read_ledger(ledger).runs
    return [tuple(steps) for steps in step_runs(next(iter(run.charged.values())))]


def whole_plan(result):
    return [node.epsilon for node in result.plan.nodes]


# What they are told.


def test_callbacks_are_told_in_order_and_what_is_public_alone():
    told = Told()
    result = tacit.train(sections(), callbacks=[told])
    pairs = [word for step in range(1, STEPS) for word in (f"metrics {step}", f"step {step}")]
    assert told.order == ["start", "metrics 0", *pairs, "step 6", "metrics 6", "end done"]
    assert set(PublicMeasurement.model_fields) == {*told.rows[-1].model_dump()}
    private = {*PrivateMeasurement.model_fields} - {"step"}
    assert private > {"train_loss", "augmented_lagrangian"}
    assert not private & set(PublicMeasurement.model_fields)
    for name in ("test_loss", "test_accuracy"):
        values = [row.model_dump()[name] for row in told.rows]
        assert values == result.metrics[name]
    assert result.metrics["train_loss"][-1] is not None


def test_without_test_records_a_callback_is_told_no_loss():
    """The terminal shows that of the training records; a callback may send it anywhere."""
    digits = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    nodes = [(digits[:6], (digits[:6, 0] > 0).long()), (digits[6:], (digits[6:, 0] > 0).long())]
    told = Told()
    result = tacit.train(
        experiment(task={"dataset": None, "outputs": 2}), nodes=nodes, callbacks=[told]
    )
    assert result.metrics["train_loss"][-1] is not None
    assert [moment.loss for moment in told.progress] == [None] * STEPS


def test_what_is_no_callback_is_refused():
    for wrong, hint in ((print, ""), (Told, ": make one, by calling the class")):
        with pytest.raises(InputError, match="callbacks") as caught:
            tacit.train(sections(), callbacks=[wrong])  # type: ignore[list-item]
        assert str(caught.value).endswith(f"Callback objects{hint}")
    with pytest.raises(InputError, match="must be a list"):
        tacit.train(sections(), callbacks=3)  # type: ignore[arg-type]


# A stop.


def test_a_stop_by_a_callback_leaves_the_whole_plan_charged(tmp_path):
    run = tmp_path / "run"
    result = tacit.train(sections(), out=run, callbacks=[StopAt(3)])
    assert (result.status, result.steps) == ("stopped", 3)
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    # Everything that states an epsilon states that of the plan, and why.
    assert list(result.epsilon) == whole_plan(result)
    assert [row["max"] for row in result.metrics["epsilon"]][-1] == max(whole_plan(result))
    (first, *_) = ledger_document(run / "ledger.sqlite").nodes
    assert first.epsilon == pytest.approx(result.epsilon[0])
    content = strict_json((run / "result.json").read_text())
    assert content["epsilon"] == pytest.approx(whole_plan(result))
    assert content["charged_steps"] == STEPS
    assert "by a callback (StopAt)" in content["message"]
    assert "all 6 planned steps are charged" in content["message"]
    assert "all 6 planned steps are charged" in (run / "report.html").read_text()
    write_statement(run)
    assert check_statement(run / "statement.json").epsilon == pytest.approx(max(whole_plan(result)))
    statement = strict_json((run / "statement.json").read_text())
    assert any("epsilon is that of the whole plan" in text for text in statement["assumptions"])
    assert not any("that was not decided by" in text for text in statement["assumptions"])
    answer = command_line("privacy", "ledger", run / "ledger.sqlite")
    assert "all 6 steps are charged" in " ".join(answer.out.split())


class Leaving(Callback):
    """Ends the program in the middle of a run, because of what it saw."""

    def __init__(self, error):
        self.error = error

    def on_metrics(self, metrics):
        if metrics.step >= 2:
            raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_ends_the_program_leaves_the_whole_plan_charged(error, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(type(error)):
        tacit.train(sections(), out=run, callbacks=[Leaving(error)])
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    assert list(run.glob("checkpoint-*"))


def test_a_number_that_counts_as_true_is_a_stop():
    class Above(Callback):
        def on_metrics(self, metrics):
            return torch.tensor(metrics.step) >= 2

    result = tacit.train(sections(), callbacks=[Above()])
    assert (result.status, result.steps) == ("stopped", 2)


def test_a_model_that_fails_in_the_middle_leaves_the_whole_plan_charged(tmp_path, monkeypatch):
    """Whether and when it fails depends on records and on what was released."""
    job = loop_job(sections())
    definition = job.config.algorithm.definition
    step = definition.step

    def failing(state, k, *more):
        if k == 2:
            raise RuntimeError("a logarithm of a negative number")
        return step(state, k, *more)

    monkeypatch.setitem(vars(definition), "step", failing)
    with pytest.raises(RuntimeError, match="logarithm"):
        loop.execute(job, out=tmp_path / "run")
    assert charged(tmp_path / "run" / "ledger.sqlite") == [(0, STEPS, 1)]


def test_a_stop_by_the_user_is_charged_what_was_made(tmp_path):
    job = loop_job(sections())
    asked = iter([False, False, True])
    result = loop.execute(job, out=tmp_path / "run", should_stop=lambda: next(asked))
    assert charged(tmp_path / "run" / "ledger.sqlite") == [(0, 3, 1)]
    assert max(result.epsilon) < max(whole_plan(result))
    content = strict_json((tmp_path / "run" / "result.json").read_text())
    assert "charged_steps" not in content
    write_statement(tmp_path / "run")
    statement = strict_json((tmp_path / "run" / "statement.json").read_text())
    assert any("that was not decided by" in text for text in statement["assumptions"])


def loop_job(experiment_sections):
    from tacit.config import load_config
    from tacit.training.prepare import prepare

    return prepare(load_config(experiment_sections))


def test_a_run_goes_on_after_such_a_stop_with_the_steps_that_it_has_paid_for(tmp_path):
    run = tmp_path / "run"
    tacit.train(sections(), out=run, callbacks=[StopAt(3)])
    again = tacit.train(sections(), out=run, resume=True, callbacks=[StopAt(4)])
    assert (again.status, again.steps) == ("stopped", 4)
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    resumed = tacit.train(sections(), out=run, resume=True)
    assert (resumed.status, resumed.steps) == ("done", STEPS)
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    assert list(resumed.epsilon) == whole_plan(resumed)
    assert "charged_steps" not in strict_json((run / "result.json").read_text())


def test_the_same_models_come_of_a_run_that_a_callback_paused(tmp_path):
    seeded = experiment(train=EVERY)
    run = tmp_path / "run"
    tacit.train(seeded, out=run, callbacks=[StopAt(3)])
    resumed = tacit.train(seeded, out=run, resume=True)
    assert torch.equal(resumed.parameters, tacit.train(seeded).parameters)


def test_a_user_who_stops_a_resumed_run_gets_nothing_back(tmp_path):
    """Else a stop by looking could be had for less: resume, and press Ctrl-C at once."""
    run = tmp_path / "run"
    tacit.train(sections(), out=run, callbacks=[StopAt(3)])
    result = loop.execute(loop_job(sections()), out=run, resume=True, should_stop=lambda: True)
    assert (result.status, result.steps) == ("stopped", 4)
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    assert list(result.epsilon) == whole_plan(result)
    assert result.message is not None
    assert "keeps all 6 steps charged" in result.message
    assert tacit.train(sections(), out=run, resume=True).status == "done"
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]


def test_steps_that_a_killed_session_may_have_sent_are_charged_again(tmp_path):
    run = tmp_path / "run"
    tacit.train(sections(), out=run, callbacks=[StopAt(3)])
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        ledger.use()  # as a session that is killed after it
    result = tacit.train(sections(), out=run, resume=True)
    assert (result.status, result.steps) == ("budget-exhausted", 3)
    # Without a budget, the repeat is made, and paid.
    given = {"noise_std": 0.05, "noise_seed": None}
    other = tmp_path / "other"
    tacit.train(sections(privacy=given), out=other, callbacks=[StopAt(3)])
    with Ledger.open(other / "ledger.sqlite", digest=None) as ledger:
        ledger.use()
    assert tacit.train(sections(privacy=given), out=other, resume=True).status == "done"
    assert charged(other / "ledger.sqlite") == [(0, 3, 1), (3, STEPS, 2)]


def test_the_ledger_of_the_data_keeps_the_whole_plan_too(tmp_path):
    folder = tmp_path / "ledgers"
    privacy = {**PRIVATE, "ledger": str(folder), "ledger_epsilon": 2.0}
    run = tmp_path / "run"
    tacit.train(sections(privacy=privacy), out=run, callbacks=[StopAt(3)])
    files = sorted(folder.glob("data-*.sqlite"))
    assert [charged(file) for file in files] == [[(0, STEPS, 1)]]
    resumed = tacit.train(sections(privacy=privacy), out=run, resume=True)
    assert (resumed.status, resumed.steps) == ("done", STEPS)
    assert [charged(file) for file in files] == [[(0, STEPS, 1)]]


def test_without_accounting_a_stop_is_a_stop():
    plain = experiment(
        algorithm={"name": "sgp"}, privacy={"noise_std": None, "noise_seed": None}, train=EVERY
    )
    result = tacit.train(plain, callbacks=[StopAt(2)])
    assert (result.status, result.steps) == ("stopped", 2)
    assert result.message == "by a callback (StopAt)"
    assert set(result.epsilon) == {None}


# A failure.


@pytest.mark.parametrize("method", ["on_metrics", "on_step"])
def test_a_callback_that_fails_ends_the_run_with_checkpoint_and_ledger(method, tmp_path):
    run, told = tmp_path / "run", Told()
    with pytest.raises(InputError) as caught:
        tacit.train(sections(), out=run, callbacks=[Failing(method, 3), told])
    assert str(caught.value) == (
        f"callbacks = 'Failing.{method}': must not fail: ValueError: no disk at all; the run ended "
        "after step 3: what was sent is in the ledger, and the last checkpoint is "
        "checkpoint-00000003.safetensors"
    )
    assert told.order[-1] == "error InputError"
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]
    assert not (run / "result.json").exists()
    assert tacit.train(sections(), out=run, resume=True).status == "done"
    assert charged(run / "ledger.sqlite") == [(0, STEPS, 1)]


def test_a_callback_that_fails_at_the_start_or_at_the_end(tmp_path):
    with pytest.raises(InputError, match=r"Failing.on_start': must not fail"):
        tacit.train(sections(), out=tmp_path / "start", callbacks=[Failing("on_start")])
    assert charged(tmp_path / "start" / "ledger.sqlite") == []
    for method in ("on_end", "on_metrics"):
        out = tmp_path / method
        with pytest.raises(InputError, match=rf"Failing.{method}': must not fail"):
            tacit.train(sections(), out=out, callbacks=[Failing(method, STEPS)])
        assert strict_json((out / "result.json").read_text())["status"] == "done"


# Logging.


def test_what_is_logged(caplog, tmp_path):
    logger = logging.getLogger("tacit")
    assert logger.handlers == []
    with caplog.at_level(logging.INFO, logger="tacit"):
        result = tacit.train(sections(), out=tmp_path / "run", callbacks=[StopAt(2)])
    said = [record.getMessage() for record in caplog.records if record.name == "tacit"]
    assert said[0] == "reading the records of 4 nodes"
    (made,) = [line for line in said if line.startswith("plan made")]
    assert made.startswith("plan made: privsgp on digits, 4 nodes, 6 steps, epsilon ")
    assert "the run begins at step 0 of 6" in said
    assert "step 2: checkpoint written" in said
    assert said[-1] == "the run is stopped after step 2 of 6"
    # Every score that is logged is a public one.
    rows = zip(*(result.metrics[name] for name in ("test_loss", "test_accuracy")), strict=True)
    public = {f"{scores['mean']:.4f}" for row in rows for scores in row}
    logged = [word.strip(",") for line in said for word in line.split() if line[:4] == "step"]
    assert {word for word in logged if re.fullmatch(r"\d+\.\d{4}", word)} - public <= {
        f"{spread['max']:.4g}" for spread in result.metrics["epsilon"]
    }
    assert {"loss", "accuracy"} < set(logged)
    assert not [line for line in said if "train" in line or "gradient norm" in line]


# Several processes.


def stop_in_rank_0(made):
    """The command line has no callbacks: give its run one."""
    execute = loop.execute
    loop.execute = partial(execute, callbacks=[made()])  # type: ignore[assignment]


@pytest.mark.process
def test_a_stop_by_a_callback_is_charged_in_every_process(tmp_path):
    file = write_experiment(
        tmp_path,
        privacy=PRIVATE,
        nodes={"count": 2},
        train={"steps": 4000, "evaluate_every": 100, "checkpoint_every": 1000},
    )
    run = tmp_path / "run"
    tamper = {rank: partial(stop_in_rank_0, partial(StopAt, 100)) for rank in (0, 1)}
    answers = crews.train(tmp_path, file, run, 2, tamper=tamper)
    assert [answer.code for answer in answers] == [0, 0], answers
    content = strict_json((run / "result.json").read_text())
    assert content["status"] == "stopped"
    assert 100 <= content["steps"] < 4000
    ledgers = [run / f"rank-{rank:04d}" / "ledger.sqlite" for rank in (0, 1)]
    assert [charged(ledger) for ledger in ledgers] == [[(0, 4000, 1)]] * 2
    spent = [ledger_document(ledger).nodes[0].epsilon for ledger in ledgers]
    assert content["epsilon"] == pytest.approx(spent)
    assert content["charged_steps"] == 4000
