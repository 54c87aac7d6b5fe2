"""Certificates that end: whose and when is said before a run, before they end, and then."""

from datetime import UTC, datetime, timedelta

import pytest
from ways import approved_again, members

from tacit.communication.secure.certificates import Certificates, refuse_in_vain
from tacit.errors import InputError
from tacit.identities.site import join


def test_it_is_said_once_whose_certificate_ends_before_the_run(tmp_path, caplog):
    site = members(tmp_path)["site-0"]
    ends = site.own.certificate.not_valid_after_utc
    for days, words in (
        (-20, []),
        (-1, ["the certificate of site-0 expires on", "and this run is likely to last until"]),
        (1, ["the certificate of site-0 expired on"]),
    ):
        now = ends + timedelta(days=days)
        certificates = Certificates(site, now + timedelta(days=10))
        caplog.clear()
        for second in range(3):
            certificates.look(now + timedelta(seconds=2 * second))
        said = [line for line in caplog.messages if "certificate of site-0" in line]
        assert len(said) == (1 if words else 0), said
        assert all(word in said[0] and "ask the coordinator" in said[0] for word in words)
        assert (certificates.expired(now) is not None) == (days > 0)


@pytest.mark.parametrize("name", ["site-1", "relay-0"])
def test_a_run_does_not_begin_with_a_certificate_that_has_expired(tmp_path, name):
    members(tmp_path)
    past = datetime.now(UTC) - timedelta(days=30)
    approved_again(tmp_path, name, past)
    site = join(tmp_path / "site-0", tmp_path / "consortium" / "bundle.json")
    with pytest.raises(
        InputError, match=f"'{name}': cannot .*the certificate of {name} expired on"
    ):
        refuse_in_vain(site, datetime.now(UTC))
    refuse_in_vain(site, past + timedelta(days=1))
