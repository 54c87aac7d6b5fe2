"""What pages say of an audit: in a run's report and in a statement."""

import pytest
from test_report_statement_page import document

from tacit.report import write_report
from tacit.report.audit_words import audit_alarm, found_blocks
from tacit.report.documents.run import RunAudit
from tacit.report.statement_page import statement_page
from tacit.report.view import Text
from web_pages import Page

SAW = "The noise has 0.902 of the planned standard deviation."
FAILURES = [{"name": "noise variance", "saw": SAW}, {"name": "coins", "saw": "All are alike."}]


def recorded(**changes):
    """What a result says of an audit that found nothing."""
    content = {
        "delta": 1e-3,
        "confidence": 0.95,
        "certified_epsilon": 2.4601,
        "claimed_epsilon": 0.5,
        "certified_violated": False,
        "attacks": 3,
        "verdict": "no alarm; all 3 fidelity tests passed",
        "claim_verdict": "claim not exceeded",
        "fidelity_tests": 3,
        "fidelity_passed": 3,
        "questions": ["Is the noise as large as planned?", "Are coins alike?", "Are coins alike?"],
        "failures": [],
        "alarm_rate": 1e-6,
        "smallest_excess": 2.5512,
        "power": 0.95,
        "tested": ["laboratory (Linear(16, 1), 16 parameters, linear)"],
        "earlier_alarms": 0,
    }
    return {**content, **changes}


ACCUSED = recorded(failures=FAILURES, fidelity_passed=1, verdict="ALARM, a defect")


def words(**changes):
    """The paragraphs of an audit that extracted 1.9599."""
    audit = RunAudit.model_validate(recorded(**changes))
    blocks = found_blocks(audit, 1.9599)
    told = " ".join(block.text for block in blocks if isinstance(block, Text))
    return told.replace("\u202f", " ")


def test_without_an_attack_nothing_is_said_to_be_extracted():
    assert "No attack on made records was possible" in words(attacks=0)
    assert "1.95" not in words(attacks=0)


def test_what_was_found_is_said_with_how_sure_it_is():
    assert words().split(". ") == [
        "An audit ran the program of this run again, as often as it needed, to see whether it does "
        "what the certificate assumes",
        "It trained these models: laboratory (Linear(16, 1), 16 parameters, linear)",
        "3 tests looked inside the program, to see whether it adds the noise, draws the records "
        "and sends the messages that the certificate assumes",
        "All 3 passed",
        "A correct program is accused in 1 audit in 1,000,000 at most",
        "Attacks on all that is sent show that epsilon is at least 1.95 at delta 0.001, with 95 % "
        "confidence",
        "There, the certificate says 2.47 at most",
        "The tests would have found noise that is weaker than planned at every step with a "
        "probability of 95.0 %, if it were so weak that epsilon is 2.56 or more in place of the "
        "certified 2.47",
        "Other defects have other sizes at which they are found: audit.json has them, test by "
        "test.",
    ]


def test_what_is_not_known_is_not_said():
    told = words(
        confidence=None,
        certified_epsilon=None,
        fidelity_tests=0,
        fidelity_passed=0,
        alarm_rate=None,
        smallest_excess=None,
        tested=[],
    )
    assert "No test looked inside the program" in told
    for missing in ("confidence", "certificate says", "1,000,000", "weaker than planned", "models"):
        assert missing not in told, missing


def test_a_bound_above_the_certificate_is_within_chance_or_an_alarm():
    chance = "An attack exceeded it, as one of a correct program may by chance: 1 audit in 20 does"
    assert chance in words(certified_violated=True)
    assert "by chance" not in words()
    assert "by chance" not in words(certified_violated=True, failures=FAILURES)


def test_an_alarm_names_the_first_failure_and_counts_the_others():
    def detail(failures):
        alarm = audit_alarm(RunAudit.model_validate(recorded(failures=failures)))
        assert alarm is not None
        return alarm.details[0]

    assert f"“noise variance” accuses it. {SAW} Do not rely" in detail(FAILURES[:1])
    assert "One other accuses it, too." in detail(FAILURES)
    assert "2 others accuse it, too." in detail([*FAILURES, FAILURES[0]])
    assert audit_alarm(RunAudit.model_validate(recorded())) is None


def test_an_earlier_alarm_stays_one():
    alarm = audit_alarm(RunAudit.model_validate(recorded(earlier_alarms=2)))
    assert alarm is not None
    assert "2 earlier audits of this run raised an alarm" in alarm.details[0]


def run_page(write_run, audit):
    changes = {"audited_epsilon": None if audit is None else 1.9599, "audit": audit}
    return Page(write_report(write_run(changes)).read_text(encoding="utf-8"))


def statement(audit):
    return Page(statement_page(document(audit=audit)), has_charts=False)


def test_a_run_without_an_audit_says_so(write_run):
    page = run_page(write_run, None)
    assert "What the audit found" not in page.text
    assert "no attack was tried on this run" in page.text
    page = statement(None)
    assert "No audit was made of this run" in page.text


def test_both_pages_say_what_an_audit_found_and_what_it_does_not_show(write_run):
    for page in (run_page(write_run, recorded()), statement(recorded())):
        for told in (
            "All 3 passed.",
            "1 audit in 1,000,000",
            "2.56 or more in place of the certified 2.47",
            "95 % confidence",
            "What an audit does not show",
            "An audit is no proof.",
            "Is the noise as large as planned?",
        ):
            assert told in page.text, told
        assert page.text.count("Are coins alike?") == 1
        assert "AUDIT ALARM" not in page.text
        assert page.count("ul", **{"class": "failures"}) == 0


@pytest.mark.parametrize("audit", [ACCUSED, recorded(earlier_alarms=1)])
def test_an_alarm_is_red_and_first_and_nothing_is_green(audit, write_run):
    for page in (run_page(write_run, audit), statement(audit)):
        kinds = [
            attributes["class"]
            for tag, attributes in page.tags
            if tag == "div" and (attributes.get("class") or "").startswith("banner")
        ]
        assert kinds[:2] == ["banner bad", "banner warn"]
        assert "banner good" not in kinds
        assert page.text.index("AUDIT ALARM") < page.text.index("Only if the program is correct: ")
    assert run_page(write_run, audit).count("div", **{"class": "tile void"}) == 1


def test_every_failure_is_shown(write_run):
    for page in (run_page(write_run, ACCUSED), statement(ACCUSED)):
        assert page.count("ul", **{"class": "failures"}) == 1
        assert "2 of them failed." in page.text
        for failure in FAILURES:
            assert {failure["name"], f": {failure['saw']}"} <= set(page.words)
