"""Whole audits: of every algorithm, both relations and both samplers; claims that do not hold."""

from __future__ import annotations

import numpy as np
import pytest
from audit_bugs import job_of

from experiments import write_experiment
from tacit import privacy
from tacit.analysis import audit as auditing
from tacit.analysis.audit import AuditOptions, audit_job
from tacit.config import load_config
from tacit.errors import InputError

pytestmark = pytest.mark.slow

QUICK = AuditOptions(repetitions=1000, canaries=0, seconds=0.5)
# Of which no seed finds nothing; of the quick ones, a fifth does.
STRONG = AuditOptions(repetitions=8000, canaries=0, seconds=0.5)
RING = {"graph": "ring"}


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        ({"name": "privsgp", "momentum": 0.5, "final_mixing": 2}, {}),
        ({"name": "dyn-d2p", "clip_decay": 4.0, "budget_growth": 3.0}, {}),
        ({"name": "const-d2p"}, {"graph": "directed-ring"}),
        ({"name": "dp2-sgd"}, RING),
    ],
    ids=lambda value: value.get("name", ""),
)
@pytest.mark.parametrize(
    ("relation", "sampling", "batch"),
    [
        ("add-or-remove-one", "poisson", 8),
        ("add-or-remove-one", "poisson", "all"),
        ("replace-one", "poisson", 8),
        ("replace-one", "fixed", 8),
    ],
)
def test_what_is_certified_is_never_exceeded(algorithm, topology, relation, sampling, batch):
    job = job_of(
        algorithm=algorithm,
        topology=topology,
        privacy={"epsilon": 3.0, "relation": relation},
        sampling=sampling,
        batch=batch,
        steps=3,
        records=32,
    )
    report = audit_job(job, options=STRONG)
    assert not report.defect
    assert 0.0 < report.audited_epsilon <= report.certified_epsilon == pytest.approx(3.0, rel=2e-3)
    assert report.relation == relation
    assert report.nodes == tuple(range(8))


def test_a_gaussian_is_found_out_almost_entirely():
    """Rate 1: with many repetitions the Gaussian-DP fit comes close to what is certified."""
    job = job_of(batch="all", steps=1, privacy={"epsilon": 3.0}, nodes=4)
    report = audit_job(job, options=AuditOptions(repetitions=20_000, canaries=0, seconds=0.5))
    by_method = {attack.method: attack for attack in report.attacks}
    assert report.audited_epsilon == by_method["gaussian-dp"].epsilon
    assert 0.8 * report.certified_epsilon < report.audited_epsilon <= report.certified_epsilon
    multiplier = job.plan.release.noise_multiplier(job.plan.nodes[0], 0)
    assert by_method["gaussian-dp"].guesses["mu"] == pytest.approx(1 / multiplier, rel=0.12)
    assert by_method["gaussian-dp"].guesses["mu"] <= 1 / multiplier


def test_the_published_noise_of_privsgp_breaks_its_claim():
    job = job_of(
        records=100,
        batch=1,
        steps=8,
        privacy={"epsilon": 1.0, "delta": 1e-3, "accounting": "published"},
    )
    report = audit_job(job, options=AuditOptions(repetitions=3000, canaries=0, seconds=0.5))
    assert report.claimed_epsilon == pytest.approx(1.0)
    assert report.claim_violated
    assert report.claim_verdict == "claim VIOLATED at 95 % confidence"
    assert 1.0 < report.audited_epsilon <= report.certified_epsilon
    assert not report.defect


def test_the_published_noise_of_dyn_d2p_breaks_its_claim():
    """As Algorithm 1 of the paper draws: one record of J a step, another one in its place."""
    job = job_of(
        records=20,
        batch=1,
        steps=4,
        sampling="fixed",
        algorithm={"name": "dyn-d2p"},
        privacy={
            "epsilon": 1.0,
            "delta": 1e-3,
            "accounting": "published",
            "relation": "replace-one",
        },
    )
    report = audit_job(job, options=AuditOptions(repetitions=4000, canaries=0, seconds=0.5))
    assert report.claimed_epsilon == pytest.approx(1.0)
    assert report.claim_violated
    assert 1.0 < report.audited_epsilon <= report.certified_epsilon
    assert not report.defect


def test_without_a_formula_there_is_no_claim():
    job = job_of(algorithm={"name": "dp2-sgd"}, topology=RING, batch="all", steps=1)
    report = audit_job(job, options=AuditOptions(repetitions=200, canaries=0, seconds=0.5))
    assert report.claimed_epsilon is None
    assert report.claim_violated is None
    assert report.claim_verdict == "no claim"


def test_fewer_steps_are_held_against_their_own_certificate():
    job = job_of(batch="all", steps=8, algorithm={"name": "dyn-d2p"})
    options = AuditOptions(repetitions=200, canaries=0, seconds=0.5, steps=3, delta=0.01)
    report = audit_job(job, options=options)
    mechanism = job.plan.release.mechanism(job.plan.nodes[0], [(0, 3)])
    assert report.steps == 3
    assert report.delta == 0.01
    assert report.certified_epsilon == privacy.epsilon(mechanism, delta=0.01)
    assert report.certified_epsilon < job.plan.nodes[0].epsilon  # type: ignore[operator]


def test_the_most_exposed_nodes_are_attacked():
    budgets = [1.0, 3.0, 1.0, 3.0]
    job = job_of(nodes=4, batch="all", steps=2, privacy={"epsilon": budgets, "delta": 1e-3})
    report = audit_job(job, options=QUICK)
    assert report.nodes == (1, 3)
    assert 0.5 < report.audited_epsilon <= report.certified_epsilon == pytest.approx(3.0, rel=1e-3)


def test_an_audit_can_be_repeated_and_another_seed_is_another_audit():
    job = job_of(batch="all", steps=2, nodes=3)
    first, again, other = (
        audit_job(job, options=AuditOptions(repetitions=300, canaries=0, seconds=0.5, seed=seed))
        for seed in (0, 0, 1)
    )
    assert first.attacks == again.attacks
    assert first.attacks != other.attacks


def test_few_repetitions_of_a_large_graph_prove_little_but_are_counted():
    job = job_of(nodes=64, batch="all", steps=1, records=4)
    report = audit_job(job, options=AuditOptions(repetitions=100, canaries=0, seconds=0.5))
    assert not report.defect
    assert [attack.repetitions for attack in report.attacks] == [77, 77, 77]


def test_one_node_alone_can_be_audited():
    job = job_of(nodes=1, batch="all", steps=2, privacy={"epsilon": 4.0})
    report = audit_job(job, options=AuditOptions(seconds=0.5))
    assert 0.5 < report.audited_epsilon <= report.certified_epsilon
    assert {attack.name for attack in report.attacks} == {
        "worst-case gradient",
        "one training, records unlike any other",
    }


def small(folder, **privacy):
    settings = {"noise_std": None, "epsilon": 8.0, "delta": 1e-4, **privacy}
    return write_experiment(folder, privacy=settings, train={"steps": 2})


def test_an_experiment_file_is_audited_with_overrides(tmp_path):
    reports: list[tuple[str, int, int]] = []
    report = auditing.audit(
        load_config(small(tmp_path), overrides=["train.steps=3", "nodes.count=2"]),
        options=AuditOptions(repetitions=500, canaries=100, seconds=0.5),
        progress=lambda *what: reports.append(what),
    )
    assert report.steps == 3
    assert [attack.method for attack in report.attacks] == [
        "clopper-pearson",
        "any-delta",
        "gaussian-dp",
        "one-run",
        "one-run-f-dp",
    ]
    # Each attack gets its share of what the confidence leaves; one training counts once.
    assert [attack.confidence for attack in report.attacks] == [pytest.approx(0.9875)] * 5
    assert ("one training", 3, 3) in reports
    assert ("worst-case gradient", 1, 1) in reports
    assert not report.defect


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"repetitions": 99}, "repetitions"),
        ({"steps": 0}, "steps"),
        ({"confidence": 1.0}, "confidence"),
        ({"delta": 0.0}, "delta"),
        ({"canaries": -1}, "canaries"),
        ({"seed": 2**31}, "seed"),
        ({"seconds": 0.0}, "seconds"),
    ],
)
def test_wrong_options_are_refused(options, match):
    with pytest.raises(InputError, match=match):
        AuditOptions(**options)


def test_what_cannot_be_audited_is_refused():
    silent = job_of(algorithm={"name": "sgp"}, privacy={"epsilon": "none"}, batch="all")
    with pytest.raises(InputError, match="no noise"):
        audit_job(silent)
    with pytest.raises(InputError, match="the plan has 6"):
        audit_job(job_of(batch="all"), options=AuditOptions(steps=7))
    with pytest.raises(InputError, match="two records"):
        audit_job(job_of(records=1, batch="all"))
    given = {"noise_std": 0.1, "accounting": "none", "epsilon": "none"}
    with pytest.raises(InputError, match=r"algorithm\.clip"):
        audit_job(job_of(batch="all", privacy=given))
    assert np.isfinite(
        audit_job(
            job_of(batch="all", privacy=given, algorithm={"clip": 1.0}), options=QUICK
        ).certified_epsilon
    )


@pytest.mark.slow
def test_only_independent_repetitions_are_counted():
    """Nodes that share public values which cut off gradients are none."""
    options = AuditOptions(repetitions=100, canaries=0, seconds=0.5)
    jobs = [
        job_of(algorithm={"name": name, "regulariser": regulariser}, batch="all", steps=2)
        for name, regulariser in (("dpdo", "none"), ("dpdo", "box"), ("fedspd-dp", "box"))
    ]
    reports = [audit_job(job, options=options) for job in jobs]
    assert not any(report.defect for report in reports)
    # Of a copy of the graph all nodes are repetitions, or one is, or no copy is.
    counted = [attack.repetitions for report in reports[:2] for attack in report.attacks[:1]]
    assert counted[0] <= 100 < 2 * counted[0]
    assert counted[1] <= 100 < 2 * counted[1]
    assert reports[2].attacks == ()


@pytest.mark.slow
def test_a_table_on_disk_is_left_alone(tmp_path):
    """An audit has a table of its own, on the same disk, and takes it away."""
    (tmp_path / "inputs.bin").write_bytes(b"of a run")
    algorithm = {"name": "privsgp-vr", "state": "private", "table_directory": str(tmp_path)}
    options = AuditOptions(repetitions=100, canaries=10, seconds=0.5)
    report = audit_job(job_of(algorithm=algorithm, steps=2), options=options)
    assert not report.defect
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.bin"]
    assert (tmp_path / "inputs.bin").read_bytes() == b"of a run"
