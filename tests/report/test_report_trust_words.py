"""A trust model in words: who may collude, what epsilon is then, and whether it was simulated."""

import pytest

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import TRUST_MODELS as KNOWN
from tacit.report.documents.base import as_dict, read
from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.unit import RECORD, UnitTerms
from tacit.report.protection import colluders_table
from tacit.report.trust_words import (
    RELATIONS,
    TRUST_MODELS,
    observer_words,
    person_text,
    relation_meaning,
    trust_texts,
    unit_meaning,
    verdict,
)
from tacit.report.wording import epsilon_text

TERMS = {
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


def told(model="pairwise", **changes):
    return " ".join(trust_texts(model, terms(**changes)))


def test_every_trust_model_has_its_observer():
    assert tuple(TRUST_MODELS) == KNOWN


def test_the_table_has_the_weakest_node_of_each_number_of_colluders():
    rows = colluders_table(TERMS["epsilon_by_colluders"], DELTAS, 1).rows
    assert [row[0] for row in rows] == ["0", "1", "2"]
    for row, epsilons in zip(rows, TERMS["epsilon_by_colluders"], strict=True):
        assert row[1] == epsilon_text(max(epsilons))
    assert [row[3] for row in rows] == ["yes", "yes: the run's epsilon", "no"]
    # (e + delta) / (e + 1) at epsilon 1, rounded up.
    assert rows[1][2].replace("\u202f", " ") == "73.2 %"


def test_no_finite_epsilon_is_called_infinite():
    against = [*TERMS["epsilon_by_colluders"][:2], [1.0, None, 1.0, 1.0]]
    assert colluders_table(against, DELTAS, 1).rows[2][1] == "infinite"


def test_a_simulation_says_so_and_processes_say_where_keys_come_from():
    assert terms().simulated
    assert "simulation" in told()
    assert not terms(nodes_by_process=[1] * 4).simulated
    apart = told(nodes_by_process=[1] * 4)
    assert "simulation" not in apart
    assert "X25519" in apart
    assert "so many of the colluders" not in apart
    assert "No certificate" in apart
    signed = told(nodes_by_process=[1] * 4, keys_signed=True)
    assert "No certificate" not in signed
    assert "signed with the identity" in signed
    assert "up to 2 nodes" in told(nodes_by_process=[2, 1, 1])


@pytest.mark.parametrize("model", ["pairwise", "secure-sum"])
@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_poisoning_and_the_number_of_colluders_are_always_said(model, colluding):
    rows = [[1.0] * 4] * (colluding + 2)
    text = told(model, colluding=colluding, epsilon_by_colluders=rows)
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
    assert said in told("secure-sum", nodes_by_process=processes, **changes)
    assert "is the server and" not in told("pairwise", nodes_by_process=processes, **changes)
    assert "is the server and" not in told("secure-sum", **changes)
    apart, one = terms(nodes_by_process=processes, **changes), terms(**changes)
    assert observer_words("secure-sum", apart).endswith("(those of its own process included)")
    assert "process" not in observer_words("secure-sum", one) + observer_words("pairwise", apart)
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


def unit(name, nodes, gradient="mean", epsilon=None):
    delta = None if epsilon is None else 1e-5
    return UnitTerms(
        name="record" if gradient is None else name,
        person=name,
        gradient=gradient,
        rows=16,
        nodes=nodes,
        epsilon=epsilon,
        delta=delta,
    )


def across(nodes):
    return f"by composition over the worst {nodes} nodes"


@pytest.mark.parametrize(
    ("protected", "said"),
    [
        (
            unit("person", 2, epsilon=2.851),
            "a person with rows at up to 2 nodes has epsilon 2.86 at",
        ),
        (unit("customer", 3, epsilon=3.0), f"delta 1e-5, {across(3)}"),
        (unit("account", 2, "sum", 3.0), "an account with rows at up to 2 nodes has epsilon 3.00"),
        (
            unit("person", 1, None, 6.2),
            "a person with up to 16 rows at one node has epsilon 6.20 at",
        ),
        (unit("person", 1, None, 6.2), "delta 1e-5, by group privacy"),
        (
            unit("patient", 2, None, 17.1),
            "a patient with up to 16 rows at each of up to 2 nodes has",
        ),
        (unit("patient", 2, None, 17.1), f"by group privacy and {across(2).removeprefix('by ')}"),
        (unit("patient", 3), "a patient with rows at up to 3 nodes has no epsilon that is known"),
    ],
)
def test_what_a_person_has_beside_a_node_is_said(protected, said):
    assert said in person_text(protected)
    assert unit_meaning(protected).endswith(person_text(protected))


@pytest.mark.parametrize("name", ["person", "customer"])
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_where_a_person_is_the_unit_no_record_is_spoken_of(name, gradient):
    protected = unit(name, 1, gradient)
    for relation in RELATIONS:
        assert "record" not in relation_meaning(relation, protected)
        assert f"all rows of a {name} at the node" in relation_meaning(relation, protected)
    meaning = unit_meaning(protected)
    assert meaning.startswith(f"one {name} at one node, with all rows there")
    assert f"up to 16 rows count, by the {gradient} of their gradients" in meaning
    assert "public coins leave out" in meaning
    assert "epsilon" not in meaning


def test_where_nobody_said_whose_the_rows_are_that_is_said():
    words = "a row: if a person has several rows, this is not the person's epsilon"
    assert unit_meaning(RECORD).endswith(words)
    assert [relation_meaning(key, RECORD) for key in RELATIONS] == list(RELATIONS.values())


def test_the_verdict_is_on_a_person_where_that_is_weaker():
    nodes = [(1.0, 1e-5), (0.5, 1e-5)]
    alone = verdict(unit("patient", 1), nodes)
    assert alone.words == verdict(RECORD, nodes).words == "Strong protection"
    for protected in (unit("patient", 2, epsilon=6.2), unit("patient", 1, None, 6.2)):
        found = verdict(protected, nodes)
        assert found.words == "Next to no protection of a patient"
        assert found.kind == "bad"
