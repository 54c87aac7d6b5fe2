"""Bundles: the later one of the same consortium, whole and for this member, or none."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from consortia import refused
from tacit.errors import InputError
from tacit.identities.bundle import MOST_MEMBERS, Bundle, Member, bundle_text, read_bundle
from tacit.identities.certificates import issue_certificate, new_authority
from tacit.identities.consortium import AUTHORITY_FILE, approve, revoke
from tacit.identities.signing import new_request
from tacit.identities.site import create_site, join, load_site


def test_an_older_bundle_is_refused_over_a_newer_one(own):
    first = own / "first.json"
    shutil.copy(own / "consortium" / "bundle.json", first)
    newer = approve(own / "consortium", [create_site(own / "west", "west")]).path
    assert join(own / "north", newer).bundle.issue == 2
    assert join(own / "north", newer).bundle.issue == 2  # the same again changes nothing
    with pytest.raises(InputError) as error:
        join(own / "north", first)
    refused(error, "must be later than issue 2", "it is issue 1")
    assert [member.name for member in load_site(own / "north").bundle.sites] == [
        "north",
        "south",
        "west",
    ]


def test_two_bundles_of_one_issue_are_not_both_joined(own):
    """A coordinator's folder that was restored, or two of them."""
    copy = Path(shutil.copytree(own / "consortium", own / "copy"))
    join(own / "north", revoke(own / "consortium", "south")[1])
    with pytest.raises(InputError, match="must be later than issue 2"):
        join(own / "north", revoke(copy, "relay")[1])


def test_a_bundle_of_another_consortium_is_refused(own, tmp_path):
    other = approve(tmp_path / "other", [own / "north.request.json"]).path
    with pytest.raises(InputError) as error:
        join(own / "north", other)
    refused(error, "must be of the consortium", load_site(own / "north").bundle.consortium)


def test_a_bundle_that_moves_a_rank_is_refused(own, tmp_path):
    """Of a coordinator that made its folder anew with the same key."""
    (tmp_path / "consortium").mkdir()
    shutil.copy(own / "consortium" / AUTHORITY_FILE, tmp_path / "consortium")
    for name in ("south", "north"):
        path = approve(tmp_path / "consortium", [own / f"{name}.request.json"]).path
    with pytest.raises(InputError) as error:
        join(own / "north", path)
    refused(error, "must leave north in its place")


def test_a_bundle_that_is_not_for_this_folder_is_refused(own, tmp_path):
    bundle = own / "consortium" / "bundle.json"
    create_site(tmp_path / "west", "west")
    with pytest.raises(InputError, match="has no certificate for west"):
        join(tmp_path / "west", bundle)
    create_site(tmp_path / "south", "south")
    with pytest.raises(InputError, match="has a certificate for another key of south"):
        join(tmp_path / "south", bundle)
    for name in ("request.json", "key.pem"):
        shutil.copy(own / "north" / name, tmp_path / "south" / name)
    key = load_site(own / "north").key
    (tmp_path / "south" / "request.json").write_bytes(new_request(key, "south", "site", ()))
    with pytest.raises(InputError) as error:
        join(tmp_path / "south", bundle)
    refused(error, "gives this folder's key to site north", "not what it asked for")


def test_the_fingerprint_is_compared(own):
    site = load_site(own / "north")
    bundle = own / "consortium" / "bundle.json"
    spoken = " ".join(site.bundle.consortium[i : i + 4].upper() for i in range(0, 32, 4))
    assert join(own / "north", bundle, fingerprint=spoken)
    for wrong in (site.bundle.consortium[:-1], "0" * 32, "", site.bundle.consortium + "0"):
        with pytest.raises(InputError) as error:
            join(own / "north", bundle, fingerprint=wrong)
        refused(error, "--fingerprint", site.bundle.consortium)


@given(data=st.data())
def test_a_bundle_that_is_cut_or_flipped_is_never_accepted(made, tmp_path_factory, data):
    content = (made / "consortium" / "bundle.json").read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = data.draw(
        st.sampled_from(
            [
                content[:at],
                content[at + 1 :],
                content + b" ",
                content[:at] + content[at + 1 :],
                content[:at] + content[at : at + 1] * 2 + content[at + 1 :],
            ]
        )
        | st.integers(1, 255).map(
            lambda bits: content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
        )
    )
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_bytes(changed)
    if changed == content:
        return
    with pytest.raises(InputError) as error:
        read_bundle(path)
    refused(error, "bundle = ")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(key=st.sampled_from(["members", "issue", "authority", "revoked", "kind"]), value=VALUES)
def test_fields_of_other_types_are_refused_in_a_line(made, tmp_path_factory, key, value):
    values = json.loads((made / "consortium" / "bundle.json").read_text())
    path = tmp_path_factory.getbasetemp() / "typed.json"
    path.write_text(json.dumps({**values, key: value}))
    with pytest.raises(InputError) as error:
        read_bundle(path)
    refused(error, "bundle = ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 2}, "format_version = 2: this version of tacit reads format 1"),
        ({"kind": "tacit signature"}, "it is another document"),
        ({"more": 1}, "more: Extra inputs"),
        ({"issue": 7}, "must be signed by its authority"),
        ({"issue": 0}, "issue"),
        ({"issue": True}, "issue"),
        ({"signature": "0" * 128}, "must be signed by its authority"),
        ({"signature": "0" * 127}, "signature"),
        ({"authority": "-----"}, "one is damaged"),
    ],
)
def test_each_field_of_a_bundle_is_checked(own, change, words):
    path = own / "consortium" / "bundle.json"
    values = {**json.loads(path.read_text()), **change}
    signature = values.pop("signature")
    path.write_text(json.dumps({**values, "signature": signature}, indent=1) + "\n")
    with pytest.raises(InputError) as error:
        read_bundle(path)
    refused(error, words)


def test_a_key_said_twice_in_a_bundle_is_refused(own):
    path = own / "consortium" / "bundle.json"
    text = path.read_text()
    path.write_text(text.replace('"issue": 1', '"issue": 2,\n "issue": 1'))
    with pytest.raises(InputError, match="it was changed"):
        read_bundle(path)


def test_what_is_nested_deeply_is_refused(tmp_path):
    path = tmp_path / "bundle.json"
    path.write_bytes(b'{"members":' + b"[" * 10**6)
    with pytest.raises(InputError, match="it is damaged"):
        read_bundle(path)


def test_oversized_files_and_those_that_are_none_are_refused(own):
    large = own / "large"
    with large.open("wb") as file:
        file.truncate(2**40)
    os.mkfifo(own / "pipe")
    for path, words in (
        (large, "holds more than"),
        (own / "pipe", "is no plain file"),
        (own, "must be a"),
        (own / "none", "No such file"),
        (Path("/dev/zero"), "is no plain file"),
    ):
        with pytest.raises(InputError) as error:
            read_bundle(path)
        refused(error, "bundle = ", words)
        with pytest.raises(InputError) as error:
            approve(own / "consortium", [path])
        refused(error, "request = ", words)
        with pytest.raises(InputError, match=words):
            join(own / "north", path)


def test_the_bundle_of_any_member_takes_the_place_of_a_lost_one(own):
    """A coordinator that restored an old copy goes on from what its members have."""
    old = (own / "consortium" / "bundle.json").read_bytes()
    join(own / "north", revoke(own / "consortium", "south")[1])
    (own / "consortium" / "bundle.json").write_bytes(old)
    with pytest.raises(InputError, match="must be later than issue 2"):
        join(own / "north", approve(own / "consortium", [own / "relay.request.json"]).path)
    shutil.copy(own / "north" / "bundle.json", own / "consortium" / "bundle.json")
    done = approve(own / "consortium", [own / "relay.request.json"])
    assert join(own / "north", done.path).bundle.issue == 3
    assert done.bundle.sites[1].revoked


# Bundles that an authority signed, as anybody can make one, and that nobody should believe.

AUTHORITY_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
NOW = datetime(2026, 11, 23, tzinfo=UTC)
AUTHORITY = new_authority(AUTHORITY_KEY, NOW)


def member(
    name="north",
    rank=0,
    addresses=(),
    *,
    role="site",
    certified=None,
    secret=1,
    authority=AUTHORITY,
    key=AUTHORITY_KEY,
):
    public = Ed25519PrivateKey.from_private_bytes(bytes([secret]) * 32).public_key()
    hosts = [address for address in addresses if address.isprintable()]
    certificate = issue_certificate(
        authority,
        key,
        public,
        name if certified is None else certified,
        "site",
        hosts,
        NOW,
        NOW + timedelta(days=1),
    )
    return Member(name, role, rank, certificate, addresses, False)


def written(path, *members, authority=AUTHORITY, issue=1):
    path.write_bytes(bundle_text(Bundle(authority, issue, members, ()), AUTHORITY_KEY))
    return path


def test_such_a_bundle_is_read_where_nothing_is_wrong(tmp_path):
    path = written(tmp_path / "bundle.json", member(), member("south", 1, secret=2))
    assert [each.name for each in read_bundle(path)[0].sites] == ["north", "south"]


OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("no\x1b[31mrth", certified="north")], "members.0.name"),
        ([member("North")], "members.0.name"),
        ([member("[red]north")], "members.0.name"),
        ([member(addresses=("a:1\x1b[31m",))], "members.0.addresses.0"),
        ([member(addresses=("A:1",))], "members.0.addresses.0"),
        ([member(addresses=("a:99999",))], "members.0.addresses.0"),
        ([member(addresses=tuple(f"a:{i}" for i in range(1, 10)))], "members.0.addresses"),
        ([member(rank=-1)], "members.0.rank"),
        ([member(rank=10**9)], "members.0.rank"),
        ([member(rank=1)], "must number its sites from 0"),
        ([member(rank=None)], "must number its sites from 0"),
        ([member(), member("south", 0, secret=2)], "must number its sites from 0"),
        ([member(), member(secret=2, rank=1)], "must name every member once"),
        ([member(), member("south", 1)], "must have another key for every member"),
        ([member(certified="south")], "the certificate of north is one of another member"),
        ([member(role="relay", rank=None)], "the certificate of north is one of another member"),
        (
            [member(authority=new_authority(OTHER_KEY, NOW), key=OTHER_KEY)],
            "the certificate of north was signed by another authority",
        ),
        ([member(key=OTHER_KEY)], "the certificate of north was signed by another authority"),
    ],
)
def test_members_that_contradict_themselves_are_refused(tmp_path, members, words):
    path = written(tmp_path / "bundle.json", *members)
    with pytest.raises(InputError) as error:
        read_bundle(path)
    refused(error, "bundle = ", words)
    assert str(error.value).isprintable()


def test_an_authority_that_is_none_is_refused(tmp_path):
    """A member's own certificate, say, with which it would let in whom it likes."""
    signer = member().certificate
    other = new_authority(OTHER_KEY, NOW)
    for authority, words in ((signer, "must have an authority"), (other, "must be signed by its")):
        path = written(tmp_path / "bundle.json", authority=authority)
        with pytest.raises(InputError) as error:
            read_bundle(path)
        refused(error, words)


def test_a_member_cannot_make_members(own):
    north = load_site(own / "north")
    public = Ed25519PrivateKey.generate().public_key()
    now = datetime.now(UTC)
    until = now + timedelta(days=1)
    shown = issue_certificate(
        north.own.certificate, north.key, public, "south", "site", (), now, until
    )
    assert north.bundle.refusal(shown, now) == (
        "the certificate of south was signed by another authority"
    )


def test_a_bundle_of_too_many_members_is_refused(tmp_path):
    path = written(tmp_path / "bundle.json", *[member()] * (MOST_MEMBERS + 1))
    with pytest.raises(InputError, match="members"):
        read_bundle(path)
