"""Tests of tacit inside Flower: run by `test_flower.py` where Flower is installed.

Flower's simulation, with its link, grid and threads; instead of Ray's actors a backend of one
process calls the app, so that a check takes a second. `test_flower.py` runs Ray and real nodes too.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.server.superlink.fleet.vce.backend.backend import Backend
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from safetensors.torch import load_file

import tacit
from pages import blocks
from tacit.hosts import flower

warnings.simplefilter("ignore", tacit.NotPrivateWarning)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "flower.md"
CLIENTS = 3
DATA = [
    (torch.arange(60.0).sub(node).mul(0.7).sin().reshape(20, 3).numpy(), np.arange(20) % 2)
    for node in range(CLIENTS)
]


class OneProcess(Backend):
    """Calls the app in the process of the simulation, one message after another."""

    num_workers = 1

    def __init__(self, backend_config):
        super().__init__(backend_config)

    def build(self, app_fn):
        self.app = app_fn()

    def is_worker_idle(self):
        return True

    def terminate(self):
        pass

    def process_message(self, message, context):
        return self.app(message, context), context


class Between:
    """A grid that changes what passes."""

    def __init__(self, grid, change):
        self.grid, self.change, self.sent, self.came = grid, change, [], []

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def send_and_receive(self, messages, *, timeout=None):
        asked = self.change("out", list(messages))
        self.sent.append(asked)
        replies = self.change("in", list(self.grid.send_and_receive(asked, timeout=timeout)))
        self.came.append(replies)
        return replies


def experiment(**algorithm):
    return {
        "task": {"model": "logistic", "outputs": 2},
        "nodes": {"count": CLIENTS},
        "algorithm": {"name": "dp-fedavg", "learning_rate": 0.1, "clip": 1.0, **algorithm},
        "privacy": {"epsilon": 3.0, "delta": 1e-3, "noise_seed": 5},
        "train": {"steps": 3, "batch": 4, "dtype": "float64"},
    }


def parties(config, folder, **change):
    """What makes a party of the same data."""

    def party(context):
        node = context.node_config["partition-id"]
        given = {"records": [20] * CLIENTS, "data": DATA[node], "out": folder / str(node)}
        return tacit.PrivateClient(change.get(str(node), config), node, **given)

    return party


@pytest.fixture
def simulate(monkeypatch):
    """Flower's simulation of an app; returns the grid between server and clients."""
    monkeypatch.setattr(raybackend, "RayBackend", OneProcess)

    def simulated(server, client, change=lambda way, messages: messages):
        between = []
        changed = ServerApp()

        @changed.main()
        def main(grid, context):
            between.append(Between(grid, change))
            server(between[0], context)

        run_simulation(changed, client, CLIENTS)
        return between[0]

    return simulated


def digests(replies):
    """Of every node's reply."""
    return {each.content["tacit"]["node"]: each.content["tacit"]["checksum"] for each in replies}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "dp-fedavg", "local_steps": 2, "clients_per_round": 2},
        {"name": "fedspd-dp", "local_steps": 2},
        {"name": "dp-admm"},
    ],
    ids=lambda row: row["name"],
)
def test_a_run_is_the_simulators_to_the_last_bit(simulate, tmp_path, algorithm):
    config = experiment(**algorithm)
    if algorithm["name"] != "dp-fedavg":
        del config["algorithm"]["learning_rate"]
    server = flower.server_app(CLIENTS, out=tmp_path / "server")
    simulate(server, flower.client_app(parties(config, tmp_path)))
    alone = tacit.train(config, nodes=DATA)
    ended = load_file(tmp_path / "server" / "model.safetensors")
    for name, value in alone.model().state_dict().items():
        assert torch.equal(ended[name], value), name
    told = json.loads((tmp_path / "server" / "epsilon.json").read_text())
    assert [told[str(node)] for node in range(CLIENTS)] == list(alone.epsilon)


def test_each_party_has_its_statement(simulate, tmp_path):
    config = experiment()
    del config["privacy"]["noise_seed"]
    server = flower.server_app(CLIENTS, out=tmp_path / "server")
    simulate(server, flower.client_app(parties(config, tmp_path)))
    told = json.loads((tmp_path / "server" / "epsilon.json").read_text())
    for node in range(CLIENTS):
        (path,) = (tmp_path / str(node)).rglob("statement.json")
        (own,) = json.loads(path.read_text())["nodes"]
        assert (own["node"], own["epsilon"]) == (node, told[str(node)])
        assert 0 < told[str(node)] <= 3


def test_a_reply_that_is_lost_is_sent_again_and_charged_once(simulate, tmp_path):
    config, lost = experiment(), []

    def change(way, messages):
        if way == "in" and len(messages) == CLIENTS and not lost and messages[0].content["arrays"]:
            lost.append(messages.pop())
        return messages

    server = flower.server_app(CLIENTS, out=tmp_path / "server")
    grid = simulate(server, flower.client_app(parties(config, tmp_path)), change)
    again = next(each for each in grid.came if len(each) == 1)
    assert digests(again) == digests(lost)
    alone = tacit.train(config, nodes=DATA, out=tmp_path / "alone")
    ended = load_file(tmp_path / "server" / "model.safetensors")
    for name, value in alone.model().state_dict().items():
        assert torch.equal(ended[name], value), name
    told = json.loads((tmp_path / "server" / "epsilon.json").read_text())
    assert [told[str(node)] for node in range(CLIENTS)] == list(alone.epsilon)


def scaled(message):
    """Half of each array, as a mod that weighs by records would send."""
    arrays = [each / 2 for each in message.content["arrays"].to_numpy_ndarrays()]
    message.content["arrays"] = ArrayRecord(arrays)


def weigh(way, messages):
    if way == "in" and messages[0].content["arrays"]:
        scaled(messages[0])
    return messages


def other_model(way, messages):
    if way == "out" and messages[0].content["arrays"]:
        arrays = [each + 1 for each in messages[0].content["arrays"].to_numpy_ndarrays()]
        turn = messages[0].content["tacit"]["turn"]
        node = messages[0].metadata.dst_node_id
        messages[0] = Message(flower._content({"turn": turn}, arrays), node, flower.TURN)
    return messages


def in_between(way, messages):
    if way == "out" and messages[0].content["arrays"]:
        messages[0] = Message(
            RecordDict(messages[0].content), messages[0].metadata.dst_node_id, flower.TURN
        )
        scaled(messages[0])
    return messages


def left_out(way, messages):
    """A server that has one client fewer in its rounds."""
    if way == "out" and messages[0].metadata.message_type == flower.TURN:
        return [] if len(messages) == 1 else messages[:-1]
    return messages


def metrics(way, messages):
    if way == "out":
        return [Message(each.content, each.metadata.dst_node_id, "evaluate") for each in messages]
    return messages


REFUSED = {
    "secure aggregation, or another weight": (weigh, "arrays were changed on the way"),
    "a mod that changes what the server sends": (in_between, "refuses: .*changed on the way"),
    "another model for one client": (other_model, "end with different models"),
    "clients that the server chooses": (left_out, "were asked 3 times"),
    "metrics": (metrics, "refuses: message = 'evaluate': is not private"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_the_host_does_is_refused(simulate, tmp_path, change):
    done, says = REFUSED[change]
    waits = 2.0 if done is left_out else 60.0  # all others answer, however busy the machine is
    server = flower.server_app(CLIENTS, out=tmp_path / "server", timeout=waits)
    client = flower.client_app(parties(experiment(), tmp_path))
    with pytest.raises(tacit.PeerError, match=says):
        simulate(server, client, done)
    assert not (tmp_path / "server").exists()


def test_a_turn_is_not_answered_twice_otherwise(simulate, tmp_path):
    def change(way, messages):
        if way == "out" and messages[0].content["arrays"]:
            first = messages[0]
            answered = messages[0].content["arrays"].to_numpy_ndarrays()
            other = flower._content(
                {"turn": first.content["tacit"]["turn"]}, [each + 1 for each in answered]
            )
            return [*messages, Message(other, first.metadata.dst_node_id, flower.TURN)]
        return messages

    server = flower.server_app(CLIENTS, out=tmp_path / "server", timeout=60.0)
    with pytest.raises(tacit.PeerError, match=r"node . refuses: turn = 0: must be 1"):
        simulate(server, flower.client_app(parties(experiment(), tmp_path)), change)


def test_parties_of_different_experiments_release_nothing(simulate, tmp_path):
    other = {"2": experiment(learning_rate=0.2)}
    server = flower.server_app(CLIENTS, out=tmp_path / "server")
    client = flower.client_app(parties(experiment(), tmp_path, **other))
    with pytest.raises(tacit.PeerError, match="node 2 has another experiment"):
        simulate(server, client)
    assert not list(tmp_path.rglob("ledger.sqlite"))


def test_the_text_of_an_error_stays_at_its_node(simulate, tmp_path):
    def party(context):
        raise ValueError("the record of Smith")

    server = flower.server_app(CLIENTS, out=tmp_path / "server")
    with pytest.raises(tacit.PeerError, match="refuses: ValueError: the log") as error:
        simulate(server, flower.client_app(party))
    assert "Smith" not in str(error.value)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "lifespan"])
def test_the_app_of_a_party_has_no_other_functions(tmp_path, kind):
    app = flower.client_app(parties(experiment(), tmp_path))
    with pytest.raises(tacit.InputError, match="would send what is not noised"):
        getattr(app, kind)()


# A client of somebody's, who has never heard of tacit.
SETTINGS = {
    "algorithm": {"learning_rate": 0.3, "clip": 1.0, "local_steps": 2},
    "privacy": {"epsilon": 3.0, "delta": 1e-3, "noise_seed": 5},
    "train": {"steps": 6, "batch": 4, "dtype": "float64"},
}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def normed():
    return torch.nn.Sequential(network(), torch.nn.BatchNorm1d(2))


class Theirs(NumPyClient):
    def __init__(self, node, net):
        self.net, self.node = net.double(), node

    def get_parameters(self, config):
        raise AssertionError("is not called")

    def fit(self, parameters, config):
        raise AssertionError("is not called")

    def evaluate(self, parameters, config):
        raise AssertionError("is not called")


def theirs(folder, net=network):
    """Their app, with the mod."""

    def client_fn(context):
        return Theirs(context.node_config["partition-id"], net()).to_client()

    mod = flower.private_mod(
        client_fn,
        SETTINGS,
        parts=lambda client: (client.net, DATA[client.node], "cross-entropy"),
        out=lambda context: folder / str(context.node_config["partition-id"]),
    )
    return ClientApp(client_fn, mods=[mod])


class Watched(FedAvg):
    """Their strategy, which keeps what it averaged, and why a client failed."""

    def __init__(self, **more):
        start = [value.numpy() for value in network().double().state_dict().values()]
        # Else Flower starts its first round as soon as two of them are there.
        everybody = {"min_fit_clients": CLIENTS, "min_available_clients": CLIENTS}
        super().__init__(initial_parameters=ndarrays_to_parameters(start), **everybody, **more)
        self.models, self.failures, self.told = [], [], []

    def aggregate_fit(self, server_round, results, failures):
        self.failures += failures
        self.told += [(result.num_examples, result.metrics) for _, result in results]
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        if parameters is not None:
            self.models.append(parameters_to_ndarrays(parameters))
        return parameters, metrics


def averaged(strategy, rounds):
    return ServerApp(strategy=strategy, config=ServerConfig(num_rounds=rounds))


def test_anybodys_client_is_private_by_a_mod(monkeypatch, tmp_path):
    monkeypatch.setattr(raybackend, "RayBackend", OneProcess)
    strategy = Watched(fraction_evaluate=0.0)
    run_simulation(averaged(strategy, 4), theirs(tmp_path), CLIENTS)
    alone = tacit.train(
        {**SETTINGS, "algorithm": {**SETTINGS["algorithm"], "name": flower._LOCAL_STEPS}},
        model=network().double(),
        nodes=DATA,
    )
    assert strategy.told == [(20, {})] * 3 * CLIENTS  # no metrics; the fourth round is refused
    assert len(strategy.models) == 3
    mean = np.concatenate([np.ravel(each) for each in strategy.models[-1]])
    assert np.abs(mean - alone.parameters.mean(0).numpy()).max() < 1e-12
    for node in range(CLIENTS):
        (path,) = (tmp_path / str(node)).rglob("result.json")
        assert json.loads(path.read_text())["epsilon"][node] == alone.epsilon[node]


def test_the_mod_refuses_what_it_cannot_make_private(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(raybackend, "RayBackend", OneProcess)
    asked = (
        (normed, {}, "module = 'Sequential': has state beside its parameters"),
        (network, {"fraction_fit": 1.0}, "message = 'evaluate': is not private, only fit"),
    )
    for net, more, says in asked:
        assert not list(tmp_path.rglob("ledger.sqlite"))
        caplog.clear()
        run_simulation(averaged(Watched(**more), 1), theirs(tmp_path, net), CLIENTS)
        assert says in caplog.text


def test_the_page_with_somebodys_client(monkeypatch, tmp_path):
    monkeypatch.setattr(raybackend, "RayBackend", OneProcess)
    monkeypatch.chdir(tmp_path)
    (code,) = (each.code for each in blocks(PAGE) if each.file == "consortium/theirs.py")
    named = {"__name__": "theirs"}
    exec(code, named)
    start = [each.detach().numpy() for each in named["Theirs"](0).net.parameters()]
    strategy = FedAvg(initial_parameters=ndarrays_to_parameters(start), fraction_evaluate=0.0)
    run_simulation(averaged(strategy, 2), named["app"], 2)
    for node in range(2):
        (path,) = (tmp_path / "runs" / f"theirs-{node}").rglob("result.json")
        assert 2.9 < json.loads(path.read_text())["epsilon"][node] <= 3
