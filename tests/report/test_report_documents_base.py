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


VALUES: dict[str, Any] = {
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
