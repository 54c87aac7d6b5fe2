"""tacit inside Flower: apps for methods with a server, and a mod for anybody's `NumPyClient`.

A party is opened from its folder when a message comes, in whatever process: there are its ledger
and the message that it sent last, which whoever asks again is sent, to the same bytes. In a
simulation parties stay open, in a process a core. Flower sends the text of an exception to the
server, and it may quote a record: none leaves an app, only a line that is public.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

import numpy as np
from safetensors.numpy import save

from tacit.analysis.statement import write_statement
from tacit.base.private_files import write_private
from tacit.errors import BudgetError, InputError, PeerError, optional, public_line
from tacit.hosts.by_hand import Array, PartyMessage, ServersMean, checksum
from tacit.hosts.client import PrivateClient
from tacit.training.hooks import LOG

optional("flwr")  # says what to install
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict  # noqa: E402
from flwr.client import NumPyClient  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402

WHO, TURN = "query.tacit", "train.tacit"
NUMBERS, TERMS = "arrays", "tacit"
_FIELDS = ("turn", "step", "kind", "latest")  # of a message to a server
_REFUSED = 6  # Flower's code for a mod whose conditions are not met
_PARTITION = ("partition-id", "num-partitions")  # of the context of a node
_LOCAL_STEPS = "tacit.hosts.local_steps:ROW"

MakeParty = Callable[[Any], PrivateClient]
Reply = tuple[list[Array], dict[str, Any]]


class _PrivateApp(ClientApp):  # type: ignore[misc]
    """See `client_app`; it has no mods and no functions more: they would send what has no noise."""

    def __init__(self, party: MakeParty) -> None:
        super().__init__()
        self._party, self._parties = party, _Parties(party)
        self._keepers = dict[int, tuple[Any, Connection | None]]()

    def __reduce__(self) -> tuple[Any, ...]:
        return client_app, (self._party,)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        expected = "would send what is not noised: the app of a party has its own functions alone"
        raise InputError("client_app", "a function more", expected, public=True)

    train = evaluate = query = lifespan = _refuse

    def __call__(self, message: Any, context: Any) -> Any:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return self._parties.reply(message, context, close=True)
        place = context.node_config["partition-id"] % (os.cpu_count() or 1)
        if place not in self._keepers:
            options = {"name": f"tacit-{context.run_id}-{place}", "get_if_exists": True}
            kept = ray.remote(_Parties).options(**options, num_cpus=0).remote(self._party)
            self._keepers[place] = kept, _connected(ray, kept)
        kept, socket = self._keepers[place]
        if socket is None:
            return ray.get(kept.reply.remote(message, context))
        try:
            socket.send((message, context))
            return socket.recv()
        except (EOFError, OSError):
            del self._keepers[place]  # its process has ended: who asks again is given another
            raise


@lru_cache(maxsize=1)  # a simulation sends the app with each message: in a process it is one
def client_app(party: MakeParty) -> _PrivateApp:
    """A `ClientApp` that is one party of an experiment, and sends nothing else.

    `party`, a function of a module, makes it from Flower's `Context`, with a folder of its own.
    What it reads should be the node's own, `context.node_config`, never `context.run_config`, which
    whoever submits the run writes. When the run ends, its statement is in its folder.
    """
    return _PrivateApp(party)


class _Parties:
    """The parties that a process has made, by their number in Flower."""

    def __init__(self, party: MakeParty) -> None:
        self._party, self._made = party, dict[tuple[int, int], PrivateClient]()
        self._making, self._turns = Lock(), defaultdict[tuple[int, int], Lock](Lock)

    def reply(self, message: Any, context: Any, *, close: bool = False) -> Any:
        """What a party replies: who it is, its message of a turn, what came of it, or why not."""
        key = context.run_id, context.node_id
        with self._making:
            turn = self._turns[key]
        with turn:  # several processes ask, of different parties at once
            try:
                if key not in self._made:
                    with self._making:  # a function of the user's, who may seed a generator of all
                        self._made[key] = self._party(context)
                content = _answer(self._made[key], message)
                if close:
                    self._made[key].close()
                return Message(content, reply_to=message)
            except Exception as error:
                if key in self._made:
                    self._made.pop(key).close()
                return _refusal(message, error)

    def connect(self, address: str) -> None:
        """Reply to what comes through this socket from now on."""
        Thread(target=self._serve, args=(Client(address),), daemon=True).start()

    def _serve(self, socket: Connection) -> None:
        with suppress(EOFError, OSError):  # who asked has ended
            while True:
                socket.send(self.reply(*socket.recv()))


def _connected(ray: Any, kept: Any) -> Connection | None:
    """Asks a process by a socket, in a tenth of a call of Ray's; None if it is on another machine.

    Who may connect may open the folder that the socket is in, which is this user's alone.
    """
    with TemporaryDirectory(prefix="tacit-") as folder, Listener(f"{folder}/socket") as listener:
        try:
            ray.get(kept.connect.remote(listener.address))
        except FileNotFoundError:
            return None
        return listener.accept()


def _refusal(message: Any, error: Exception) -> Any:
    LOG.error("refused a message of Flower's server", exc_info=error)
    line = public_line(error) or f"{type(error).__name__}: the log of this node says more"
    return Message(Error(_REFUSED, line), reply_to=message)


def _answer(client: PrivateClient, message: Any) -> Any:
    kind, node = message.metadata.message_type, client.node
    if kind == WHO:
        return _content({"node": node, "agreed": client.agreed})
    if kind != TURN:
        expected = "is not private: only an app of tacit.hosts.flower.server_app is answered"
        raise InputError("message", kind, expected, public=True)
    arrays, asked = _read(message.content)
    if asked["turn"] >= 0:
        client.receive(arrays, turn=asked["turn"])
    client.step()
    if not client.done:
        sent = client.send()
        terms = {name: getattr(sent, name) for name in _FIELDS}
        return _content({"node": node, **terms}, sent.arrays)
    result = client.finish()
    if result.private and client.folder is not None:
        write_statement(client.folder)
    model = result.model().state_dict()
    end = {"names": list(model), "epsilon": json.dumps(result.epsilon[int(node)])}
    return _content({"node": node, **end}, [each.numpy(force=True) for each in model.values()])


def _content(terms: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Any:
    checked = ConfigRecord({**terms, "checksum": checksum(arrays)})
    return RecordDict({TERMS: checked, NUMBERS: ArrayRecord(list(arrays))})


def _read(content: Any) -> Reply:
    """Arrays and terms of a message. Its checksum finds changes that mean no harm."""
    try:
        arrays, terms = content[NUMBERS].to_numpy_ndarrays(), dict(content[TERMS])
        same = terms["checksum"] == checksum(arrays)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PeerError("a message is not of tacit's apps, or of another version") from None
    if not same:
        raise PeerError(
            "arrays were changed on the way: a mod or a strategy of Flower's that weighs, clips or "
            "masks them does not go with tacit's averages"
        )
    return arrays, terms


def server_app(clients: int, *, out: str | Path, timeout: float = 3600.0, attempts: int = 3) -> Any:
    """A `ServerApp` that averages what `clients` parties of `client_app` send, with equal weights.

    All are asked in every turn: who takes part in a round is the experiment's choice, which is
    public. `out/model.safetensors` is the last model, `out/epsilon.json` what each node certified.
    A turn is asked for `attempts` times, of `timeout` seconds each; a party makes it once.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        nodes = _parties(grid, clients, timeout, attempts)
        server, turn, answer = ServersMean(clients), -1, tuple[Array, ...]()
        while True:
            content = _content({"turn": turn}, answer)
            replies = _asked(grid, nodes, TURN, content, timeout, attempts)
            if any("epsilon" in terms for _, terms in replies.values()):
                return _write_end(Path(out), replies)
            messages = {node: _message(*reply) for node, reply in replies.items()}
            answer, turn = server.answer(messages), messages[0].turn

    return app


def _message(arrays: list[Array], terms: Mapping[str, Any]) -> PartyMessage:
    turn, step, kind, latest = (terms[name] for name in _FIELDS)
    return PartyMessage(turn, step, kind, (), (), latest, tuple(arrays))


def _parties(grid: Any, clients: int, timeout: float, attempts: int) -> dict[int, int]:
    """Flower's number of each node, once all are there and agree on what is trained."""
    end = time.monotonic() + timeout
    while len(ids := list(grid.get_node_ids())) < clients and time.monotonic() < end:
        time.sleep(0.2)
    told = _asked(grid, dict(enumerate(ids)), WHO, _content({}), timeout, attempts)
    nodes = {terms["node"]: ids[place] for place, (_, terms) in told.items()}
    if len(ids) != clients or sorted(nodes) != list(range(clients)):
        raise PeerError(f"{len(ids)} clients are nodes {sorted(nodes)}, not each of {clients} once")
    agreed = {terms["node"]: terms["agreed"] for _, terms in told.values()}
    for node, digest in agreed.items():
        if digest != agreed[0]:
            raise PeerError(f"node {node} has another experiment, model or plan than node 0")
    return nodes


def _asked(
    grid: Any, nodes: Mapping[int, int], kind: str, content: Any, timeout: float, attempts: int
) -> dict[int, Reply]:
    """What every node replies; those that do not are asked again, with the same arrays."""
    replies: dict[int, Reply] = {}
    why = "no reply came"
    for _ in range(attempts):
        left = {identity: node for node, identity in nodes.items() if node not in replies}
        asked = [Message(content, identity, kind) for identity in left]
        for reply in grid.send_and_receive(asked, timeout=timeout):
            node = left[reply.metadata.src_node_id]
            if not reply.has_error():
                replies[node] = _read(reply.content)
                continue
            why = str(reply.error.reason).partition("\n")[0][:300]
            if reply.error.code == _REFUSED:
                raise PeerError(f"node {node} refuses: {why}")
        if len(replies) == len(nodes):
            return replies
    lost = [node for node in nodes if node not in replies]
    raise PeerError(f"nodes {lost} were asked {attempts} times: {why}")


def _write_end(out: Path, replies: Mapping[int, Reply]) -> None:
    arrays, terms = replies[0]
    for others, _ in replies.values():
        if len(others) != len(arrays) or not all(map(np.array_equal, others, arrays)):
            raise PeerError("parties end with different models: they were answered differently")
    epsilon = {node: json.loads(replies[node][1]["epsilon"]) for node in sorted(replies)}
    out.mkdir(parents=True, exist_ok=True)
    write_private(out / "model.safetensors", save(dict(zip(terms["names"], arrays, strict=True))))
    write_private(out / "epsilon.json", json.dumps(epsilon).encode())


def private_mod(
    client_fn: Callable[[Any], Any],
    settings: Mapping[str, Any],
    *,
    parts: Callable[[Any], tuple[Any, Any, Any]],
    out: Callable[[Any], str | Path],
) -> Callable[[Any, Any, Any], Any]:
    """A mod that makes `fit` of a `NumPyClient` private; all else that a server asks is refused.

    `ClientApp(client_fn, mods=[private_mod(client_fn, ...)])`: in place of `fit`, steps are made
    from the server's model by noised sums of clipped record gradients
    (`tacit.hosts.local_steps`); the model is sent with the number of records, which is public, and
    no metrics. The client's own functions are never called. Epsilon holds whatever the server
    sends; the same model again is answered by the same bytes.

    Args:
        client_fn: of the app.
        settings: `[algorithm]` (`learning_rate`, `clip`, `local_steps`), `[privacy]` and `[train]`,
            whose `steps` are rounds times `local_steps`.
        parts: of a client: the module that is sent, `(inputs, targets)`, and `[task].loss`.
        out: the folder of a client's ledger, from Flower's `Context`.
    """

    def private_fn(context: Any) -> Any:
        client = client_fn(context)
        own = parts(getattr(client, "numpy_client", client))
        node, nodes = (int(context.node_config.get(name, 0)) for name in _PARTITION)
        return _PrivateSteps(own, settings, out(context), node, max(nodes, node + 1, 2)).to_client()

    inner = ClientApp(client_fn=private_fn)

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        try:
            if (kind := message.metadata.message_type) != "train":
                expected = (
                    "is not private, only fit: give the strategy its initial_parameters, and "
                )
                raise InputError("message", kind, expected + "fraction_evaluate = 0", public=True)
            return inner(message, context)
        except Exception as error:
            return _refusal(message, error)

    return mod


class _PrivateSteps(NumPyClient):  # type: ignore[misc]
    """A client whose `fit` is tacit's steps; see `private_mod`."""

    def __init__(
        self,
        parts: tuple[Any, Any, Any],
        settings: Mapping[str, Any],
        out: str | Path,
        node: int,
        nodes: int,
    ) -> None:
        self._parts, self._settings, self._out = parts, settings, out
        self._node, self._nodes = node, nodes

    def fit(self, parameters: list[Array], config: Any) -> tuple[list[Array], int, dict[str, Any]]:
        module, records, loss = self._parts
        if list(module.state_dict()) != [name for name, _ in module.named_parameters()]:
            expected = "has state beside its parameters, which no noise hides"
            raise InputError("module", type(module).__name__, expected, public=True)
        algorithm = {**self._settings["algorithm"], "name": _LOCAL_STEPS}
        client = PrivateClient(
            {**self._settings, "algorithm": algorithm},
            self._node,
            records=[len(records[0])] * self._nodes,  # others' are not known, and not accounted
            data=records,
            model=module,
            loss=loss,
            out=self._out,
        )
        try:
            new = self._stepped(client, np.concatenate([np.ravel(each) for each in parameters]))
        finally:
            client.close()
        places = np.cumsum([each.size for each in parameters])[:-1]
        pairs = zip(np.split(new, places), parameters, strict=True)
        moved = [part.reshape(old.shape).astype(old.dtype) for part, old in pairs]
        return moved, len(records[0]), {}

    def _stepped(self, client: PrivateClient, model: Array) -> Array:
        """The model `[d]` after the round's local steps from this one."""
        client.step()
        if client.done:
            raise BudgetError("all planned local steps are made: nothing more is private")
        waits = client.send()
        row = [model.astype(waits.arrays[0].dtype)]
        try:
            client.receive(row, turn=waits.turn - 1)  # the round before, asked for again
        except InputError:
            client.receive(row, turn=waits.turn)
            client.step()
        return (
            client.finish().parameters[0].numpy(force=True)
            if client.done
            else client.send().arrays[0]
        )
