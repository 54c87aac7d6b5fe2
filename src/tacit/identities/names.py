"""Names and addresses of members: what they may be, and how the program writes them."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, StringConstraints

from tacit.errors import InputError

Role: TypeAlias = Literal["site", "relay"]
Address: TypeAlias = str  # HOST:PORT

MOST_ADDRESSES = 8  # of a member
# A name is a DNS name, too, under which TLS knows the member: one that begins with a letter cannot
# be taken for a number of an address.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESERVED = ("localhost",)


def is_name(name: str) -> bool:
    """Whether a member can have this name."""
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


def check_name(name: str, where: str = "NAME") -> str:
    """A member's name as it is; an InputError where it cannot be one."""
    if not is_name(name):
        expected = (
            "must be 1 to 40 of the characters a-z, 0-9 and -, begin with a letter, not end with "
            "-, and not be localhost"
        )
        raise InputError(where, name, expected)
    return name


def check_address(address: str, where: str = "--address") -> Address:
    """An address as the program writes it, lower case; an InputError where it is no HOST:PORT.

    The engine that carries messages takes what stands in brackets for a host's name, and fails.

    >>> check_address("Relay.Example.ORG:443")
    'relay.example.org:443'
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        expected = "must be HOST:PORT, with a port from 1 to 65535"
        raise InputError(where, address, expected)
    return f"{_canonical_host(host, address, where)}:{port}"


def _canonical_host(host: str, address: str, where: str) -> str:
    expected = (
        "must be HOST:PORT, where HOST is a host's name or an IPv4 address at which others can "
        "reach it"
    )
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        labels = host.lower().split(".")
        is_name = len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
        if not is_name or labels[-1].isdigit():
            raise InputError(where, address, expected) from None
        return host.lower()
    if ip.version == 6:
        expected += "; an IPv6 address cannot be called: give the host's name, or its IPv4 address"
    if ip.version == 6 or ip.is_unspecified or ip.is_multicast or ip.compressed != host:
        raise InputError(where, address, expected)
    return host


def _as_written(address: str) -> Address:
    if check_address(address) != address:
        raise ValueError("must be written as the program writes addresses")
    return address


# As a document has them.
PlainName = Annotated[str, StringConstraints(max_length=40), AfterValidator(check_name)]
PlainAddress = Annotated[str, StringConstraints(max_length=300), AfterValidator(_as_written)]


def host_of(address: Address) -> str:
    """The host of an address."""
    return address.rpartition(":")[0]
