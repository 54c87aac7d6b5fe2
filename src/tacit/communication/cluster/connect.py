"""Finding the other processes, from the environment that torchrun or `tacit launch` sets."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.communication.cluster.addresses import network_settings, resolve
from tacit.communication.cluster.cluster import START_UP, Cluster, Place
from tacit.communication.cluster.rendezvous import meet
from tacit.communication.cluster.store import KeyValueStore, host_store, open_board
from tacit.communication.cluster.watch import Watch
from tacit.errors import InputError

__all__ = ["connect", "read_place"]

_SET_BY = "torchrun and tacit launch set it"
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_MOST = 1 << 20


def connect(
    environment: Mapping[str, str],
    *,
    timeout: float,
    allow_insecure_network: bool = False,
    start_up: float = START_UP,
) -> Cluster | None:
    """Meet the other processes of this run; returns when all have come.

    Put `cluster.settings` into `os.environ` before a process group is made, and call
    `cluster.close()` at the end whatever happened. A process started by hand may set the same
    variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0 then keeps the store.

    Args:
        environment: of the process.
        timeout: seconds, `[train].timeout`.
        allow_insecure_network: whether a public address may be used.
        start_up: seconds to wait for the other processes; at least the timeout.

    Returns:
        None where WORLD_SIZE is not set, or 1.

    Raises:
        InputError: a variable is missing or wrong, or an address is public.
        PeerError: not all came in time.
    """
    place = read_place(environment, allow_insecure_network=allow_insecure_network)
    if place is None:
        return None
    start_up = max(start_up, timeout)
    limit = max(timeout / 2, 1.0)
    hosted = place.keeps_store and place.rank == 0
    server = host_store(place.address, place.port, limit) if hosted else None
    keeper = "rank 0" if place.keeps_store else "the launcher"

    def store(prefix: str) -> KeyValueStore:
        return open_board(
            place.address, place.port, prefix=prefix, keeper=keeper, opening=start_up, limit=limit
        )

    run = f"tacit/{place.run_id}"
    rendezvous = store(f"{run}/rendezvous/")
    token = meet(rendezvous, place.rank, place.processes, start_up)
    rendezvous.close()
    own = f"{run}/attempt/{token}/"
    watch = Watch(
        store(own), place.rank, place.processes, timeout, kept_by_rank_0=place.keeps_store
    )
    return Cluster(
        place, store(own), store(f"{run}/lasting/"), watch, timeout=timeout, server=server
    )


def read_place(environment: Mapping[str, str], *, allow_insecure_network: bool) -> Place | None:
    """This process' place; None where it is alone.

    Raises:
        InputError: a variable is missing or wrong, or an address is public.
    """
    if not environment.get("WORLD_SIZE"):
        return None
    processes = _number(environment, "WORLD_SIZE", 1, _MOST)
    if processes == 1:
        return None
    name = environment.get("MASTER_ADDR")
    if not name:
        raise InputError("MASTER_ADDR", name, f"must be the rendezvous' address; {_SET_BY}")
    rank = _number(environment, "RANK", 0, processes - 1)
    port = _number(environment, "MASTER_PORT", 1, 65535)
    address = resolve(name)
    return Place(
        rank=rank,
        processes=processes,
        address=address,
        port=port,
        keeps_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        run_id=environment.get("TORCHELASTIC_RUN_ID") or "none",
        restart=_number({_RESTARTS: "0", **environment}, _RESTARTS, 0, _MOST),
        settings=network_settings(
            environment, address, allow_insecure_network=allow_insecure_network
        ),
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None or not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise InputError(name, text, f"must be a whole number from {least} to {most}; {_SET_BY}")
    return int(text)
