"""What a party speaks through: a step that was cut off is given the same, and never bare sums."""

from dataclasses import replace

import numpy as np
import own_steps
import pytest
import torch
from parties import answers, carried, experiment, parties

import tacit
from tacit.errors import InputError, PeerError
from tacit.hosts.by_hand import PartyMessage, ServersMean
from tacit.training.stacked_context import StackedContext


def message(turn=0, rows=1, **more):
    arrays = (np.full(3, 2.0),) * rows
    return replace(PartyMessage(turn, 0, "average", (), (), False, arrays), **more)


WRONG = (
    ({0: message()}, "node 1 sent nothing"),
    ({1: message()}, "node 0 sent nothing"),
    ({0: message(), 1: message(turn=1)}, "node 1 is at another turn"),
    ({0: message(), 1: message(latest=True)}, "node 1 is at another turn"),
    ({0: message(kind="mix"), 1: message()}, "node 0 is at another turn than node 0"),
    ({0: message(), 1: message(rows=2)}, "node 1 sent other shapes"),
    ({0: message(rows=0), 1: message(rows=0)}, "has no rows"),
)


@pytest.mark.parametrize(("messages", "words"), WRONG)
def test_a_server_names_whose_message_is_wrong(messages, words):
    with pytest.raises(PeerError, match=words):
        ServersMean(2).answer(messages)


def test_a_server_answers_a_turn_once_and_keeps_the_latest():
    server = ServersMean(2)
    first = {0: message(latest=True), 1: message(latest=True, arrays=(np.zeros(3),))}
    assert server.answer(first)[0].tolist() == [1, 1, 1]
    with pytest.raises(PeerError, match="was answered"):
        server.answer(first)
    silent = {0: message(1, latest=True, arrays=()), 1: message(1, latest=True)}
    assert server.answer(silent)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["privsgp-vr", "dp-fedavg", "fedspd-dp"])
def test_records_are_read_and_noise_is_drawn_once_a_step(name, monkeypatch):
    """A step stands still at its questions, and is not made again."""
    calls = []
    for asked in ("batch_gradient", "batch_difference", "add_noise"):
        inner = getattr(StackedContext, asked)

        def counted(self, *given, inner=inner, asked=asked, **more):
            calls.append((asked, tuple(self.nodes), given[-1] if asked != "batch_gradient" else 0))
            return inner(self, *given, **more)

        monkeypatch.setattr(StackedContext, asked, counted)
    clients = parties(experiment(name, steps=2))
    carried(clients)
    noise = [call for call in calls if call[0] == "add_noise"]
    assert len(noise) == 2 * len(clients)
    sums = [call for call in calls if call[0] != "add_noise"]
    assert len(sums) <= 2 * len(noise)
    assert len(sums) >= len(noise)


def test_what_a_step_does_in_place_is_done_again_in_place(tmp_path):
    """Else an anchor would keep its bare sum, and the next message would show it."""
    config = experiment("privsgp-vr", steps=2)
    one, again = parties(config)[0], parties(config, tmp_path)[0]
    for client in (one, again):
        client.step()
    first = one.send()
    again.close()
    received = dict.fromkeys(first.of, first.arrays)
    for client in (one, again):
        client.receive(received, turn=0)
        client.step()
    assert all(map(np.array_equal, one.send().arrays, again.send().arrays))
    for own, other in zip(one._run.state, again._run.state, strict=True):
        assert torch.equal(own, other)


def test_local_steps_made_again_come_to_the_same_message_whatever_their_sums(tmp_path, monkeypatch):
    """Unclipped sums are not written: what is noised is, and a message is made of that alone."""
    client = parties(experiment("dp-fedavg", algorithm={"local_steps": 3}), tmp_path)[0]
    client.step()
    first = client.send()
    client.close()
    sums, inner = [], StackedContext.batch_gradient

    def other(*given, **more):
        sums.append(inner(*given, **more).mul_(1.5))
        return sums[-1]

    monkeypatch.setattr(StackedContext, "batch_gradient", other)
    again = client.send()
    assert (again.turn, len(sums)) == (first.turn, 3)
    assert all(map(np.array_equal, again.arrays, first.arrays))


def test_peers_get_what_they_wait_for():
    clients = parties(experiment("privsgp"))
    for client in clients:
        client.step()
    messages = {client.node: client.send() for client in clients}
    for node, own in messages.items():
        assert set(own.of) == {other for other, theirs in messages.items() if node in theirs.to}
    assert set(answers(messages, None)) == set(messages)


def test_a_step_may_write_into_its_state_and_give_that_back():
    config = experiment("own_steps:IN_PLACE", topology={"graph": "exponential"})
    clients = parties(config)
    carried(clients)
    expected = tacit.train(config)
    for client in clients:
        assert torch.equal(client.finish().parameters[0], expected.parameters[client.node])


def test_a_bare_sum_is_never_given_where_noise_is_asked_for(monkeypatch, tmp_path):
    """A step that keeps something outside its state may ask otherwise when it is made again."""
    monkeypatch.setattr(own_steps, "calls", [])
    client = parties(experiment("own_steps:FICKLE"), tmp_path)[0]
    client.step()
    client.close()
    with pytest.raises(InputError, match="it asked for sum before"):
        client.send()


def test_what_was_taken_does_not_change_under_a_step():
    """Who brought an answer may use its memory again."""
    models = []
    for reused in (False, True):
        client = parties(experiment("privsgp"))[0]
        client.step()
        message = client.send()
        answer = {node: [array.copy() for array in message.arrays] for node in message.of}
        client.receive(answer)
        for arrays in answer.values() if reused else ():
            arrays[0][:] = np.nan
        client.step()
        models.append(client.send().arrays[0])
    assert np.array_equal(*models)
