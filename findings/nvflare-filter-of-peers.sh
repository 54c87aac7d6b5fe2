#!/usr/bin/env bash
# NVFlare 2.9.0, a filter of task data (direction "out") on what a site sends another site, as every
# client-controlled workflow does by `TaskController.broadcast_and_wait` (swarm and cyclic learning).
#
# `Filter.process` returns the Shareable that is to be sent. Of peers it is called, what it returns is
# put away, and the message as it was before goes to the peer: a filter that returns a new Shareable
# without what is secret protects nothing. (`request = task.data; task.data = apply_filters(...,
# request, ...)`, and then `request` is sent.) One that changes the Shareable in place works, and so
# do filters between a server and a client.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install numpy==2.4.6 nvflare==2.9.0
mkdir -p "$folder/hello/app/config" "$folder/hello/app/custom"
cat >"$folder/hello/app/custom/parts.py" <<'PYTHON'
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.task_controller import TaskController
from nvflare.apis.shareable import Shareable, make_reply


class WithoutSecrets(Filter):
    def process(self, shareable, fl_ctx):
        self.log_info(fl_ctx, "the filter was called")
        clean = Shareable()
        clean["public"] = shareable["public"]
        return clean


class Peer(Executor, TaskController):
    def __init__(self):
        Executor.__init__(self)
        TaskController.__init__(self)

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.START_RUN:
            self.start_controller(fl_ctx)

    def execute(self, task_name, data, fl_ctx, abort_signal):
        if task_name == "hello":
            self.log_info(fl_ctx, f"a peer sent {sorted(key for key in data if key[0] != '_')}")
            return make_reply("OK")
        message = Shareable()
        message["public"], message["secret"] = 1, 2
        peer = {"site-1": "site-2", "site-2": "site-1"}[fl_ctx.get_identity_name()]
        self.broadcast_and_wait(Task("hello", message, timeout=10), fl_ctx, targets=[peer])
        return make_reply("OK")


class Server(Controller):
    def control_flow(self, abort_signal, fl_ctx):
        go = Task("go", Shareable())
        sites = ["site-1", "site-2"]
        self.broadcast_and_wait(go, fl_ctx, sites, len(sites), abort_signal=abort_signal)

    def start_controller(self, fl_ctx): ...
    def stop_controller(self, fl_ctx): ...
    def process_result_of_unknown_task(self, *what): ...
PYTHON
cat >"$folder/hello/meta.json" <<'JSON'
{"name": "hello", "resource_spec": {}, "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
JSON
cat >"$folder/hello/app/config/config_fed_server.json" <<'JSON'
{"format_version": 2, "workflows": [{"id": "server", "path": "parts.Server", "args": {}}], "components": []}
JSON
cat >"$folder/hello/app/config/config_fed_client.json" <<'JSON'
{
  "format_version": 2,
  "executors": [{"tasks": ["go", "hello"], "executor": {"path": "parts.Peer", "args": {}}}],
  "task_data_filters": [
    {"tasks": ["hello"], "direction": "out", "filters": [{"path": "parts.WithoutSecrets", "args": {}}]}
  ],
  "components": []
}
JSON
"$folder/venv/bin/nvflare" simulator "$folder/hello" -w "$folder/work" -n 2 -t 2 >"$folder/log" 2>&1
grep -E "the filter was called|a peer sent" "$folder/log"
[ "$(grep -c "the filter was called" "$folder/log")" = 2 ]
[ "$(grep -c "a peer sent \['public', 'secret'\]" "$folder/log")" = 2 ]
