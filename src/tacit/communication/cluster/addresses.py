"""On which network the processes talk; messages travel in clear, so never on a public one unasked.

What is checked here is what this process decides: where the rendezvous is, and from which of this
machine's addresses gloo and NCCL speak. The rendezvous that torchrun itself keeps listens on every
address of its machine; a firewall must close its port to the outside.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from tacit.errors import InputError

__all__ = ["address_of", "interface_of", "is_public", "network_settings", "resolve"]

_SIOCGIFADDR = 0x8915  # ask Linux for the IPv4 address of an interface; netdevice(7)
_ANYWHERE = "192.0.2.1"  # for documentation only (RFC 5737): reached by the default route


def network_settings(
    environment: Mapping[str, str], address: str, *, allow_insecure_network: bool
) -> dict[str, str]:
    """What to set in the environment so that gloo and NCCL speak on the network of the rendezvous.

    Args:
        environment: as torchrun sets it; `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` are kept.
        address: of the rendezvous, as a number; what `MASTER_ADDR` resolves to.
        allow_insecure_network: whether public addresses are allowed.

    Returns:
        `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` where they are not set and an interface was
        found; otherwise gloo follows the host's name.

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
            _refuse_public(found, what)
    if interface is None:
        return {}
    settings = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {key: value for key, value in settings.items() if not environment.get(key)}


def resolve(name: str) -> str:
    """A host's address as a number; IPv4 where it has one.

    Raises:
        InputError: the name is not known.
    """
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


def _refuse_public(address: str, what: str) -> None:
    if not is_public(address):
        return
    raise InputError(
        "--allow-insecure-network",
        f"not given, but {what} is {address}",
        "messages and the rendezvous travel in clear: run inside WireGuard or a private network, "
        "or give the option to use a public address all the same",
    )
