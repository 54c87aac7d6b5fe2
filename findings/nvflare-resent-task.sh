#!/usr/bin/env bash
# NVFlare 2.9.0, a client that asks for its task once more, as it does where the server's answer got
# lost, while the controller has a second standing task that is for another client.
#
# The server sends the same task again, as it should, but notes the client twice. The one result of
# that client then counts for two: a broadcast to two clients that waits for two responses ends with
# OK when one has answered. Its end raises KeyError in the thread that watches over tasks, which is
# dead from then on, and no task ends any more. With one standing task all is well. (In
# `WFCommServer._do_process_task_request` the loop over standing tasks is not left at a resend; the
# next one sets `resend_task` back.)
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install numpy==2.4.6 nvflare==2.9.0
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable

CLIENTS = [Client("site-1", "1"), Client("site-2", "2")]


class Engine:
    """What the communicator asks of a server: a context, and who there is."""

    def __init__(self):
        self._contexts = FLContextManager(self, "server", "job", {}, {})

    def new_context(self):
        return self._contexts.new_context()

    def get_clients(self):
        return CLIENTS

    def fire_event(self, *what):
        pass


def ended(another):
    """How a broadcast to two clients stands after one has asked twice and answered once."""
    server, engine = WFCommServer(), Engine()
    server._engine, context = engine, engine.new_context()
    both = Task("both", Shareable())
    server.broadcast(both, context, ["site-1", "site-2"], min_responses=2)
    if another:
        server.broadcast(Task("other", Shareable()), context, ["site-2"], min_responses=1)
    _, first, _ = server.process_task_request(CLIENTS[0], context)
    _, again, _ = server.process_task_request(CLIENTS[0], context)
    assert first == again
    server.process_submission(CLIENTS[0], "both", first, Shareable(), context)
    try:
        server.check_tasks()
    except KeyError as error:
        return both.completion_status, error
    return both.completion_status, None


alone, beside = ended(False), ended(True)
print("one standing task:", *alone)
print("two standing tasks:", *map(repr, beside))
assert alone == (None, None)
assert beside[0] == TaskCompletionStatus.OK and isinstance(beside[1], KeyError)
PYTHON
