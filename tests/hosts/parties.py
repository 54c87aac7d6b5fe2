"""Parties whose messages a loop carries, which stands for another carrier."""

from tacit import PrivateClient
from tacit.hosts.by_hand import ServersMean

NODES = 4


def experiment(name, steps=3, **sections):
    options = sections.pop("algorithm", {})
    train = {"steps": steps, "dtype": "float64", "batch": 16} | sections.pop("train", {})
    return {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": NODES},
        "algorithm": {"name": name, **options},
        "train": train,
        "privacy": {"epsilon": 3.0, "noise_seed": 5},
    } | sections


def parties(config, out=None, nodes=NODES):
    """All parties of an experiment, each with a folder of its own in `out`."""
    return [
        PrivateClient(config, node, out=None if out is None else out / f"party-{node}")
        for node in range(nodes)
    ]


def answers(messages, server):
    """What answers each party's message, by its node."""
    if messages[0].kind == "average":
        return dict.fromkeys(messages, server.answer(messages))
    return {
        node: {other: messages[other].arrays for other in own.of} for node, own in messages.items()
    }


def carried(clients, *, between=lambda clients: None):
    """Carry all messages until every party is done; `between` is called once they are sent."""
    server, sent = ServersMean(len(clients)), []
    while True:
        for client in clients:
            client.step()
        if all(client.done for client in clients):
            return sent
        messages = {client.node: client.send() for client in clients}
        sent.append(messages)
        between(clients)
        for node, answer in answers(messages, server).items():
            clients[node].receive(answer, turn=messages[node].turn)
