"""`--log-format json`: every line of standard error is one JSON object, errors included."""

import logging
import os
import sys
from datetime import datetime
from io import StringIO
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import strict_json, tacit, wait_tacit, write_experiment, write_module
from tacit.cli import signals
from tacit.cli.logs import as_json_lines, describe_process, log_lines, say

JSON = ("--log-format", "json")
FIELDS = ["time", "level", "message", "rank", "run", "step"]


def lines(answer):
    """What a command logged; each line has the fields that all have."""
    found = [strict_json(line) for line in answer.err.splitlines()]
    for line in found:
        assert list(line)[: len(FIELDS)] == FIELDS
        assert datetime.fromisoformat(line["time"]).utcoffset() is not None
        assert line["level"] in ("info", "warning", "error")
    return found


def test_a_run_tells_where_it_is(tmp_path):
    answer = tacit("train", write_experiment(tmp_path), "--out", tmp_path / "run", *JSON)
    assert answer.code == 0
    found = lines(answer)
    messages = [line["message"] for line in found]
    assert any(message.startswith("plan made: ") for message in messages)
    assert "the run begins at step 0 of 6" in messages
    assert messages[-1] == "the run is done after step 6 of 6"
    assert (found[-1]["rank"], found[-1]["run"], found[-1]["step"]) == (0, "run", 6)
    assert found[0]["step"] is None
    (warning,) = [line for line in found if line["level"] == "warning"]
    assert "NOT PRIVATE" in warning["message"]
    assert "certified" in answer.out  # the table of the result, as without it


def test_what_was_measured_on_records_is_not_logged(tmp_path):
    """Without test records the progress line of this site shows the loss on private ones."""
    name = write_module(
        tmp_path,
        """
        def load(**_):
            inputs = torch.randn(7319, 3, generator=torch.Generator().manual_seed(1))
            train = Dataset(inputs, (inputs.sum(1) > 0).long())
            return TaskData(name="own", train=train, classes=2)
        """,
    )
    task = {"dataset": f"{name}:load"}
    with patch.object(sys, "path", [str(tmp_path), *sys.path]):
        file = write_experiment(tmp_path, task=task)
        plain = tacit("train", file, "--out", tmp_path / "plain")
        answer = tacit("train", file, "--out", tmp_path / "json", *JSON)
    assert (plain.code, answer.code) == (0, 0), plain.err
    assert "loss" in plain.err
    assert "loss" not in answer.err
    said = " ".join(line["message"] for line in lines(answer))
    assert "7319" not in said.replace(",", "")


@pytest.mark.parametrize("option", [JSON, ("--log-format=json",)])
def test_an_error_has_its_exit_code_and_keeps_to_itself_what_may_be_private(tmp_path, option):
    file = write_experiment(tmp_path, train={"steps": -1})
    (line,) = lines(tacit("train", file, *option))
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert "steps" not in line["message"]
    assert "train.steps = -1" in line["detail"]
    (tmp_path / "there").mkdir()
    (tmp_path / "good").mkdir()
    good = write_experiment(tmp_path / "good")
    line = lines(tacit("train", good, "--out", tmp_path / "there", *option))[-1]
    assert line["exit_code"] == 2
    assert "exists already" in line["message"]
    assert "detail" not in line


def test_errors_of_the_command_line_itself_are_lines_as_well(tmp_path):
    (line,) = lines(tacit("train", *JSON))
    assert line["exit_code"] == 2
    assert "FILE" in line["message"]
    (line,) = lines(tacit("train", "x.toml", "--no-such-option", *JSON))
    assert "--no-such-option" in line["message"]


def test_another_format_is_refused_and_plain_is_the_default(tmp_path):
    assert "xml" in tacit("train", "x.toml", "--log-format", "xml").refusal
    assert tacit("train", "x.toml", "--log-format", "plain").err.startswith("tacit: ")
    assert tacit("train", "--log-format").err.startswith("tacit: ")
    # Behind "--" stand no options.
    assert tacit("train", "--", *JSON).err.startswith("tacit: ")


def test_a_defect_is_a_line_and_its_text_is_for_this_site(tmp_path):
    with patch("tacit.base.plain_files.read_toml", side_effect=KeyError("17 of 90 patients")):
        (line,) = lines(tacit("train", "x.toml", *JSON))
    assert line["exit_code"] == 1
    assert "KeyError" in line["message"]
    assert "patients" not in line["message"]
    assert "patients" in line["detail"]


def test_nothing_of_it_stays_when_the_command_has_ended(tmp_path):
    before = [(logging.getLogger(name).handlers[:]) for name in ("tacit", "py.warnings")]
    tacit("train", "x.toml", *JSON)
    assert not as_json_lines()
    assert [(logging.getLogger(name).handlers[:]) for name in ("tacit", "py.warnings")] == before
    assert logging.getLogger("tacit").propagate
    assert signals.last_words().startswith("tacit: ")
    assert not say("a line")


@given(text=st.text(), run=st.text())
def test_whatever_is_logged_is_one_line(text, run):
    out = StringIO()
    with patch.object(sys, "stderr", out), log_lines(JSON):
        describe_process(rank=2, run=run, step=3)
        assert say(text)
        logging.getLogger("py.warnings").warning("%s", text)
        logging.getLogger("tacit.fix").warning("%s", text)
        try:
            raise ValueError(text)
        except ValueError:
            logging.getLogger("tacit").exception("a callback failed")
    found = [strict_json(line) for line in out.getvalue().split("\n")[:-1]]
    assert [line["level"] for line in found] == ["info", "warning", "warning", "error"]
    assert [(line["rank"], line["run"], line["step"]) for line in found] == [(2, run, 3)] * 4
    assert found[0]["message"] == " ".join(text.split())
    assert found[1]["detail"] == text
    assert found[-1]["message"] == "a callback failed"
    assert "ValueError" in found[-1]["detail"]


def test_what_an_interrupt_says_is_a_line_as_well():
    with patch.dict(os.environ, {"RANK": "3"}), log_lines(JSON):
        line = strict_json(signals.last_words())
    assert (line["rank"], line["exit_code"]) == (3, 130)
    assert "interrupted" in line["message"]


@pytest.mark.process
def test_all_processes_of_a_launch_log_lines_of_their_own(tmp_path):
    file = write_experiment(tmp_path)
    answer = wait_tacit("launch", file, "--processes", 2, "--out", tmp_path / "run", *JSON)
    assert answer.code == 0, answer.err
    found = lines(answer)
    assert {line["rank"] for line in found} == {0, 1}
    last = [line["message"] for line in found if "the run is done" in line["message"]]
    assert len(last) == 2
    again = wait_tacit("launch", file, "--processes", 2, "--out", tmp_path / "run", *JSON)
    assert again.code == 2
    errors = [line for line in lines(again) if line["level"] == "error"]
    assert {line["rank"] for line in errors} == {0, 1}
    assert all("exists already" in line["message"] for line in errors)
