"""tacit inside NVFlare: an executor for sites, the controller of their server, a filter.

What a site trains on, and what that may cost, stands in a file of its own folder `local`, whoever
submits the job. Nodes are sites (`nodes.names`). A task that comes again is answered with the same
bytes; the text of an error, which NVFlare would send to the server, stays in a file of the site.
"""

# ruff: noqa: E402
from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit.base.private_files import write_private
from tacit.errors import InputError, PeerError, optional, public_line
from tacit.hosts.by_hand import Array, PartyMessage, ServersMean
from tacit.hosts.client import PrivateClient

optional("nvflare")
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.task_controller import TaskController
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

TURN, PEER = "tacit_turn", "tacit_peer"  # tasks: of the server for a site, of a site for another
_PATIENCE = 600.0  # seconds to wait for a neighbour's message


class PrivateExecutor(Executor, TaskController):
    """A site's party: it answers the server, and sends its neighbours what they mix.

    Args:
        experiment: the name of the experiment's file in the site's folder `local`.
        records: how many each site has; by default they are counted in the data set they share.
    """

    def __init__(self, experiment: str = "tacit.toml", records: list[int] | None = None) -> None:
        super().__init__()
        TaskController.__init__(self)
        self.experiment, self.records = experiment, records
        self.released: Mapping[str, Any] = {}  # to the server, last; all else stays
        self._client: PrivateClient | None = None
        self._came: dict[tuple[int, str], Shareable] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember whose job this is, when it begins."""
        if event_type == EventType.START_RUN:
            self.start_controller(fl_ctx)
            self._runner = fl_ctx.get_prop(FLContextKey.RUNNER)

    def execute(self, task: str, data: Shareable, fl_ctx: FLContext, abort: Signal) -> Shareable:
        """Go on to the next message for the server; or, in another thread, take a neighbour's."""
        if task == PEER:
            sender = fl_ctx.get_peer_context().get_identity_name()
            self._came.setdefault((data["turn"], sender), data)
            return _shareable({})
        workspace = fl_ctx.get_engine().get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        try:
            if self._client is None:
                self._check_alone(task, fl_ctx)
                file = Path(workspace.get_site_config_dir(), Path(self.experiment).name)
                site, out = fl_ctx.get_identity_name(), folder / "tacit"
                self._client = PrivateClient(file, site, records=self.records, out=out)
            if "arrays" in data:
                self._client.receive(data["arrays"], turn=data["turn"])
            self.released = self._next(self._client, fl_ctx, abort)
        except Exception as error:
            write_private(folder / "tacit-error.txt", traceback.format_exc().encode())
            self.released = {"error": public_line(error) or type(error).__name__}
        return _shareable(self.released)

    def _check_alone(self, task: str, fl_ctx: FLContext) -> None:
        """Refuse a job with parts that might send what is private, or change what is released."""
        scope, runner = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT), self._runner
        parts = [*runner.task_router.task_table.values()]
        parts += fl_ctx.get_engine().get_all_components().values()
        for has in (runner, scope or runner):
            chains = [*has.task_data_filters.values(), *has.task_result_filters.values()]
            parts += [one for chain in chains for one in chain]
        for part in parts:
            if type(part).__module__ != __name__:
                expected = "is not tacit's, and might send what is not private: leave it out"
                raise InputError("a part of the job", type(part).__name__, expected, public=True)
        if task != TURN:
            expected = f"must be {TURN!r}: the workflow is not tacit's PrivateServer"
            raise InputError("task", task, expected, public=True)

    def _next(self, client: PrivateClient, fl_ctx: FLContext, abort: Signal) -> Mapping[str, Any]:
        """What the server is told: the next message for it, or that all is done."""
        names = client.plan.config.nodes.names or ()
        told = {"node": client.node, "agreed": client.agreed}
        secure = fl_ctx.get_prop(FLContextKey.SECURE_MODE, False)
        client.step()
        while not client.done:
            message = client.send()
            if message.kind == "average":
                return told | {"message": asdict(message)}
            out = {"turn": message.turn, "agreed": client.agreed, "arrays": list(message.arrays)}
            task = Task(PEER, _shareable(out), timeout=60, secure=secure)
            to = [names[node] for node in message.to]  # to NVFlare, an empty list is the server
            replies = self.broadcast_and_wait(task, fl_ctx, to) if to else {}
            if lost := [site for site in replies if replies[site].get_return_code() != "OK"]:
                raise PeerError(f"{', '.join(lost)} took no message of turn {message.turn}")
            came = {node: self._wait(out, names[node], abort) for node in message.of}
            client.receive(came, turn=message.turn)
            client.step()
        self.log_info(fl_ctx, f"done, with certified epsilon {client.epsilon}")
        return told

    def _wait(self, out: Mapping[str, Any], site: str, abort: Signal) -> list[Array]:
        """What a neighbour sent in the turn of what is sent."""
        until = time.monotonic() + _PATIENCE
        while (came := self._came.pop((out["turn"], site), None)) is None:
            if abort.triggered or time.monotonic() > until:
                raise PeerError(f"{site} sent nothing in turn {out['turn']}")
            time.sleep(0.002)
        if came["agreed"] != out["agreed"]:
            raise PeerError(f"{site} has another experiment, or another model")
        return list(came["arrays"])


class PrivateServer(Controller):
    """Asks so many sites for what they send to a server, and tells all the mean, till all are done.

    Peers send it nothing. Models are at the sites.
    """

    def __init__(self, sites: int) -> None:
        super().__init__(task_check_period=0.05)
        self.sites = sites

    def control_flow(self, abort: Signal, fl_ctx: FLContext) -> None:
        """See the class; `PeerError`, which ends the job, where a site fails or differs."""
        server, answer = ServersMean(self.sites), dict[str, Any]()
        while told := self._asked(answer, fl_ctx, abort):
            if len({one["agreed"] for one in told}) > 1:
                raise PeerError("sites have different experiments, or different models")
            if not any("message" in one for one in told):
                return
            sent = {one["node"]: PartyMessage(**one["message"]) for one in told}
            answer = {"arrays": list(server.answer(sent)), "turn": sent[0].turn}

    def _asked(self, data: Mapping[str, Any], fl_ctx: FLContext, abort: Signal) -> list[Shareable]:
        """What every site answers; nothing where the job is aborted."""
        told: dict[str, Shareable] = {}

        def received(client_task: Any, fl_ctx: FLContext) -> None:
            told[client_task.client.name] = result = client_task.result
            if "error" in result or result.get_return_code() != ReturnCode.OK:
                self.cancel_task(client_task.task)

        sites = [each.name for each in fl_ctx.get_engine().get_clients()]
        task = Task(TURN, _shareable(data), timeout=0, result_received_cb=received)
        self.broadcast_and_wait(task, fl_ctx, sites, len(sites), abort_signal=abort)
        for site, one in told.items():
            if "error" in one or one.get_return_code() != ReturnCode.OK:
                raise PeerError(f"{site}: {one.get('error', one.get_return_code())}")
        if len(told) != self.sites and not abort.triggered:
            raise PeerError(f"{len(told)} of {self.sites} sites answered: {', '.join(told)}")
        return [] if abort.triggered else [*told.values()]

    def start_controller(self, *what: Any) -> None:
        """Nothing is to be done."""

    stop_controller = process_result_of_unknown_task = start_controller


class OnlyReleased(Filter):
    """Of a task's result, what tacit released leaves the site, and nothing else."""

    def process(self, result: Shareable, fl_ctx: FLContext) -> Shareable:
        """What was released, whatever came beside it; what comes in is left as it is.

        Raises:
            ContentBlockedException: the task is not tacit's.
        """
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            return result
        runner, task = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_NAME)
        executor = runner.find_executor(task)
        if not isinstance(executor, PrivateExecutor):
            raise ContentBlockedException(f"{task}: nothing leaves but what tacit released")
        return _shareable({} if task == PEER else executor.released)


def _shareable(told: Mapping[str, Any]) -> Shareable:
    """A copy in NVFlare's form, which it and others write on."""
    made = make_reply(ReturnCode.OK)
    made.update(deepcopy(dict(told)))
    return made
