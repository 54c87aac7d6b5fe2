"""What all JSON documents have in common: how they are written, read and refused.

A document is a frozen model whose fields stand in the order of its JSON keys. Who makes one builds
the model and writes it with `dump`; who reads one calls `load`, or `parse` and then `read`. Types
are strict: `true` is no count, and no text is a number. What was not said is not written, so that
a document which is read and written again stays as it was.

Numbers may be infinite or no number while a document is made. JSON has neither: they are written
as null, and read as None.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, Strict, ValidationError
from pydantic_core import PydanticCustomError

from tacit.base.plain_files import read_plain
from tacit.errors import FormatError, InputError, plain_rule

Item = TypeVar("Item")
AnyDocument = TypeVar("AnyDocument", bound="Document")

MOST_BYTES = 2**26  # of a document; read, it takes some 25 times as much memory at most


def _optional_number(value: object) -> float | None:
    """A number as it is, or None; also for an integer that no float can hold."""
    if value is None or type(value) is float:
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise PydanticCustomError("number", "must be a number or null")
    if isinstance(value, float):
        return value
    # A comparison, since a conversion fails on integers that no float can hold.
    return value if -sys.float_info.max <= value <= sys.float_info.max else None


def _number(value: object) -> float:
    number = None if value is None else _optional_number(value)
    if number is None:
        raise PydanticCustomError("number", "must be a number")
    return number


Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
_LARGEST = 2**63 - 1  # that an array of integers holds
Count = Annotated[int, Strict(), Field(ge=0, le=_LARGEST)]
Number = Annotated[float, PlainValidator(_number)]
OptionalNumber = Annotated[float | None, PlainValidator(_optional_number)]
# A list is given up at its first wrong entry: the errors of millions would take all memory.
Items = Annotated[tuple[Item, ...], Field(fail_fast=True)]


class Document(BaseModel):
    """A JSON object with exactly these fields.

    Keys that are not known are refused: what others hand over says nothing that nobody checks. A
    document with `format_version` is of the version that `version` has.
    """

    # Models are built when they are first used: no command uses all of them.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, protected_namespaces=()
    )
    version: ClassVar[int] = 1


class RunDocument(Document):
    """A JSON object of a run folder: with these fields, and with those that a later version has.

    They are kept: who records an audit in a result writes it again.
    """

    model_config = ConfigDict(extra="allow")


def as_dict(document: Document) -> dict[str, Any]:
    """A document as a dictionary: the fields that were given, under their JSON names, in order.

    Numbers that are not finite stay as they are.
    """
    fields = {
        field.alias or name: _plain(getattr(document, name))
        for name, field in type(document).model_fields.items()
        if name in document.model_fields_set
    }
    return fields | (document.model_extra or {})


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Document):
        return as_dict(value)
    return (
        {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
    )


def plain_json(value: Any) -> Any:
    """The same data as JSON has it: documents as objects, numbers that are not finite as null."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, (dict, Mapping)):  # to ask whether it is any other mapping takes long
        return {key: plain_json(item) for key, item in value.items()}
    return plain_json(as_dict(value)) if isinstance(value, Document) else value


def dump(
    document: Document, more: Mapping[str, object] | None = None, *, indent: int | None = 2
) -> str:
    """A document as JSON, with `more` keys after its own; an `indent` of None writes one line."""
    values = plain_json(document) | plain_json(more or {})
    return json.dumps(values, indent=indent, allow_nan=False)


def load(model: type[AnyDocument], text: str | bytes, where: str) -> AnyDocument:
    """A document from its JSON; `where` names the file that it came from, for errors.

    Raises:
        InputError: it is no JSON object, of another format version, or a field is missing or
            wrong: naming file, field and value.
    """
    return read(model, parse(text, where), where)


def load_file(model: type[AnyDocument], path: Path) -> AnyDocument:
    """A document from its file; errors are those of `load` and `parse_file`."""
    return read(model, parse_file(path), str(path))


def parse_file(path: str | Path) -> dict[str, Any]:
    """A JSON object as it stands in a plain file of `MOST_BYTES` at most, not yet checked.

    Raises:
        InputError: it cannot be read, holds more, or is none.
    """
    try:
        content = read_plain(path, MOST_BYTES)
    except OSError as error:
        raise InputError("file", str(path), f"cannot be read ({error.strerror})") from None
    return parse(content, str(path))


def parse(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object as it stands in a text, not yet checked.

    Raises:
        InputError: it is none, or is nested too deeply.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError
        raise InputError(where, text, f"must be a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise InputError(where, value, "must be a JSON object")
    return value


def read(model: type[AnyDocument], values: Mapping[str, Any], where: str) -> AnyDocument:
    """A document from a parsed JSON object; arguments and errors are those of `load`."""
    if "format_version" in model.model_fields and values.get("format_version") != model.version:
        if "format_version" not in values:
            raise InputError(f"{where}: format_version", None, "must be given")
        raise FormatError(where, values["format_version"], model.version)
    try:
        return model.model_validate(plain_json(values))
    except RecursionError:
        raise InputError(where, "a JSON object", "must not be nested so deeply") from None
    except ValidationError as error:
        faults = error.errors(include_url=False)
        first = faults[0]
        path = [where, *(part for part in first["loc"] if isinstance(part, str))]
        value = None if first["type"] == "missing" else first["input"]
        value = first.get("ctx", {}).get("value", value)
        raise InputError(": ".join(path), value, plain_rule(faults)) from None
