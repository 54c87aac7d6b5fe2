"""A trust model in words: who may collude, what epsilon is then, and whether it was simulated."""

from __future__ import annotations

from typing import Any

import pytest

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import TRUST_MODELS as KNOWN
from tacit.report.documents.base import as_dict, read
from tacit.report.documents.trust import TrustTerms
from tacit.report.trust_words import TRUST_MODELS, trust_words
from tacit.report.wording import epsilon_text

TERMS: dict[str, Any] = {
    "colluding": 1,
    "nodes_by_process": [4],
    "absent": [],
    "own": [0.1, 0.1, 0.2, 0.1],
    "expected_batch": [50.0, 50.0, 25.0, 50.0],
    "pairs": [[0, 1], [1, 2], [2, 3], [0, 3]],
    "deviation": 0.4,
    "epsilon_by_colluders": [
        [0.711, 0.711, 0.602, 0.711],
        [1.0, 0.9, 0.8, 0.9],
        [2.1, 3.44, 2.1, 2.1],
    ],
}
DELTAS = [1e-5] * 4


def terms(**changes):
    return read(TrustTerms, {**TERMS, **changes}, "trust")


def test_every_trust_model_has_its_observer():
    assert tuple(TRUST_MODELS) == KNOWN


def test_the_table_has_the_weakest_node_of_each_number_of_colluders():
    told = trust_words("pairwise", terms(), DELTAS)
    assert [row[0] for row in told.table.rows] == ["0", "1", "2"]
    for row, epsilons in zip(told.table.rows, TERMS["epsilon_by_colluders"], strict=True):
        assert row[1] == epsilon_text(max(epsilons))
    assert [row[3] for row in told.table.rows] == ["yes", "yes: the run's epsilon", "no"]
    # (e + delta) / (e + 1) at epsilon 1, rounded up.
    assert told.table.rows[1][2].replace("\u202f", " ") == "73.2 %"


def test_no_finite_epsilon_is_called_infinite():
    rows = [*TERMS["epsilon_by_colluders"][:2], [1.0, None, 1.0, 1.0]]
    told = trust_words("pairwise", terms(epsilon_by_colluders=rows), DELTAS)
    assert told.table.rows[2][1] == "infinite"


def test_a_simulation_says_so_and_processes_say_where_keys_come_from():
    alone = trust_words("pairwise", terms(), DELTAS)
    assert alone.simulated
    assert "simulation" in " ".join(alone.limits)
    apart = trust_words("pairwise", terms(nodes_by_process=[1, 1, 1, 1]), DELTAS)
    assert not apart.simulated
    text = " ".join(apart.texts + apart.limits)
    assert "simulation" not in text
    assert "X25519" in text
    assert "so many of the colluders" not in text
    assert "No certificate" in text
    signed = trust_words("pairwise", terms(nodes_by_process=[1] * 4, keys_signed=True), DELTAS)
    assert "No certificate" not in " ".join(signed.limits)
    assert "signed with the identity" in " ".join(signed.limits)
    crowded = trust_words("pairwise", terms(nodes_by_process=[2, 1, 1]), DELTAS)
    assert "up to 2 nodes" in " ".join(crowded.limits)


@pytest.mark.parametrize("model", ["pairwise", "secure-sum"])
@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_poisoning_and_the_number_of_colluders_are_always_said(model, colluding):
    rows = [[1.0] * 4] * (colluding + 2)
    told = trust_words(model, terms(colluding=colluding, epsilon_by_colluders=rows), DELTAS)
    text = " ".join(told.texts + told.limits)
    assert "poisoning" in text
    assert "follow the protocol" in text
    assert (f"any {colluding} other node" in text) == (colluding > 0)


@pytest.mark.parametrize(
    ("processes", "colluding", "said"),
    [
        ([1, 3], 1, "is the server and 1 of the nodes, so that with the server none of the others"),
        ([1, 1, 2], 2, "and 1 of the nodes, so that with the server no more than 1 of the others"),
        ([2, 2], 2, "and 2 of the nodes, so that with the server none of the others may collude"),
    ],
)
def test_a_server_that_is_a_client_counts_as_one(processes, colluding, said):
    """Server and t others would be t + 1: of whom epsilon is not the run's, but the next row's."""
    rows = [[1.0] * 4] * (min(colluding + 1, 3) + 1)
    changes = {"colluding": colluding, "epsilon_by_colluders": rows}
    apart = terms(nodes_by_process=processes, **changes)
    assert said in " ".join(trust_words("secure-sum", apart, DELTAS).limits)
    for model, simulated in (("pairwise", apart), ("secure-sum", terms(**changes))):
        assert "is the server and" not in " ".join(trust_words(model, simulated, DELTAS).limits)
    assert "the server's own process are among these" in TRUST_MODELS["secure-sum"]


def test_terms_are_read_back_as_they_were_written():
    written = as_dict(terms())
    assert read(TrustTerms, written, "trust") == terms()
    assert as_dict(read(TrustTerms, written, "trust")) == written


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("own", [0.1, 0.1]),
        ("expected_batch", [1.0]),
        ("nodes_by_process", [3]),
        ("nodes_by_process", [True, 3]),
        ("pairs", [[1, 0]]),
        ("pairs", [[0, 4]]),
        ("pairs", [[0, 1, 2]]),
        ("epsilon_by_colluders", [[1.0] * 4]),
        ("epsilon_by_colluders", [[1.0] * 3] * 3),
        ("epsilon_by_colluders", [["1"] * 4] * 3),
        ("colluding", -1),
        ("deviation", None),
        ("more", "said"),
    ],
)
def test_terms_that_do_not_fit_together_are_refused(field, value):
    with pytest.raises(InputError, match="trust"):
        terms(**{field: value})
