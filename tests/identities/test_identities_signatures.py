"""Files that a member signs: by whom, when, unchanged; every other signature is refused."""

import json
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortia import consortium, refused
from tacit.errors import InputError
from tacit.identities.bundle import read_bundle
from tacit.identities.consortium import approve, revoke
from tacit.identities.signatures import (
    check_signed_file,
    sign_file,
    signature_path,
    verified_signatures,
)
from tacit.identities.site import create_site, join, load_site


@pytest.fixture
def file(own):
    """A file that north has signed."""
    path = own / "statement.json"
    path.write_text("{}")
    assert sign_file(load_site(own / "north"), path) == signature_path(path, "north")
    return path


def bundle(own):
    return own / "consortium" / "bundle.json"


def test_who_has_signed_a_file_is_told(own, file):
    signed = check_signed_file(file, read_bundle(bundle(own))[0], "north")
    north = load_site(own / "north")
    assert (signed.name, signed.rank, signed.fingerprint) == ("north", 0, north.own.fingerprint)
    assert signed.consortium == north.bundle.consortium
    assert abs(signed.date - datetime.now(UTC)) < timedelta(hours=1)
    assert stat.S_IMODE(signature_path(file, "north").stat().st_mode) == 0o600


def test_a_file_that_was_changed_is_refused(own, file):
    file.write_text("{ }")
    with pytest.raises(InputError) as error:
        check_signed_file(file, read_bundle(bundle(own))[0], "north")
    refused(error, "signature = ", "the file was changed since north signed")


def test_a_signature_is_missing_or_of_another_file(own, file):
    other = own / "other.json"
    other.write_text("[]")
    with pytest.raises(InputError, match="No such file"):
        check_signed_file(other, read_bundle(bundle(own))[0], "north")
    shutil.copy(signature_path(file, "north"), signature_path(other, "north"))
    with pytest.raises(InputError, match=r"other\.json as it is"):
        check_signed_file(other, read_bundle(bundle(own))[0], "north")


def test_a_signature_of_another_consortium_is_refused(own, file, tmp_path):
    consortium(tmp_path / "other")
    with pytest.raises(InputError, match="must be by a member of the consortium"):
        check_signed_file(file, read_bundle(bundle(tmp_path / "other"))[0], "north")


def test_a_signature_under_the_name_of_another_is_refused(own, file):
    place = signature_path(file, "north")
    values = json.loads(place.read_text())
    other = sign_file(load_site(own / "south"), file)
    forged = json.loads(other.read_text()) | {"certificate": values["certificate"]}
    place.write_text(json.dumps(forged, indent=1) + "\n")
    with pytest.raises(InputError, match="must be signed with the key of north"):
        check_signed_file(file, read_bundle(bundle(own))[0], "north")


def test_each_site_signs_for_itself_and_one_is_forged(own, file):
    """South's own signature is laid down as north's, and north's as south's."""
    known = read_bundle(bundle(own))[0]
    assert verified_signatures(file, known)["south"] is None
    sign_file(load_site(own / "south"), file)
    both = verified_signatures(file, known)
    assert [one.name for one in both.values()] == ["north", "south"]
    assert [one.fingerprint for one in both.values()] == [one.fingerprint for one in known.sites]
    shutil.copy(signature_path(file, "north"), signature_path(file, "south"))
    shutil.copy(signature_path(file, "north"), signature_path(file, "nobody"))
    found = verified_signatures(file, known)
    assert found["north"] == both["north"]
    assert "must be by south" in str(found["south"])
    assert "must be by nobody" in str(found["nobody"])


def test_what_a_revoked_key_signed_is_refused(own, file):
    later, _ = revoke(own / "consortium", "north")
    with pytest.raises(InputError, match="north was revoked"):
        check_signed_file(file, later, "north")


def test_what_an_earlier_key_signed_stays_signed(own, file):
    (own / "north.request.json").unlink()
    done = approve(own / "consortium", [create_site(own / "north-2", "north")])
    signed = check_signed_file(file, done.bundle, "north")
    assert signed.fingerprint == load_site(own / "north").own.fingerprint
    with pytest.raises(InputError, match="no signature of this file by this site"):
        sign_file(join(own / "north-2", done.path), file)


def test_a_member_that_the_bundle_does_not_know_is_refused(own, file, tmp_path):
    """Of the same authority, but approved after the bundle that is asked."""
    west = join(own / "west", approve(own / "consortium", [create_site(own / "west", "west")]).path)
    sign_file(west, file)
    with pytest.raises(InputError, match="west is none in this bundle"):
        check_signed_file(file, load_site(own / "north").bundle, "west")


@pytest.mark.parametrize("days", [-30, 400])
def test_a_date_at_which_the_certificate_did_not_hold_is_refused(own, days):
    path = own / "heads.json"
    path.write_text("{}")
    sign_file(load_site(own / "north"), path, datetime.now(UTC) + timedelta(days=days))
    with pytest.raises(InputError, match="must be dated when its certificate held"):
        check_signed_file(path, read_bundle(bundle(own))[0], "north")


def test_signing_again_changes_nothing_and_nothing_is_overwritten(own, file):
    before = signature_path(file, "north").read_bytes()
    sign_file(load_site(own / "north"), file, datetime.now(UTC) + timedelta(hours=1))
    assert signature_path(file, "north").read_bytes() == before
    file.write_text("[]")
    with pytest.raises(InputError, match="move it away"):
        sign_file(load_site(own / "north"), file)
    assert signature_path(file, "north").read_bytes() == before


@given(data=st.data())
def test_a_signature_that_is_cut_or_flipped_is_never_accepted(made, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.json"
    path.write_text("{}")
    place = signature_path(path, "north")
    place.unlink(missing_ok=True)
    north = load_site(made / "north")
    content = sign_file(north, path).read_bytes()
    at, bits = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 255))
    flipped = content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
    place.write_bytes(flipped if bits else content[:at])
    with pytest.raises(InputError) as error:
        check_signed_file(path, north.bundle, "north")
    refused(error, "signature = ")
