"""What a site's executor and filter do with what a job brings them, by NVFlare's own runner.

Run with the Python of `.venv-nvflare` by `test_nvflare.py`; every task goes through the runner of a
job's process (`ClientRunner`), with its filters, and arrays through NVFlare's serialization.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import common_decomposers, numpy_decomposers
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.fuel.utils import fobs
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_run_manager import ClientRunManager
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter
from nvflare.private.privacy_manager import Scope
from nvflare.widgets.widget import Widget

from tacit.hosts.by_hand import PartyMessage, ServersMean
from tacit.hosts.nvflare import TURN, OnlyReleased, PrivateExecutor

EXPERIMENT = """
[task]
dataset = "digits"
model = "logistic"
[nodes]
count = 2
names = ["site-1", "site-2"]
[algorithm]
name = "dp-fedavg"
learning_rate = 0.1
clip = 1.0
[privacy]
epsilon = 3.0
delta = 1e-5
[train]
steps = 3
batch = 32
"""
RESULT = FilterKey.DELIMITER + FilterKey.OUT


class Other(Executor):
    """Tells what it pleases."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        told = Shareable()
        told["mean of the records"] = 0.5
        return told


class Site:
    """A site's process in a job: NVFlare's runner, with the executor and what else it brings."""

    def __init__(self, root, name="site-1", executors=None, filters=(), components=(), scope=None):
        for folder in ("startup", "local", "job"):
            (root / name / folder).mkdir(parents=True, exist_ok=True)
        self.root, self.executor = root / name, PrivateExecutor()
        (self.root / "job" / "meta.json").write_text("{}")
        file = self.root / "local" / "tacit.toml"
        if not file.exists():
            file.write_text(EXPERIMENT)
        router = TaskRouter()
        router.add_executor(["tacit_*"], self.executor)
        for task, executor in (executors or {}).items():
            router.add_executor([task], executor)
        self.engine = ClientRunManager(
            name,
            "job",
            Workspace(str(self.root), name),
            SimpleNamespace(client_args={}, client_name=name),
            {str(place): one for place, one in enumerate(components)},
            [self.executor],
        )
        results = {TURN + RESULT: [OnlyReleased(), *filters]}
        config = ClientRunnerConfig(router, {}, results, components=self.engine.components)
        self.runner = ClientRunner({}, config, "job", self.engine)
        self.scope = scope
        with self.context() as context:
            self.runner.fire_event(EventType.START_RUN, context)

    def context(self):
        context = self.engine.new_context()
        context.set_prop(FLContextKey.RUNNER, self.runner, private=True)
        context.set_prop(FLContextKey.SCOPE_OBJECT, self.scope, private=True)
        server = FLContext()
        server.put(FLContextKey.CURRENT_RUN, "job", private=False, sticky=False)
        server.put("__run_num__", "job", private=False, sticky=False)
        context.set_peer_context(server)
        return context

    def ask(self, task=TURN, **told):
        data = Shareable()
        data.update(told)
        data = fobs.loads(fobs.dumps(data))
        with self.context() as context:
            reply = self.runner._process_task(TaskAssignment(task, "id", data), context)
        return fobs.loads(fobs.dumps(reply))


@pytest.fixture(autouse=True, scope="session")
def _decomposers():
    common_decomposers.register()
    numpy_decomposers.register()


def content(reply):
    return [(a.dtype, a.shape, a.tobytes()) for a in reply["message"]["arrays"]]


def mean(*replies):
    sent = {one["node"]: PartyMessage(**one["message"]) for one in replies}
    return list(ServersMean(2).answer(sent))


def test_a_task_that_comes_again_is_answered_with_the_same_bytes_and_charged_once(tmp_path):
    here, there = Site(tmp_path), Site(tmp_path, "site-2")
    first = here.ask()
    assert first["message"]["turn"] == 0
    assert content(here.ask()) == content(first)
    answer = mean(first, there.ask())
    second = here.ask(turn=0, arrays=answer)
    booked = here.executor._client.epsilon
    again = here.ask(turn=0, arrays=answer)
    assert content(again) == content(second) != content(first)
    assert again["message"]["turn"] == 1
    here.executor._client.close()
    anew = Site(tmp_path)  # as after a kill, or in a simulator with fewer threads than clients
    assert content(anew.ask(turn=0, arrays=answer)) == content(second)
    assert anew.executor._client.epsilon == booked


def test_another_answer_to_an_earlier_turn_is_refused_and_so_is_one_of_a_turn_left_out(tmp_path):
    here = Site(tmp_path)
    answer = mean(here.ask(), Site(tmp_path, "site-2").ask())
    second = here.ask(turn=0, arrays=answer)
    other = [array + 1 for array in answer]
    for turn, arrays in ((0, other), (2, answer)):
        refused = here.ask(turn=turn, arrays=arrays)
        assert "message" not in refused
        assert "error" in refused
    assert content(here.ask()) == content(second)


@pytest.mark.parametrize(
    "brought",
    [
        {"components": [ConvertToFedEvent(["analytix_log_stats"])]},
        {"executors": {"validate": Other()}},
        {"filters": [PercentilePrivacy()]},
        {"scope": PercentilePrivacy()},
    ],
    ids=["metrics", "another executor", "a filter", "a filter of the site"],
)
def test_a_job_that_brings_more_than_tacit_to_a_site_is_refused_before_anything_is_sent(
    brought, tmp_path
):
    if "scope" in brought:
        scope = Scope()
        scope.add_task_result_filter(brought["scope"], FilterKey.OUT)
        brought = {"scope": scope}
    here = Site(tmp_path, **brought)
    for _ in range(2):
        refused = here.ask()
        assert set(refused) - {"__headers__"} == {"error"}
        assert "is not tacit's" in refused["error"]
    assert not (here.root / "job" / "tacit").exists()


def test_another_workflow_is_refused(tmp_path):
    refused = Site(tmp_path, executors={"train": PrivateExecutor()}).ask("tacit_train")
    assert "the workflow is not tacit's PrivateServer" in refused["error"]


class Adds(Widget):
    """Puts a metric beside every result."""

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            result["loss"] = 0.5
            result.set_header("loss", 0.5)
            result["message"]["arrays"] = [np.ones(3)]


def test_what_is_put_beside_a_message_does_not_leave(tmp_path):
    plain, here = Site(tmp_path / "a"), Site(tmp_path / "b")
    here.engine.add_handler(Adds())
    reply = here.ask()
    assert "loss" not in reply
    assert reply.get_header("loss") is None
    assert [a.shape for a in reply["message"]["arrays"]] == [
        a.shape for a in plain.ask()["message"]["arrays"]
    ]


def test_a_site_lets_no_other_executor_answer_in_any_job(tmp_path):
    scope = Scope()
    scope.add_task_result_filter(OnlyReleased(), FilterKey.OUT)
    here = Site(tmp_path, executors={"train": Other()}, scope=scope)
    reply = here.ask("train")
    assert reply.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert set(reply) == {"__headers__"}


def test_the_text_of_an_error_stays_at_the_site(tmp_path, monkeypatch, caplog, capfd):
    (tmp_path / "cohort.py").write_text("def own(node):\n    raise ValueError('patient 4711')\n")
    monkeypatch.syspath_prepend(tmp_path)
    here = Site(tmp_path)
    here.executor.records = [100, 100]
    text = EXPERIMENT.replace('"digits"', '"given"').replace(
        "[nodes]", '[nodes]\ndata = "by-rank"\nsource = "cohort:own"'
    )
    (here.root / "local" / "tacit.toml").write_text(text)
    refused = here.ask()
    assert set(refused) - {"__headers__"} == {"error"}
    assert "4711" not in str(refused) + caplog.text + "".join(capfd.readouterr())
    assert "patient 4711" in (here.root / "job" / "tacit-error.txt").read_text()
