"""Which addresses are refused, and from which interface gloo speaks."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.communication.cluster import addresses
from tacit.communication.cluster.addresses import (
    address_of,
    interface_of,
    is_public,
    network_settings,
    resolve,
)
from tacit.errors import InputError

PRIVATE = ["127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.7.7", "169.254.1.1", "100.64.0.1"]
PRIVATE6 = ["::1", "fe80::1", "fd12::7", "::ffff:10.0.0.1"]
PUBLIC = ["8.8.8.8", "172.32.0.1", "0.0.0.0", "::", "2606:4700::1", "::ffff:8.8.8.8", "100.128.0.1"]
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


@pytest.mark.parametrize("address", PRIVATE + PRIVATE6)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_and_those_that_stand_for_all_are_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_written_as_ipv6_is_as_public_as_itself(address: ipaddress.IPv4Address) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))


def refused(environment: dict[str, str], address: str) -> str:
    with pytest.raises(InputError) as caught:
        network_settings(environment, address, allow_insecure_network=False)
    assert caught.value.where == "--allow-insecure-network"
    return str(caught.value)


@pytest.mark.parametrize("address", ["8.8.8.8", "0.0.0.0"])
def test_a_public_rendezvous_is_refused_unless_asked_for(address: str) -> None:
    line = refused({"GLOO_SOCKET_IFNAME": LOOPBACK}, address)
    assert f"MASTER_ADDR is {address}" in line
    assert "in clear" in line
    assert "WireGuard" in line
    assert "\n" not in line
    allowed = network_settings(
        {"GLOO_SOCKET_IFNAME": LOOPBACK}, address, allow_insecure_network=True
    )
    assert allowed == {"NCCL_SOCKET_IFNAME": f"={LOOPBACK}"}


def test_a_public_address_of_this_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_interface_ipv4", {"wan0": "9.9.9.9"}.get)
    line = refused({"GLOO_SOCKET_IFNAME": "wan0"}, "10.0.0.1")
    assert "this host is 9.9.9.9" in line


def test_gloo_speaks_on_loopback_where_the_rendezvous_is() -> None:
    settings = network_settings({}, "127.0.0.1", allow_insecure_network=False)
    assert settings == {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": f"={LOOPBACK}"}


def test_what_the_user_set_stays() -> None:
    given = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": "ib0"}
    assert network_settings(given, "127.0.0.1", allow_insecure_network=False) == {}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eth0 = 10.0.0.5, lo, and a default route by eth0."""
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "wg0": "10.9.0.2"}
    routes = {"10.9.0.1": "10.9.0.2", "127.0.1.1": "127.0.0.1", "192.0.2.1": "10.0.0.5"}
    monkeypatch.setattr(addresses, "_interface_ipv4", interfaces.get)
    monkeypatch.setattr(addresses, "_route_to", routes.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))


@pytest.mark.usefixtures("machine")
def test_gloo_takes_the_interface_by_which_the_rendezvous_is_reached() -> None:
    settings = network_settings({}, "10.9.0.1", allow_insecure_network=False)
    assert settings["GLOO_SOCKET_IFNAME"] == "wg0"


@pytest.mark.usefixtures("machine")
def test_an_own_name_that_stands_for_loopback_is_not_followed_between_machines() -> None:
    name = {"MASTER_ADDR": "node-a", "WORLD_SIZE": "4"}
    across = {**name, "LOCAL_WORLD_SIZE": "2"}
    here = {**name, "LOCAL_WORLD_SIZE": "4"}
    wanted = [(across, "eth0"), (here, "lo"), ({**across, "MASTER_ADDR": "127.0.1.1"}, "lo")]
    for environment, interface in wanted:
        settings = network_settings(environment, "127.0.1.1", allow_insecure_network=False)
        assert settings["GLOO_SOCKET_IFNAME"] == interface


def test_names_are_resolved() -> None:
    assert resolve("localhost") == "127.0.0.1"
    assert resolve("10.2.3.4") == "10.2.3.4"
    assert resolve("::1") == "::1"
    with pytest.raises(InputError, match=r"MASTER_ADDR = 'no such host'"):
        resolve("no such host")


def test_interfaces_and_addresses_agree_on_this_machine() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.53") == LOOPBACK
    assert address_of(LOOPBACK) == "127.0.0.1"
    assert interface_of("203.0.113.77") is None
    assert address_of("no-such0") is None
