"""Finding the other processes, from the environment that torchrun or `tacit launch` sets.

**On which network.** Messages travel in clear, so never on a public one unasked. What is checked
here is what this process decides: where the rendezvous is, and from which of this machine's
addresses gloo and NCCL speak. The rendezvous that torchrun itself keeps listens on every address of
its machine; a firewall must close its port to the outside.

**Who takes part in this attempt.** torchrun's agents keep their store when they restart the
workers, and their counts of restarts differ between machines: with the backend c10d an agent counts
only what its own workers failed, and with static it restarts no others. So the processes that are
alive now agree on a token that nobody can have used before (`meet`), and all keys begin with it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tacit.communication.cluster.cluster import START_UP, Cluster, Place
from tacit.communication.cluster.store import KeyValueStore, host_store, open_board
from tacit.communication.cluster.watch import Watch
from tacit.communication.received import TOKEN
from tacit.errors import AbsentError, InputError, PeerError

_SIOCGIFADDR = 0x8915  # ask Linux for the IPv4 address of an interface; netdevice(7)
_ANYWHERE = "192.0.2.1"  # for documentation only (RFC 5737): reached by the default route


def network_settings(
    environment: Mapping[str, str], address: str, *, allow_insecure_network: bool
) -> dict[str, str]:
    """What to set in the environment so that gloo and NCCL speak on the network of the rendezvous.

    `environment` is as torchrun sets it, and the address that of the rendezvous, as a number: what
    `MASTER_ADDR` resolves to. `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` are given where they
    are not set and an interface was found; otherwise gloo follows the host's name.

    Raises:
        InputError: an address is public and that is not allowed.
    """
    named = environment.get("GLOO_SOCKET_IFNAME", "")
    if named:
        interface: str | None = named
        own = [found for name in named.split(",") if (found := address_of(name))]
    else:
        source = _own_address(environment, address)
        interface = interface_of(source)
        own = [source] if interface else _addresses(socket.gethostname())
    if not allow_insecure_network:
        for found, what in [(address, "MASTER_ADDR"), *((one, "this host") for one in own)]:
            if is_public(found):
                raise InputError(
                    "--allow-insecure-network",
                    f"not given, but {what} is {found}",
                    "messages and the rendezvous travel in clear: run inside WireGuard or a "
                    "private network, or give the option to use a public address all the same",
                )
    if interface is None:
        return {}
    settings = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {key: value for key, value in settings.items() if not environment.get(key)}


def resolve(name: str) -> str:
    """A host's address as a number; IPv4 where it has one. An unknown name is an InputError."""
    found = _addresses(name)
    if not found:
        raise InputError("MASTER_ADDR", name, "is not known: give an address that it can be")
    return min(found, key=lambda address: ":" in address)


def is_public(address: str) -> bool:
    """Whether an address, as a number, can be reached from the internet, or stands for all.

    >>> [is_public(one) for one in ("10.0.0.1", "8.8.8.8", "0.0.0.0", "::1", "::ffff:8.8.8.8")]
    [False, True, True, False, True]
    """
    number = ipaddress.ip_address(address)
    mapped = getattr(number, "ipv4_mapped", None) or number
    return bool(mapped.is_global or mapped.is_unspecified)


def interface_of(address: str) -> str | None:
    """The name of the interface of this machine that has this address; None if none is found."""
    number = ipaddress.ip_address(address)
    names = [name for _, name in socket.if_nameindex()]
    if number.version == 4 and number.is_loopback:  # an interface tells its first address only
        number = ipaddress.ip_address("127.0.0.1")
    read = _interface_ipv4 if number.version == 4 else _interface_ipv6
    return next((name for name in names if read(name) == str(number)), None)


def address_of(interface: str) -> str | None:
    """The address of an interface that gloo takes: its first of IPv4, else of IPv6."""
    return _interface_ipv4(interface) or _interface_ipv6(interface)


def _own_address(environment: Mapping[str, str], address: str) -> str:
    """The address of this machine from which the rendezvous is reached."""
    name = environment.get("MASTER_ADDR", "")
    local, context = (environment.get(key, "") for key in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    # On the machine that keeps the rendezvous its own name often stands for 127.0.1.1 in
    # /etc/hosts, where the other machines would find nobody.
    elsewhere = bool(local) and local != context and name not in {address, "localhost"}
    loopback = ipaddress.ip_address(address).is_loopback
    return _route_to(_ANYWHERE if loopback and elsewhere else address) or address


def _route_to(address: str) -> str | None:
    """The address that this machine sends from; connecting a UDP socket sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            return None


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _interface_ipv4(name: str) -> str | None:
    try:
        from fcntl import ioctl
    except ImportError:  # not a Unix
        return None
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return socket.inet_ntoa(ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:  # it has none, or the system answers another way
            return None


def _interface_ipv6(name: str) -> str | None:
    table = Path("/proc/net/if_inet6")
    lines = table.read_text(encoding="ascii").splitlines() if table.is_file() else []
    for fields in map(str.split, lines):
        if fields[-1] == name:
            return str(ipaddress.IPv6Address(bytes.fromhex(fields[0])))
    return None


def meet(store: KeyValueStore, rank: int, processes: int, limit: float, pause: float = 0.05) -> str:
    """Agree on the token of this attempt; returns when every rank of it has come.

    Each rank writes a fresh random number, and then, again and again until all have written the
    same, the digest of all numbers that it finds. A digest with this rank's number in it was
    written after this rank came: what earlier attempts left is not taken for an answer.

    The `limit` of waiting for the others and the `pause` between two looks are in seconds.

    Raises:
        PeerError: not all ranks came in time; names those that are missing.
    """
    hellos, answers = ([f"{word}/{one}" for one in range(processes)] for word in ("hello", "all"))
    store.put(hellos[rank], TOKEN.write(secrets.token_hex(8)))
    token, deadline = "", time.monotonic() + limit
    while True:
        if store.has(hellos):
            texts = store.get_all(hellos)
            numbers = [TOKEN.read(text, one, "number") for one, text in enumerate(texts)]
            before, token = token, hashlib.sha256("\n".join(numbers).encode()).hexdigest()[:32]
            if token != before:
                store.put(answers[rank], token)
            if store.has(answers) and set(store.get_all(answers)) == {token}:
                return token
        if time.monotonic() > deadline:
            late = [
                one
                for one in range(processes)
                if (store.get(answers[one]) != token if token else store.get(hellos[one]) is None)
            ]
            named = ("rank " if len(late) == 1 else "ranks ") + ", ".join(map(str, late))
            raise PeerError(f"{named} did not come to the rendezvous within {limit:g} s")
        time.sleep(pause)


_SET_BY = "torchrun and tacit launch set it"
_MOST = 1 << 20


def connect(
    environment: Mapping[str, str],
    *,
    timeout: float,
    allow_insecure_network: bool = False,
    start_up: float = START_UP,
) -> Cluster | None:
    """Meet the other processes of this run; returns when all have come.

    None where WORLD_SIZE is not set, or 1. Put `cluster.settings` into `os.environ` before a
    process group is made, and call `cluster.close()` at the end whatever happened. A process
    started by hand may set the same variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0
    then keeps the store.

    `timeout` is `[train].timeout`, in seconds; `start_up`, at least as long, is how many seconds to
    wait for the other processes. `allow_insecure_network` allows a public address.

    Raises:
        InputError: a variable is missing or wrong, or an address is public.
        AbsentError: not all came in time.
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
    try:
        rendezvous = store(f"{run}/rendezvous/")
        token = meet(rendezvous, place.rank, place.processes, start_up)
    except PeerError as error:
        raise AbsentError(str(error)) from None
    rendezvous.close()
    own = f"{run}/attempt/{token}/"
    watch = Watch(
        store(own), place.rank, place.processes, timeout, kept_by_rank_0=place.keeps_store
    )
    stores = store(own), store(f"{run}/lasting/")
    return Cluster(place, *stores, watch, timeout=timeout, start_up=start_up, server=server)


def read_place(environment: Mapping[str, str], *, allow_insecure_network: bool) -> Place | None:
    """This process' place; None where it is alone. Errors are InputErrors, as of `connect`."""
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
        settings=network_settings(
            environment, address, allow_insecure_network=allow_insecure_network
        ),
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None or not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise InputError(name, text, f"must be a whole number from {least} to {most}; {_SET_BY}")
    return int(text)
