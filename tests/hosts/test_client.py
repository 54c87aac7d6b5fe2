"""A party's run by hand: the simulator's numbers, its own ledger, each message once."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from parties import NODES, answers, carried, experiment, parties

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.analysis.statement import check_statement, write_statement
from tacit.hosts.by_hand import ServersMean
from tacit.privacy.ledger.ledger import read_ledger

pytestmark = pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")

# One for each way in which a step asks: a server's mean, of some clients, of the latest messages;
# neighbours, partners, several rounds, a table of gradients, anchors.
EVERY_WAY = {
    "dp-fedavg": {"local_steps": 2, "clients_per_round": 2},
    "fedspd-dp": {"clients_per_round": 3},
    "dp-admm": {},
    "privsgp-vr": {"state": "private"},
    "cpgt": {},
    "dpdl": {},
}


def compared(config, clients):
    """Each party's model and epsilon are those of the simulator, to the last bit."""
    expected = tacit.train(config)
    for client in clients:
        result = client.finish()
        row = expected.parameters[client.node if len(expected.parameters) > 1 else 0]
        assert torch.equal(result.parameters[0], row)
        own = result.document.epsilon
        assert own[client.node] == expected.document.epsilon[client.node]
        assert [value for node, value in enumerate(own) if node != client.node] == [None] * (
            len(clients) - 1
        )


@pytest.mark.parametrize("name", EVERY_WAY)
def test_parties_come_to_what_the_simulator_comes_to(name, tmp_path):
    config = experiment(name, algorithm=EVERY_WAY[name])
    clients = parties(config, tmp_path)
    assert len({client.agreed for client in clients}) == 1
    carried(clients, between=lambda clients: [client.close() for client in clients])
    compared(config, clients)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - EVERY_WAY.keys()))
def test_every_algorithm_runs_by_hand(name):
    config = experiment(name)
    if not ALGORITHMS[name].private:
        config["privacy"] = {}
    clients = parties(config)
    carried(clients)
    compared(config, clients)


def test_averages_and_gossip_rounds_that_follow_are_carried_too(tmp_path):
    config = experiment(
        "privsgp", train={"average": "tail:0.5"}, topology={"graph": "ring", "rounds": 2}
    )
    clients = parties(config, tmp_path)
    carried(clients, between=lambda clients: [client.close() for client in clients])
    compared(config, clients)


def test_a_message_is_made_once_and_sent_as_often_as_it_is_asked_for(tmp_path):
    config = experiment("dp-fedavg", privacy={"epsilon": 3.0})  # keys of the operating system
    clients, server = parties(config, tmp_path), ServersMean(NODES)
    one, later = clients[1], None
    for turn in range(3):
        for client in clients:
            client.step()
        messages = {client.node: client.send() for client in clients}
        one.close()
        later = tacit.PrivateClient(config, 1, out=tmp_path / "party-1")
        for _ in range(2):  # whoever asks, and whether or not it goes on before
            later.step()
            again = later.send()
            assert again.turn == turn
            assert all(map(np.array_equal, again.arrays, messages[1].arrays))
        later.close()
        charged = read_ledger(later.folder / "ledger.sqlite").runs[0].charged
        assert sum(until - first for first, until in charged[1]) == turn + 1
        for node, answer in answers(messages, server).items():
            clients[node].receive(answer, turn=turn)
            clients[node].receive(answer, turn=turn)  # asked again: nothing changes
            other = [array + 1 for array in answer]
            with pytest.raises(tacit.InputError, match="what was answered stays so"):
                clients[node].receive(other, turn=turn)
    for client in clients:
        client.step()
        assert client.done
        assert not (client.folder / "party.json").exists()  # its keys are gone
    assert one.finish().document.epsilon[1] == pytest.approx(one.plan.nodes[1].epsilon)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from parties import experiment
import tacit
config = experiment("privsgp", privacy={"epsilon": 3.0})
client = tacit.PrivateClient(config, 2, out=Path(sys.argv[1]))
client.step()
for array in client.send().arrays:
    sys.stdout.buffer.write(array.tobytes())
sys.stdout.flush()
os._exit(9)
"""


@pytest.mark.process
def test_a_party_that_was_killed_sends_the_same_bytes(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "2"), str(Path(__file__).parent)]
    sent = [subprocess.run(command, capture_output=True, check=False) for _ in range(2)]
    assert [run.returncode for run in sent] == [9, 9], sent[0].stderr.decode()
    assert sent[0].stdout == sent[1].stdout != b""
    (run,) = read_ledger(tmp_path / "2" / "rank-0001" / "ledger.sqlite").runs
    assert [until for _, until in run.charged[2]] == [1]


def test_an_older_checkpoint_makes_no_message_again(tmp_path):
    """A step's noise would be used for two messages, whose difference has none."""
    client = parties(experiment("dp-fedavg", privacy={"epsilon": 3.0}), tmp_path)[0]
    for turn in range(2):
        client.step()
        (own,) = client.send().arrays
        if turn == 0:
            client.receive([own])
    client.close()
    newest = client.folder / "checkpoint-00000001.safetensors"
    newest.unlink()
    with pytest.raises(tacit.InputError, match="is older than message 1, which has left"):
        client.step()


def test_a_run_that_is_done_answers_the_last_repeat_with_its_result(tmp_path):
    config = experiment("dp-fedavg", privacy={"epsilon": 3.0})
    client = parties(config, tmp_path)[0]
    while not client.done:
        client.step()
        if not client.done:
            message = client.send()
            client.receive(message.arrays)
    first = client.finish()
    client.close()
    again = tacit.PrivateClient(config, 0, out=tmp_path / "party-0")
    again.receive(message.arrays, turn=message.turn)
    again.step()
    assert again.done
    assert torch.equal(again.finish().parameters, first.parameters)
    assert again.finish().document.epsilon == first.document.epsilon
    assert again.finish().document.status == first.document.status == "done"


def test_its_statement_proves_the_epsilon_of_its_own_ledger(tmp_path):
    clients = parties(experiment("dp-fedavg", privacy={"epsilon": 3.0}), tmp_path)
    carried(clients)
    path, *_ = write_statement(clients[0].folder)
    confirmed = check_statement(path)
    assert confirmed is not None
    epsilon = clients[0].finish().document.epsilon[0]
    assert f"{epsilon:.4g}"[:4] in path.read_text()
    assert clients[0].epsilon == epsilon <= 3


def test_wrong_answers_are_refused_and_the_right_one_taken():
    clients = parties(experiment("privsgp"))
    for client in clients:
        client.step()
    one = clients[0]
    messages = {client.node: client.send() for client in clients}
    right = answers(messages, None)[0]
    node, *_ = right
    arrays = right[node]
    wrong = (
        ({}, "waits for nodes"),
        ({**right, 99: arrays}, "waits for nodes"),
        ({**right, node: arrays[:-1]}, "other shapes or types"),
        ({**right, node: [array.astype(np.float32) for array in arrays]}, "other shapes or types"),
        ({**right, node: [array[..., None] for array in arrays]}, "other shapes or types"),
        ({**right, node: [array * np.nan for array in arrays]}, "not finite"),
    )
    for answer, words in wrong:
        with pytest.raises(tacit.PeerError, match=words):
            one.receive(answer)
    with pytest.raises(tacit.InputError, match="turn = 7"):
        one.receive(right, turn=7)
    one.receive(right)
    with pytest.raises(tacit.InputError, match="call step"):
        one.send()
    with pytest.raises(tacit.InputError, match="turn"):
        one.receive(right, turn=0 + 1)


def test_what_a_server_tells_one_client_does_not_change_its_account(tmp_path):
    """A server may return any model: what a record adds to a message stays within its clip."""
    config = experiment("dp-fedavg", privacy={"epsilon": 3.0})
    honest, lied_to = parties(config, tmp_path)[:2]
    for turn in range(3):
        for client in (honest, lied_to):
            client.step()
            (own,) = client.send().arrays
            client.receive([own if client is honest else 1e6 * np.ones_like(own)], turn=turn)
    for client in (honest, lied_to):
        client.step()
        node = client.plan.nodes[client.node]
        assert client.finish().document.epsilon[client.node] == node.epsilon <= 3


def test_without_a_folder_a_party_that_is_closed_begins_anew():
    client = parties(experiment("dp-fedavg"))[0]
    client.step()
    client.close()
    with pytest.raises(tacit.InputError, match="call step"):
        client.send()


REFUSED = (
    ({"node": 9}, "node = 9: must be one of at least two nodes, 0 to 3"),
    ({"node": "x"}, "node = 'x'"),
    ({"records": [1, 2, 3, 4]}, "records = .*node 0 has"),
    ({"data": (torch.ones(5, 3), torch.zeros(5).long())}, "records = None"),
    ({"privacy": {"epsilon": 3.0, "noise": "pairwise", "colluding": 1}}, "privacy"),
    ({"privacy": {"epsilon": 3.0, "noise": "banded"}}, "privacy.noise"),
    (
        {"privacy": {"epsilon": 3.0, "aggregation": "secure", "colluding": 1}},
        "privacy.aggregation",
    ),
    ({"task": {"dataset": "digits", "model": "logistic", "calibrate": "private"}}, "calibrate"),
)


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_no_carrier_can_hold_is_refused(change, words):
    sections = {key: change[key] for key in change.keys() & {"privacy", "task"}}
    name = "dp-fedavg" if "aggregation" in str(change) else "privsgp"
    given = {"node": 0} | {key: change[key] for key in change.keys() - sections.keys()}
    with pytest.raises(tacit.InputError, match=words):
        tacit.PrivateClient(experiment(name, **sections), **given)


def test_own_records_and_modules_of_parties():
    generator = torch.Generator().manual_seed(0)
    own = [
        (torch.randn(20 + node, 5, generator=generator), torch.arange(20 + node) % 2)
        for node in range(3)
    ]
    config = {
        "algorithm": {"name": "dp-fedavg"},
        "train": {"steps": 2, "dtype": "float64"},
        "privacy": {"epsilon": 3.0, "noise_seed": 1},
    }
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    counts = [len(targets) for _, targets in own]
    clients = [
        tacit.PrivateClient(config, node, records=counts, data=own[node], model=module)
        for node in range(3)
    ]
    carried(clients)
    expected = tacit.train(config, model=module, nodes=own)
    for client in clients:
        assert torch.equal(client.finish().parameters[0], expected.parameters[0])
        assert (
            client.finish().document.epsilon[client.node]
            == (expected.document.epsilon[client.node])
        )
