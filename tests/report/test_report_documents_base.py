"""Documents: what is written is read again as it was, and what is wrong is named."""

import json
import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from tacit.errors import InputError
from tacit.report.documents.base import (
    Count,
    Document,
    Flag,
    Items,
    Number,
    OptionalNumber,
    RunDocument,
    Text,
    as_dict,
    dump,
    load,
    parse,
    plain_json,
    read,
)
from tacit.report.documents.run import read_run_folder
from tacit.report.documents.unit import RECORD, UnitTerms


class Inner(Document):
    most: OptionalNumber = Field(alias="max")


class Outer(Document):
    format_version: Count
    name: Text
    flag: Flag
    share: Number
    kind: Literal["a", "b"]
    inner: Inner | None
    rows: Items[Inner]
    pairs: Items[tuple[Count, Count]]
    free: dict[str, Any]
    later: Text | None = None


class Open(RunDocument):
    name: Text


VALUES = {
    "format_version": 1,
    "name": "a name",
    "flag": True,
    "share": 1,
    "kind": "b",
    "inner": None,
    "rows": [{"max": 2.5}, {"max": None}],
    "pairs": [[0, 1], [2, 3]],
    "free": {"x": [1, {"y": 2.5}]},
}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
)


def same(plain, original):
    """Whether `plain` is `original` with null for what is not finite and lists for tuples."""
    if isinstance(original, float):
        return plain == original if math.isfinite(original) else plain is None
    if isinstance(original, (list, tuple)):
        return (
            isinstance(plain, list)
            and len(plain) == len(original)
            and all(map(same, plain, original))
        )
    if isinstance(original, dict):
        return (
            isinstance(plain, dict)
            and plain.keys() == original.keys()
            and all(same(plain[key], original[key]) for key in original)
        )
    return plain == original and type(plain) is type(original)


@given(values)
def test_plain_json_is_json_and_changes_only_what_is_not_finite(value):
    plain = plain_json(value)
    json.dumps(plain, allow_nan=False)
    assert same(plain, value)


@pytest.mark.parametrize("later", [{}, {"later": None}, {"later": "said"}])
def test_what_is_read_is_written_as_it_was(later):
    """In the order of the fields; an integer stays one, and what was not said is not written."""
    text = json.dumps({**VALUES, **later}, indent=2)
    document = load(Outer, text, "a test")
    assert dump(document) == text
    shuffled = dict(reversed(json.loads(text).items()))
    assert dump(read(Outer, shuffled, "a test")) == text
    assert document.rows[0].most == 2.5
    with pytest.raises(ValidationError, match="frozen"):
        document.name = "another"  # type: ignore[misc]


def test_numbers_that_are_not_finite_are_written_as_null_and_read_as_none():
    made = [Inner(max=value) for value in (math.inf, -math.inf, math.nan, 1.5)]
    assert [inner.most for inner in made[:2]] == [math.inf, -math.inf]
    assert as_dict(made[0]) == {"max": math.inf}
    assert [dump(inner, indent=None) for inner in made] == ['{"max": null}'] * 3 + ['{"max": 1.5}']
    for number in ("Infinity", "-Infinity", "NaN", "1e999", "9" * 400, "-" + "9" * 400):
        assert load(Inner, f'{{"max": {number}}}', "a test").most is None
    with pytest.raises(InputError, match="share = None: must be a number"):
        load(Outer, json.dumps({**VALUES, "share": math.inf}), "a test")


def test_keys_follow_those_of_the_document():
    assert dump(Inner(max=1.0), {"out": "x", "a": math.inf}, indent=None) == (
        '{"max": 1.0, "out": "x", "a": null}'
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": 1}, "a test: name = 1: must be a text"),
        ({"flag": 1}, "flag = 1: must be true or false"),
        ({"share": True}, "share = True: must be a number"),
        ({"share": "1"}, "share = '1': must be a number"),
        ({"kind": "c"}, "kind = 'c': must be 'a' or 'b'"),
        ({"inner": 3}, "inner = 3: must be a section"),
        ({"inner": {}}, "inner: max = None: must be given"),
        ({"inner": {"max": 1.0, "min": 0.0}}, "inner: min = 0.0: is not known"),
        ({"rows": {}}, r"rows = {}: must be a list"),
        ({"rows": [{"max": 1.0}, {"max": "x"}]}, "rows: max = 'x': must be a number or null"),
        ({"pairs": [[True, 1]]}, "pairs = True: must be a whole number"),
        ({"pairs": [[-1, 1]]}, "pairs = -1: must be 0 or more"),
        ({"pairs": [[1.0, 1]]}, "pairs = 1.0: must be a whole number"),
        ({"free": []}, r"free = \[\]: must be a section"),
        ({"more": 1}, "more = 1: is not known"),
        ({"format_version": 2}, "format_version = 2: this version of tacit reads format 1: use"),
        ({"format_version": "1"}, "format_version = '1': this version of tacit reads format 1"),
    ],
)
def test_what_is_wrong_is_named(changes, told):
    with pytest.raises(InputError, match=told):
        read(Outer, {**VALUES, **changes}, "a test")


@pytest.mark.parametrize("key", list(VALUES))
def test_what_is_missing_is_named(key):
    values = {name: value for name, value in VALUES.items() if name != key}
    with pytest.raises(InputError, match=f"a test: {key} = None: must be given"):
        read(Outer, values, "a test")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{'a': 1}",
        "9" * 5_000,
        "[" * 100_000,
        '{"max":' * 100_000,
        b"\xff\xfe",
        '{"max": 1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_object_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="must be a JSON object") as caught:
        parse(text, "a test")
    assert len(str(caught.value)) < 1500
    assert "\n" not in str(caught.value)


def nested(depth):
    return json.dumps(VALUES).replace('"y": 2.5', '"y": ' + "[" * depth + "]" * depth)


@pytest.mark.parametrize("depth", [5_000, 20_000, 100_000])
def test_deep_nesting_is_refused(depth):
    assert load(Outer, nested(100), "a test").name == "a name"
    with pytest.raises(InputError, match=r"a test = .*(nested so deeply|must be a JSON object)"):
        load(Outer, nested(depth), "a test")


def test_a_list_is_given_up_at_its_first_wrong_entry():
    values = {**VALUES, "rows": [3] * 100_000}
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    assert caught.value.error_count() == 1


def test_of_a_key_that_stands_twice_the_last_counts():
    assert load(Inner, '{"max": 1.0, "max": 2.0}', "a test").most == 2.0


def test_a_document_of_a_run_keeps_what_a_later_version_says():
    text = '{"name": "x", "later": {"a": [1, null]}}'
    assert dump(load(Open, text, "a test"), indent=None) == text


# Whom epsilon protects, by name: one function says a record, a patient, patients.


TEXTS = {
    "record": "A record joins a step; each record's gradient, of all records, was recorded.",
    "patient": "A patient joins a step; each patient's gradient, of all patients, was recorded.",
    "employee": "An employee joins a step; each employee's gradient, of all employees, was "
    "recorded.",
    "company": "A company joins a step; each company's gradient, of all companies, was recorded.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_says_what_is_protected_by_its_name(name):
    assert UnitTerms(name=name).said(TEXTS["record"]) == TEXTS[name]


def test_a_name_at_the_beginning_of_a_sentence_is_written_as_one():
    unit = UnitTerms(name="patient")
    assert (
        unit.said("Records are many. Record by record.") == "Patients are many. Patient by patient."
    )


@pytest.mark.parametrize(
    ("gradient", "nodes", "apart"),
    [(None, 1, True), (None, 2, True), ("mean", 1, False), ("sum", 1, False), ("mean", 2, True)],
)
def test_a_persons_epsilon_is_another_by_row_and_at_several_nodes(gradient, nodes, apart):
    assert UnitTerms(name="x", person="x", gradient=gradient, nodes=nodes).apart is apart
    assert not RECORD.apart


def test_terms_are_what_they_say_and_nothing_else():
    unit = UnitTerms(name="patient", person="patient", gradient="sum", rows=3, nodes=2)
    assert read(UnitTerms, as_dict(unit), "unit") == unit
    assert as_dict(RECORD) == {"name": "record"}
    for wrong in ({"name": "x", "gradient": "median"}, {"name": "x", "rows": -1}, {"rows": 1}):
        with pytest.raises(InputError, match="unit"):
            read(UnitTerms, wrong, "unit")


#


def edit_result(folder, change):
    path = folder / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    return folder


def test_reads_every_node_and_ignores_unknown_keys(write_run):
    run = read_run_folder(write_run())
    assert (run.result.node_count, len(run.result.epsilon)) == (16, 16)
    assert (run.result.records[-1], run.result.epsilon_budget[-1]) == (90, 3.0)
    assert run.result.epsilon[-1] == pytest.approx(2.9912)
    assert (run.result.noise_multiplier.first[-1], run.result.noise_multiplier.last[-1]) == (
        4.21,
        2.73,
    )
    assert run.result.topology.edges[3][0] == (0, 8)
    assert [line.step for line in run.measurements] == list(range(20, 501, 20))


def test_reads_a_run_without_privacy_and_without_a_test_set(star_run):
    run = read_run_folder(star_run)
    assert run.result.test_accuracy is None
    assert set(run.result.epsilon) == set(run.result.leading_by_node) == {None}
    assert run.measurements[0].epsilon is None


def test_the_last_line_of_a_repeated_step_counts(write_run):
    folder = write_run()
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    lines = [
        {**first, "step": step, "train_loss": loss}
        for step, loss in [(10, 1.0), (20, 2.0), (30, 3.0), (20, 4.0), (40, 5.0), (40, 6.0)]
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = [(line.step, line.train_loss) for line in read_run_folder(folder).measurements]
    # 30 was measured before the run fell back to 20, and not again
    assert kept == [(10, 1.0), (20, 4.0), (40, 6.0)]


def test_a_line_that_was_cut_off_is_left_out(write_run):
    folder = write_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 520, "test_acc')
    assert read_run_folder(folder).measurements[-1].step == 500


def test_numbers_that_are_not_finite_count_as_absent(write_run):
    folder = write_run()
    path = folder / "metrics.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    line["train_loss"] = float("nan")
    line["clip"] = 10**400
    line["test_loss"] = {"mean": float("inf"), "worst": None, "consensus": 1}
    path.write_text(json.dumps(line) + "\n")
    (read,) = read_run_folder(folder).measurements
    assert (read.train_loss, read.clip) == (None, None)
    assert read.test_loss is not None
    assert (read.test_loss.mean, read.test_loss.consensus) == (None, 1.0)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "result.json"])
def test_a_missing_file_is_named(write_run, name):
    folder = write_run()
    (folder / name).unlink()
    with pytest.raises(InputError, match=name):
        read_run_folder(folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        read_run_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("result.json", "{", "JSON object"),
        ("result.json", "[]", "JSON object"),
        ("result.json", '{"format_version": 1}', "tacit_version"),
        ("result.json", '{"format_version": 1, "tacit_version": "0.1.0"}', "status"),
        ("result.json", '{"format_version": 2}', "format 1"),
        ("result.json", "{}", "format_version"),
        ("config.toml", "= 3", "TOML"),
        ("metrics.jsonl", "{}\n", "line 1: step"),
        ("metrics.jsonl", '{"step": 1}\n', "train_loss"),
        ("metrics.jsonl", '\n{"step": -1}\n', "line 2: step"),
    ],
)
def test_unreadable_content_is_refused(write_run, name, content, told):
    folder = write_run()
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=told):
        read_run_folder(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda result: result["epsilon"].pop(), "one entry a node: 16"),
        (lambda result: result.update(nodes=0), "1 or more"),
        (lambda result: result.update(nodes=True), "whole number"),
        (lambda result: result.update(private="yes"), "true or false"),
        (lambda result: result.update(status="fine"), "budget-exhausted"),
        (lambda result: result.update(seconds="long"), "number or null"),
        (lambda result: result.update(not_covered=[1]), "must be a text"),
        (lambda result: result["task"].update(dataset=None), "must be a text"),
        (lambda result: result["topology"].update(edges=[[[0]]]), "pairs"),
        (lambda result: result["topology"].update(edges=[[[0, -1]]]), "0 or more"),
        (lambda result: result["claim"].update(conditions=[{"text": "a"}]), "holds"),
    ],
)
def test_wrong_fields_are_named(write_run, change, told):
    folder = edit_result(write_run(), change)
    with pytest.raises(InputError, match=told):
        read_run_folder(folder)


def test_a_budget_met_up_to_rounding_is_not_exceeded(write_run):
    epsilon = [3.0 * (1 + 1e-12), 3.001, None, *[1.0] * 13]
    assert read_run_folder(write_run({"epsilon": epsilon})).result.over_budget == [1]
