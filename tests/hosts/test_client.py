"""A party's run by hand: the simulator's numbers, its own ledger, each message once."""

import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from parties import NODES, answers, carried, experiment, parties

import tacit
from forks import forked_process
from tacit.algorithms import ALGORITHMS
from tacit.analysis.statement import check_statement, write_statement
from tacit.hosts.by_hand import ServersMean
from tacit.privacy.ledger.ledger import read_ledger
from tacit.training.run_folder import checkpoint
from tacit.training.stacked_context import StackedContext

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
        assert sum(until - first for first, until in charged[1]) == 3  # all, of so short a run
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


def killed_with_its_message(folder, sent):
    """What a process does that ends once its party has made a message, without any farewell."""
    client = tacit.PrivateClient(experiment("privsgp", privacy={"epsilon": 3.0}), 2, out=folder)
    client.step()
    sent.write_bytes(b"".join(array.tobytes() for array in client.send().arrays))
    os._exit(9)


@pytest.mark.process
def test_a_party_that_was_killed_sends_the_same_bytes(tmp_path):
    sent = [tmp_path / "first", tmp_path / "again"]
    for file in sent:
        process = forked_process(killed_with_its_message, tmp_path / "2", file)
        process.start()
        process.join(100)
        assert process.exitcode == 9
    first, again = (file.read_bytes() for file in sent)
    assert first == again != b""
    (run,) = read_ledger(tmp_path / "2" / "rank-0001" / "ledger.sqlite").runs
    assert [until for _, until in run.charged[2]] == [3]  # reserved once, however often it is asked


LEFT_OPEN = """
import sys, warnings
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from parties import experiment
import torch, tacit
warnings.simplefilter("ignore")
client = tacit.PrivateClient(experiment("dp-fedavg"), 2, out=Path(sys.argv[1]) / "party")
client.step()
session = tacit.prepare(experiment("dp-fedavg"), out=Path(sys.argv[1]) / "run")
session.step()
torch.held = client, session  # to the very end of the interpreter
"""


@pytest.mark.process
def test_a_program_may_end_with_a_party_and_a_session_open(tmp_path):
    command = [sys.executable, "-c", LEFT_OPEN, str(tmp_path), str(Path(__file__).parent)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    (party,) = read_ledger(tmp_path / "party" / "rank-0001" / "ledger.sqlite").runs
    (run,) = read_ledger(tmp_path / "run" / "ledger.sqlite").runs
    assert [until for _, until in party.charged[2]] == [3]
    assert [until for _, until in run.charged[2]] == [1, 3]  # all that were planned


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
        ({**right, "a": arrays}, "no list of arrays"),
        ({**right, node: 5}, "no list of arrays"),
        ({**right, node: [[1, [2]]]}, "no list of arrays"),
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


def test_without_a_folder_a_party_that_is_closed_does_not_begin_anew():
    """It would send a step again whose first message no ledger knows any more."""
    client = parties(experiment("dp-fedavg"))[0]
    client.step()
    client.close()
    for asked in (client.step, client.send):
        with pytest.raises(tacit.InputError, match="closed without a folder"):
            asked()


def test_another_process_changes_nothing_of_a_party_that_runs(tmp_path):
    config = experiment("privsgp", privacy={"epsilon": 3.0})
    one, other = (tacit.PrivateClient(config, 0, out=tmp_path) for _ in range(2))
    with pytest.raises(tacit.InputError, match="call step"):
        one.send()  # which has begun it
    known = (one.folder / "party.json").read_bytes()
    with pytest.raises(tacit.InputError, match="one is running it now"):
        other.step()
    assert (one.folder / "party.json").read_bytes() == known


@pytest.mark.process
def test_a_copy_of_a_process_makes_no_message():
    """Of two copies each would take an answer of its own, and use the same noise."""
    client = parties(experiment("privsgp", privacy={"epsilon": 3.0}))[0]
    client.step()
    child = os.fork()
    if child == 0:
        try:
            client.step()
        except tacit.InputError as error:
            os._exit(3 if "another process" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_number_of_a_message_is_written_by_whoever_sends_it(tmp_path):
    """Also where a process was killed after its checkpoint was written, and before its number."""
    client = parties(experiment("privsgp", privacy={"epsilon": 3.0}), tmp_path)[0]
    client.step()
    client.close()
    (client.folder / "party-turn-0").unlink()
    assert client.send().turn == 0
    assert (client.folder / "party-turn-0").exists()


def test_after_an_error_it_goes_on_where_it_stood(tmp_path):
    client = parties(experiment("dp-fedavg", privacy={"epsilon": 3.0}), tmp_path)[0]
    client.step()
    first = client.send().arrays
    client.receive([np.full_like(array, 1e300) for array in first])
    with pytest.raises(tacit.DivergenceError):
        client.step()
    client.step()
    assert np.array_equal(client.send().arrays, first)
    client.receive(first)
    client.step()
    assert client.send().turn == 1


def test_a_party_that_nobody_holds_lets_go_of_its_folder(tmp_path):
    config = experiment("dp-fedavg", privacy={"epsilon": 3.0})
    client = parties(config, tmp_path)[0]
    client.step()
    arrays, turn = client.send().arrays, client.send().turn
    client.itself = client  # collected by cycles alone
    del client
    gc.collect()
    assert not [each for each in threading.enumerate() if each.name == "tacit-party"]
    again = parties(config, tmp_path)[0].send()
    assert again.turn == turn
    assert all(map(np.array_equal, again.arrays, arrays))


def test_a_party_may_be_asked_by_any_thread():
    client = parties(experiment("dp-fedavg", privacy={"epsilon": 3.0}))[0]
    while not client.done:
        for asked in (client.step, lambda: client.done or client.receive(client.send().arrays)):
            with ThreadPoolExecutor(1) as other:
                other.submit(asked).result()
    assert client.finish().document.epsilon[0] <= 3


def test_a_message_that_is_not_written_yet_is_given_to_no_thread(tmp_path, monkeypatch):
    client = parties(experiment("dp-fedavg"), tmp_path)[0]
    client.step()
    client.receive(client.send().arrays)
    write, refused = checkpoint.write, []

    def asked_meanwhile(*given, **more):
        with ThreadPoolExecutor(1) as other:
            refused.append(other.submit(client.send).exception())
        return write(*given, **more)

    monkeypatch.setattr(checkpoint, "write", asked_meanwhile)
    client.step()
    assert client.send().turn == 1
    assert ["has no message now" in str(error) for error in refused] == [True]


@pytest.mark.process
def test_who_is_interrupted_amid_a_step_goes_on_from_the_folder(tmp_path, monkeypatch):
    config = experiment("dp-fedavg")
    one, other = parties(config, tmp_path / "one")[0], parties(config, tmp_path / "other")[0]
    inner = StackedContext.add_noise

    def interrupted(*given, **more):
        signal.raise_signal(signal.SIGINT)
        return inner(*given, **more)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else a shell's, in its back
    try:
        with monkeypatch.context() as patch:
            patch.setattr(StackedContext, "add_noise", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.step()
    finally:
        signal.signal(signal.SIGINT, before)
    other.step()
    one.step()
    assert all(map(np.array_equal, one.send().arrays, other.send().arrays))


def test_a_run_that_is_done_says_so_in_its_folder(tmp_path):
    rounds = {"final_mixing": 1}
    config = experiment(
        "own_steps:IN_PLACE", 1, algorithm=rounds, topology={"graph": "exponential"}
    )
    clients = parties(config, tmp_path)
    carried(clients)
    again = tacit.PrivateClient(config, 0, out=tmp_path / "party-0")
    with pytest.raises(tacit.InputError, match=r"party\.json'.* the run is done"):
        again.step()


def test_a_folder_of_another_run_is_refused(tmp_path):
    config = experiment("privsgp")
    tacit.train(config, out=tmp_path / "run")
    with pytest.raises(tacit.InputError, match="the folder of another run"):
        tacit.PrivateClient(config, 0, out=tmp_path / "run").step()
    assert not (tmp_path / "run" / "rank-0001").exists()


REFUSED = (
    ({"node": 9}, "node = 9: must be one of at least two nodes, 0 to 3"),
    ({"node": "x"}, "node = 'x'"),
    ({"records": [1, 2, 3, 4]}, "records = .*node 0 has"),
    ({"records": [360, 359]}, "must be of every node, and there are 4"),
    ({"records": [360, -1, 1, 1]}, "must be a whole number for each node"),
    ({"records": 5}, "must be a whole number for each node"),
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
