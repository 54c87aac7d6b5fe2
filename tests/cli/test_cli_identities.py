"""`tacit site`, `tacit consortium` and what a site signs: what they print, leave and refuse."""

import json
from pathlib import Path

import pytest

from experiments import strict_json, tacit, write_experiment

BUNDLE = "consortium/bundle.json"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current directory, and a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def done(*arguments):
    answer = tacit(*arguments)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def refused(answer, *words):
    assert answer.code == 2
    for word in words:
        assert word in answer.refusal


def made():
    """North, south and a relay, all joined."""
    done("site", "create", "north")
    done("site", "create", "south", "--address", "localhost:7447")
    done("site", "create", "relay", "--role", "relay", "--address", "127.0.0.1:7448")
    requests = [f"{name}.request.json" for name in ("north", "south", "relay")]
    done("consortium", "approve", *requests)
    for name in ("north", "south", "relay"):
        done("site", "join", BUNDLE, "--folder", name)


def test_three_commands_and_the_fingerprints_that_people_compare():
    created = done("site", "create", "north")
    spoken = created.partition("fingerprint of north: ")[2].split("\n")[0]
    assert len(spoken.replace(" ", "")) == 32
    assert "PRIVATE" not in created
    approved = done("consortium", "approve", "north.request.json")
    assert spoken in approved
    assert "a new consortium" in approved
    ours = approved.partition("fingerprint of the consortium: ")[2].split(",")[0]
    joined = done("site", "join", BUNDLE)
    assert ours in joined
    assert "north: north (rank 0) has joined the consortium" in joined
    assert "Compare" in joined
    assert "Compare" not in done("site", "join", BUNDLE, "--fingerprint", ours)
    refused(tacit("site", "join", BUNDLE, "--fingerprint", spoken), "--fingerprint")
    for shown in (
        done("site", "show"),
        done("consortium", "show"),
        done("consortium", "show", BUNDLE),
    ):
        assert spoken in shown
        assert ours in shown


def test_json_says_the_same():
    created = strict_json(done("site", "create", "north", "--json"))
    assert created["folder"] == "north"
    approved = strict_json(done("consortium", "approve", created["request"], "--json"))
    (member,) = approved["members"]
    assert (member["name"], member["rank"], member["role"]) == ("north", 0, "site")
    assert member["fingerprint"] == created["fingerprint"]
    assert approved["changes"] == {"north": "new"}
    assert approved["new"]
    before = strict_json(done("site", "show", "--json"))
    assert "consortium" not in before
    joined = strict_json(done("site", "join", approved["bundle"], "--json"))
    assert joined["consortium"] == approved["consortium"]
    shown = strict_json(done("site", "show", "--json"))
    assert shown["members"] == joined["members"] == approved["members"]
    revoked = strict_json(done("consortium", "revoke", "north", "--json"))
    assert revoked["issue"] == 2
    assert strict_json(done("consortium", "show", "--json"))["members"][0]["revoked"]


def test_a_bundle_is_written_where_one_likes_and_nothing_is_overwritten():
    done("site", "create", "north")
    printed = done("consortium", "approve", "north.request.json", "--out", "ours.json")
    assert "ours.json: send it to every member" in printed
    assert Path("ours.json").read_bytes() == Path(BUNDLE).read_bytes()
    refused(
        tacit("consortium", "approve", "north.request.json", "--out", "ours.json"),
        "--out",
        "exists",
    )
    assert strict_json(done("consortium", "show", "--json"))["issue"] == 1
    refused(tacit("site", "create", "north"), "--folder", "exists")


def test_a_site_shows_its_fingerprint_before_it_has_joined():
    created = done("site", "create", "north")
    shown = done("site", "show")
    assert created.partition("fingerprint")[2].split("\n")[0] in shown
    assert "has joined no consortium" in shown


def test_wrong_input_is_one_line():
    refused(tacit("site", "create", "North"), "NAME", "must be 1 to 40")
    refused(tacit("site", "create", "north", "--role", "boss"), "--role", "site or relay")
    refused(tacit("site", "create", "relay", "--role", "relay"), "--address", "needs one")
    refused(tacit("site", "create", "north", "--address", "x"), "--address", "HOST:PORT")
    refused(tacit("site", "join", "none.json"), "--folder", "name one site folder")
    refused(tacit("site", "show"), "--folder", "name one site folder")
    refused(tacit("consortium", "show"), "--folder", "must be the folder of a consortium")
    refused(tacit("consortium", "approve", "none.pem"), "request", "none.pem", "No such file")
    refused(tacit("consortium", "revoke", "north"), "--folder")
    assert list(Path().iterdir()) == []
    made()
    refused(tacit("site", "join", BUNDLE), "--folder", "north, relay, south")
    refused(tacit("site", "join", "north/key.pem", "--folder", "north"), "bundle", "it is damaged")
    refused(tacit("consortium", "approve", "north.request.json", "--days", "0"), "--days")


def test_who_was_revoked_is_told_what_to_expect():
    made()
    printed = done("consortium", "revoke", "south")
    assert "revoked now" in printed
    assert "Until then a member still accepts south." in printed
    refused(tacit("site", "join", BUNDLE, "--folder", "south"), "south was revoked")
    assert "revoked" in done("site", "join", BUNDLE, "--folder", "north")


def test_a_statement_and_heads_are_signed_by_the_site_and_checked_by_others(tmp_path):
    made()
    file = write_experiment(tmp_path, privacy={"noise_seed": None})
    done("train", file, "--out", "run", "--quiet")
    refused(tacit("privacy", "statement", "run", "--site", "none"), "site folder")
    assert not Path("run/statement.json").exists()
    printed = done("privacy", "statement", "run", "--site", "north")
    assert "run/statement.json.north.signature" in printed.splitlines()
    assert done("privacy", "statement", "run", "--site", "north") == printed
    statement = "run/statement.json"
    checked = done("privacy", "verify", statement, "--bundle", BUNDLE)
    assert f"{statement}: north: signed by the key " in checked
    assert f"{statement}: south: has not signed" in checked
    assert done("privacy", "verify", "run/statement.html", "--bundle", BUNDLE)
    assert done("privacy", "check", statement)

    refused(tacit("privacy", "ledger", "run", "--site", "north"), "--site", "--out")
    written = done("privacy", "ledger", "run", "--site", "south", "--out", "heads.json")
    assert written.splitlines() == ["heads.json", "heads.json.south.signature"]
    signed = strict_json(done("privacy", "verify", "heads.json", "--bundle", BUNDLE, "--json"))
    assert [(one["name"], one["rank"]) for one in signed["signed"]] == [("south", 1)]
    assert signed["not_signed"] == ["north"]
    heads = json.loads(Path("heads.json").read_text())
    assert heads == strict_json(done("privacy", "ledger", "run", "--json"))
    refused(tacit("privacy", "ledger", "run", "--out", "heads.json"), "--out", "exists")

    text = Path(statement).read_text()
    Path(statement).write_text(text.replace('"kind"', '"kind" '))
    refused(tacit("privacy", "verify", statement, "--bundle", BUNDLE), "the file was changed")
    done("consortium", "revoke", "south")
    refused(tacit("privacy", "verify", "heads.json", "--bundle", BUNDLE), "south was revoked")
