"""Certificates that do not hold: which end before a run, and which keep a connection from coming.

Of a connection to a relay or a site that does not come about the engine is silent. So a handshake
is tried with Python's own TLS, and what that says is put into one line.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cryptography import x509

from tacit.communication.received import plain
from tacit.errors import InputError
from tacit.identities.certificates import common_name, shown_time
from tacit.identities.names import host_of
from tacit.identities.site import Site

_log = logging.getLogger(__name__)
_REMEDY = (
    "ask the coordinator to approve its request again, join the new bundle everywhere, and start "
    "every site and relay again with the same command"
)


class Certificates:
    """The certificates on which a site depends: its own, every other site's, those of the relays.

    `until` is when the run is likely to end.
    """

    def __init__(self, site: Site, until: datetime) -> None:
        self.until = until
        self._site = site
        self._members = [
            one for one in (*site.bundle.sites, *site.bundle.relays) if not one.revoked
        ]
        self._told: set[tuple[str, bool]] = set()
        self._looked = datetime.min.replace(tzinfo=UTC)

    def expired(self, now: datetime) -> str | None:
        """Which of them do not hold at a time, and what to do; None: all hold."""
        reasons = [why for one in self._members if (why := self._site.bundle.refusal(one, now))]
        return f"{', and '.join(reasons)}: {_REMEDY}" if reasons else None

    def look(self, now: datetime) -> None:
        """Log, once each, which do not hold and which will not until the run ends."""
        if now - self._looked < timedelta(seconds=1):
            return
        self._looked = now
        for member in self._members:
            why = self._site.bundle.refusal(member, now)
            ends = member.certificate.not_valid_after_utc
            if (why is None and ends > self.until) or (member.name, bool(why)) in self._told:
                continue
            self._told.add((member.name, bool(why)))
            soon = (
                f"the certificate of {member.name} expires on {shown_time(ends)}, and this run is "
                f"likely to last until {shown_time(self.until)} or longer"
            )
            _log.warning("%s: %s", why or soon, _REMEDY)


def refuse_in_vain(site: Site, now: datetime) -> None:
    """Refuse to begin a run in which a site cannot take part, or no relay can pass messages on."""
    for one in site.bundle.sites:
        if (why := site.bundle.refusal(one, now)) is not None:
            expected = (
                f"cannot take part, and a run needs every site: {why}; join the bundle in which "
                "the coordinator has approved it again, or a consortium without it"
            )
            raise InputError("--site", one.name, expected)
    faults = [site.bundle.refusal(relay, now) for relay in site.bundle.relays]
    if faults and all(faults) and not any(one.addresses for one in site.bundle.sites):
        expected = (
            f"cannot pass messages on, and no other relay can: {faults[0]}; join the bundle in "
            "which the coordinator has approved it again"
        )
        raise InputError("--site", site.bundle.relays[0].name, expected)


# What OpenSSL says of the other end's certificate (X509_V_ERR_...).
_FAULTS = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is signed by itself, not by the consortium's authority",
    19: "its certificate is signed by another authority",
    20: "its certificate is signed by another authority",
    21: "its certificate is signed by another authority",
}
_FOR_AN_ALERT = 0.5  # seconds, beside what the handshake took
_OTHER_NAME = (62, 64)  # of a host, of an address
# How the other end refuses this one's certificate (alerts of TLS).
_ALERTS = {
    "CERTIFICATE_EXPIRED": "it has expired",
    "UNKNOWN_CA": "it is signed by another authority",
    "CERTIFICATE_REVOKED": "it was revoked",
    "BAD_CERTIFICATE": "it is not accepted",
    "CERTIFICATE_UNKNOWN": "it is not accepted",
    "DECRYPT_ERROR": "it is signed by another authority, or its key does not fit",
    "CERTIFICATE_REQUIRED": "none was sent",
    "UNSUPPORTED_CERTIFICATE": "it is not for this use",
}


def explain(site: Site, address: str, timeout: float) -> str | None:
    """Say in one line what is wrong with the way from a site to an address, HOST:PORT.

    None: the connection comes about, and neither end refuses the other. `timeout` is in seconds, of
    all together.
    """
    host, port = host_of(address), address.rpartition(":")[2]
    started = time.monotonic()
    try:
        context = ssl.create_default_context(cafile=str(site.authority_file))
        context.load_cert_chain(str(site.certificate_file), str(site.key_file))
        with (
            socket.create_connection((host, int(port)), timeout=timeout) as connection,
            context.wrap_socket(connection, server_hostname=host) as secure,
        ):
            certificate = x509.load_der_x509_certificate(secure.getpeercert(True) or b"")
            taken = time.monotonic() - started
            # The other end judges this one's certificate after the handshake: it says so, or
            # waits for the engine's first message.
            secure.settimeout(max(0.1, min(timeout - taken, _FOR_AN_ALERT + taken)))
            with suppress(TimeoutError):
                if secure.recv(1) == b"":
                    return f"{address}: it closed the connection without a word"
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OTHER_NAME:
            return f"{address}: its certificate is for another name than {host}"
        return plain(f"{address}: {_FAULTS.get(error.verify_code, error.verify_message)}")
    except ssl.SSLError as error:
        return plain(f"{address}: {_refused(error)}")
    except socket.gaierror:
        return plain(f"{address}: the name {host} is not known here")
    except TimeoutError:
        return f"{address}: no answer within {timeout:g} seconds"
    except OSError as error:
        return plain(f"{address}: {error.strerror or error}")
    # The authority has signed the certificate of who answers there.
    expected = [member for member in site.bundle.members if address in member.addresses]
    name = common_name(certificate) or "somebody"
    if expected and name not in [member.name for member in expected]:
        return f"{address}: {name} answers there, and it is the address of {expected[0].name}"
    refused = site.bundle.refusal(certificate, datetime.now(UTC))
    return None if refused is None else plain(f"{address}: {refused}")


def _refused(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    for alert, words in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return f"it refuses the certificate of this site: {words}"
    if "ALERT" in reason:
        return f"it refuses this site ({reason.lower().replace('_', ' ')})"
    return "what answers there does not speak TLS"
