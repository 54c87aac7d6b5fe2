"""What people declare, what follows from the guarantee, and who is told: registry and NIST."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from consortia import consortium
from experiments import experiment, strict_json
from experiments import tacit as command
from tacit.analysis.ledger_report import FALSE_POSITIVES
from tacit.analysis.statement import check_statement, write_statement
from tacit.config import StatementSection, load_config
from tacit.errors import InputError
from tacit.privacy import Gaussian, SampledGaussian, epsilon
from tacit.privacy.accounting.curve import curve_points, gaussian_mu, least_misses
from tacit.report.statement_words import registry_record
from tacit.report.wording import guess_bound
from tacit.training.loop import execute
from tacit.training.prepare import prepare

NAMES = ("north", "south", "east", "west")
ODD = 'It said: "yes" - # no\n\t- ü {a}: b'
SAID = {
    **{key: f"{ODD} {key}" for key in StatementSection.model_fields},
    "organisation_kind": "Nonprofit",
    "sector": "healthcare",
    "organisations": {name: f"{name} house" for name in NAMES[:3]} | {"west": "north house"},
}
# What schemas/deployments-schema.yaml of the registry requires, and what its tier 3 asks for.
REQUIRED = {
    "basic": (
        "name data_curators description intended_use data_product_type data_product_region "
        "publication_date"
    ),
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": (
        "privacy_unit privacy_unit_details number_of_privacy_units privacy_parameters "
        "privacy_parameters_details"
    ),
    "deployment_model": (
        "model_name model_name_details trust_assumptions actors release_type data_source_type "
        "data_source_type_details access_type access_type_details"
    ),
    "implementation": (
        "preprocessing_and_hyperparameter_tuning mechanisms composition post_processing "
        "justification utility"
    ),
    "administrative": "status registry_authors tier",
}
OPTIONAL = {"data_product_sector", "release_type_details", "additional_information"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Six steps of PrivSGP on every record, of which everything is declared."""
    folder = tmp_path_factory.mktemp("declared") / "run"
    private = {"noise_std": None, "noise_seed": None, "epsilon": 2.0}
    settings = experiment(privacy=private, nodes={"names": list(NAMES)}, statement=SAID)
    execute(prepare(load_config(settings)), out=folder)
    return folder


@pytest.fixture(scope="module")
def stated(run, tmp_path_factory):
    """Its statement, and all that goes with one."""
    out = tmp_path_factory.mktemp("stated")
    write_statement(run, out, registry=out / "record.yaml", answers="nist")
    return out


def test_every_declared_key_is_taken_over(stated):
    document = strict_json((stated / "statement.json").read_text())
    expected = {key: value for key, value in SAID.items() if key != "organisations"}
    assert document["declared"] == expected
    assert {row["name"]: row["organisation"] for row in document["nodes"]} == SAID["organisations"]
    page = (stated / "statement.html").read_text()
    for key in expected:
        assert f"{{a}}: b {key}" in page or key in ("organisation_kind", "sector")


def test_a_run_goes_on_with_other_words(run):
    prepared = prepare(load_config(run / "config.toml"))
    other = prepare(load_config(run / "config.toml", overrides=['statement.contact="new"']))
    assert prepared.plan.digest() == other.plan.digest()


def test_the_registry_has_its_record(stated):
    document = strict_json((stated / "statement.json").read_text())
    record = yaml.safe_load((stated / "record.yaml").read_text(encoding="utf-8"))
    assert record.keys() == {"url_slug", "deployment"}
    sections = record["deployment"]
    assert sections.keys() == REQUIRED.keys()
    for name, keys in REQUIRED.items():
        assert set(keys.split()) <= sections[name].keys() <= set(keys.split()) | OPTIONAL
    assert sections["basic"]["intended_use"] == SAID["purpose"]
    curators = [row["data_curator_name"] for row in sections["basic"]["data_curators"]]
    assert curators == ["north house", "south house", "east house"]
    worst = max(row["epsilon"] for row in document["nodes"])
    assert sections["privacy_loss"]["privacy_parameters"] == {"epsilon": worst, "delta": 1e-5}
    records = sum(row["records"] for row in document["nodes"])
    assert sections["privacy_loss"]["number_of_privacy_units"] == records
    assert sections["basic"]["publication_date"] == document["date"][:10]
    assert sections["administrative"] == {
        "status": "Draft",
        "registry_authors": [SAID["contact"]],
        "tier": 3,
    }


def test_what_a_registry_lacks_is_named_at_once_and_can_be_said_later(run, tmp_path):
    file = tmp_path / "said.toml"
    file.write_text('[statement]\npurpose = "One"\n[statement.organisations]\nnorth = "N"\n')
    out, record = tmp_path / "out", tmp_path / "record.yaml"
    with pytest.raises(InputError) as error:
        write_statement(run, out, declared=file, registry=record)
    assert "organisations (one for each node), organisation_kind, region, " in str(error.value)
    assert "purpose" not in str(error.value)
    assert not out.exists()
    record.write_text("mine")
    with pytest.raises(InputError, match="is there and says something else"):
        write_statement(run, out, registry=record)
    assert record.read_text() == "mine"
    file.write_text('[statement.organisations]\nelsewhere = "N"\n')
    with pytest.raises(InputError, match="must be by the nodes of the run: north, south"):
        write_statement(run, out, declared=file)


def test_nist_is_answered_or_told_that_it_is_not(stated, run, tmp_path):
    text = (stated / "statement-nist.md").read_text()
    assert f"*Declared:* {SAID['why_epsilon']}" in text
    assert "epsilon 2.00 at delta 1e-5" in text
    file = tmp_path / "none.toml"
    file.write_text('[statement]\ntitle = "Bare"\n')
    bare = write_statement(run, tmp_path, declared=file, answers="nist")[-1].read_text()
    assert "(not declared: statement.why_epsilon)" in bare
    assert "*Declared:*" not in bare


def test_what_is_computed_is_recomputed(stated, tmp_path):
    whole = strict_json((stated / "statement.json").read_text())
    assert check_statement(stated / "statement.json").nodes == 4
    sent = tmp_path / "sent.json"
    for key, value in (("right_guess", 0.5), ("mu", 0.1), ("errors", [[0.01, 0.99]] * 6)):
        sent.write_text(json.dumps({**whole, "curve": {**whole["curve"], key: value}}))
        with pytest.raises(InputError, match="by its own mechanisms"):
            check_statement(sent)


def test_of_a_budget_that_is_a_guess_the_statement_says_that_guess(tmp_path):
    private = {"noise_std": None, "noise_seed": None, "guess": 0.6}
    folder = tmp_path / "run"
    execute(prepare(load_config(experiment(privacy=private))), out=folder)
    path, page = write_statement(folder)
    whole = strict_json(path.read_text())
    by_epsilon = [guess_bound(row["epsilon"], row["delta"]) for row in whole["nodes"]]
    assert all(0.599 < row["right_guess"] <= 0.6 < 0.65 for row in whole["nodes"])
    assert min(by_epsilon) > 0.65
    assert "guesses right with probability 60.0\u202f% at most" in page.read_text()
    assert "right in at most 60.0\u202f% of cases" in page.read_text()
    assert check_statement(path).nodes == 4
    whole["nodes"][1]["right_guess"] = 0.55
    path.write_text(json.dumps(whole))
    with pytest.raises(InputError, match="right guess of node 1"):
        check_statement(path)


@pytest.mark.parametrize("mu", [0.02, 0.4, 1.5, 4.0])
def test_the_curve_of_a_gaussian_is_the_closed_form(mu):
    points = curve_points((Gaussian(1 / mu, 1),), 1e-6)
    for false in FALSE_POSITIVES:
        exact = norm.cdf(norm.ppf(1 - false) - mu)
        assert exact - 1e-3 <= least_misses(points, false) <= exact + 1e-12
    assert points[0][1] == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)
    bound = gaussian_mu(points, 1e-6)
    assert bound is not None
    assert bound <= 1.02 * mu
    at = np.linspace(0, 3 * points[-1][0], 400)
    exact, other = (
        norm.cdf(m / 2 - at / m) - np.exp(at) * norm.cdf(-m / 2 - at / m) for m in (mu, bound)
    )
    assert np.all(exact <= other + 1e-6)


@pytest.mark.slow
def test_the_curve_of_sampled_steps_holds_beside_another_accountant():
    mechanism = SampledGaussian(sample_rate=0.05, noise_multiplier=1.0, steps=40)
    other = pld.from_gaussian_mechanism(1.0, sampling_prob=0.05).self_compose(40)
    points = curve_points((mechanism,), 1e-5)
    assert points[-1] == (epsilon(mechanism, delta=1e-5), 1e-5)
    for at, delta in points:
        assert other.get_delta_for_epsilon(at) == pytest.approx(delta, rel=2e-2)
    mu = gaussian_mu(points, 1e-5)
    assert mu is not None
    for at in np.linspace(0, points[-1][0], 50):
        gaussian = norm.cdf(mu / 2 - at / mu) - math.exp(at) * norm.cdf(-mu / 2 - at / mu)
        assert other.get_delta_for_epsilon(at) <= (gaussian + 1e-5) * (1 + 1e-3)


def test_a_varied_schedule_is_bounded_from_above():
    noise = tuple(1 + step / 40 for step in range(40))
    mechanism = SampledGaussian(sample_rate=0.05, noise_multiplier=noise, steps=40)
    least = SampledGaussian(sample_rate=0.05, noise_multiplier=1.0, steps=40)
    varied, constant = (dict(curve_points((one,), 1e-5)) for one in (mechanism, least))
    most = 2 * norm.cdf(math.sqrt(sum(z**-2 for z in noise)) / 2) - 1
    assert 0 < varied[0.0] < min(constant[0.0], most)


def test_sites_stand_with_their_keys_and_a_forged_signature_is_told(run, tmp_path, monkeypatch):
    sites = consortium(tmp_path, sites=dict.fromkeys(NAMES, ()), relays={})
    monkeypatch.chdir(tmp_path)
    path = "out/statement.json"
    done = command("privacy", "statement", run, "--out", "out", "--site", "north")
    assert done.code == 0, done.err
    document = strict_json(Path(path).read_text())
    prints = {name: site.own.fingerprint for name, site in sites.items()}
    assert {site["name"]: site["fingerprint"] for site in document["sites"]} == prints
    assert command("privacy", "sign", path, "south").code == 2
    assert command("privacy", "sign", path, "--site", "south").code == 0
    bundle = ("--bundle", "consortium/bundle.json")
    assert command("privacy", "verify", path, *bundle).code == 0
    Path(f"{path}.west.signature").write_bytes(Path(f"{path}.south.signature").read_bytes())
    forged = command("privacy", "verify", path, *bundle, "--page", "signed.html")
    assert forged.code == 2
    page = Path("signed.html").read_text()
    for words in (f"signed by the key {prints['south']}", "has not signed", "NOT VALID: must be "):
        assert words in page
    assert "of west: must be by west, whose it is called: it is by south" in forged.refusal
    assert "(valid are those of: north, south)" in forged.refusal


def test_a_record_is_refused_without_an_organisation_a_node(stated):
    document = strict_json((stated / "statement.json").read_text())
    del document["nodes"][1]["organisation"]
    with pytest.raises(InputError, match="organisations"):
        registry_record(document)
