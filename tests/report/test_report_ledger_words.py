"""What is printed of ledgers: what was spent, by whom, and mechanisms in words."""

from contextlib import redirect_stdout
from io import StringIO

import pytest

from tacit.privacy import (
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
    to_statement,
)
from tacit.privacy.ledger.file import fingerprint
from tacit.report.documents.base import read
from tacit.report.documents.ledger import LedgerReport
from tacit.report.ledger_words import ledger_blocks
from tacit.report.terminal import terminal
from tacit.report.wording import number_text

PUBLIC = "ab" * 32


def row(steps=12, **changes):
    """What a document says of an account."""
    release = {"run": "1" * 32, "node": 0, "data": "", "mechanism": 0, "charged": [[0, steps, 1]]}
    return {
        "file": "ledger.sqlite",
        "epsilon": 1.2341,
        "epsilon_budget": 2.0,
        "left": 0.7659,
        "delta": 1e-5,
        "releases": [{**release, "steps": steps, "epsilon": 1.2341}],
        **changes,
    }


def document(*rows, files=1):
    run = {"run": "1" * 32, "created": "2026-01-02T03:04:05+00:00", "tacit_version": "0.1"}
    whose = {"of": "data", "created": "2026-01-02", "tacit_version": "0.1"}
    return {
        "format_version": LedgerReport.version,
        "tacit_version": "0.1",
        "path": "ledgers",
        "nodes": list(rows),
        "runs": [{**run, "plan_digest": "2" * 32}],
        "mechanisms": [to_statement(Gaussian(9.0, 20))],
        "files": [
            {**whose, "file": f"file-{number}", "head": f"{number:064x}", "public_key": PUBLIC}
            for number in range(files)
        ],
    }


def printed(content):
    out = StringIO()
    with redirect_stdout(out):
        terminal(ledger_blocks(read(LedgerReport, content, "a test")))
    return out.getvalue()


def test_nodes_of_which_the_same_is_said_are_grouped():
    out = printed(document(*(row(node=node) for node in range(11)), row(7, node=11)))
    assert "0-10" in out
    assert out.count("1.24") == 2  # never rounded down
    text = " ".join(out.split())
    assert "run 11111111, entered 2026-01-02 03:04:05+00:00 by tacit 0.1, plan 22222222" in text
    assert "noise multiplier 9.00" in text
    assert "do not add up" in text
    assert f"file-0: head {0:064x}, key {fingerprint(PUBLIC)}" in text


def test_data_are_named_as_their_sources_are():
    rows = [row(data=f"ward {node}") for node in range(5)]
    out = printed(document(*rows, files=9))
    assert "ward 0" in out
    assert "and 2 more" in out
    assert "and 3 more files" in out
    assert "of a source is charged to all of them" in " ".join(out.split())


def test_what_is_not_finite_is_said_to_be():
    bounded = row(node=0, epsilon=None, left=0.0)
    unaccounted = row(node=1, epsilon=None, epsilon_budget=None, left=None, delta=None)
    out = printed(document(bounded, unaccounted))
    assert out.count("infinite") == 1


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (Gaussian(2.0, 3), "every record at every step, noise multiplier 2.00, 3 steps"),
        (SampledGaussian(0.1, [1.0, 2.0]), "probability 0.100 (Poisson sampling), noise multiplier "
         "1.00 to 2.00, 2 steps"),
        (FixedBatchGaussian(3, 4000, 2.0, 1), "3 of 4,000 records, drawn without replacement"),
        (Laplace(2.0, 3, 0.5), "Laplace noise"),
        (PrivateState(0.1, 2.0, 0.5, 3.0, 7), "at most 2.00 clipping bounds then and 0.500 at any"),
        (Composed([Gaussian(2.0, 3), SampledGaussian(0.5, 1.0, 2)]), "; then Gaussian noise on"),
        (ClientSampling(Gaussian(2.0, 1), 0.5, 9), "9 rounds, in each of which a client takes part "
         "with probability 0.500 and then releases: Gaussian"),
    ],
)  # fmt: skip
def test_every_mechanism_has_words(mechanism, said):
    assert said in mechanism.explain(number_text)
