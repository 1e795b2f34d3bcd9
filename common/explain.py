"""Explains the faults of an input in one line each: field, value, and what is allowed."""

import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from distrust.common.errors import BadParameter
from distrust.common.inputs import without_passwords

_LONGEST_VALUE = 60  # signs of a bad value that its refusal repeats
_LONGEST_ADDRESS = 2000  # signs that are searched for passwords
_LONGEST_KEY = 80  # a caller's key may be as long as a body

_TYPE = re.compile(r"constrained-\w+$|literal\[")
"""Matches pydantic's name of one of several types of a field."""

_NAMES_A_FIELD = re.compile(r"\w+ = ")

_ALLOWED = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "none_required": "must be left out",
    "string_type": "must be text",
    "bytes_type": "must be unpadded base64url text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a table of keys and values",
    "model_type": "must be a table of keys and values",
    "model_attributes_type": "must be a table of keys and values",
}


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> list[str]:
    """Return every fault of `error`, one line each.

    With `model`, an unknown key is answered with the keys that exist.
    """
    return explain_all(error.errors(include_url=False), model)


def explain_all(errors: Sequence[Mapping[str, Any]], model: type[BaseModel] | None = None) -> list[str]:
    """Return one line for each bad field, from error entries of pydantic or of a web framework.

    A leading `body` in a location is left out. A field of several types has an entry for each: they are one line.
    """
    lines: list[str] = []
    before = None
    for entry in errors:
        place = _place(entry)
        parts, allowed = _walk(model, place)[0], _allowed(entry, place, model)
        union = parts if _is_branch(place) else None
        if union is not None and union == before:
            lines[-1] += f" or {allowed.removeprefix('must be ')}"
        else:
            lines.append(_line(entry, parts, allowed))
        before = union
    return lines


def first(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return the first fault, in one line."""
    return explain(error, model)[0]


def wanted(error: ValidationError) -> str:
    """Return the allowed values where the first fault is. The caller names field and value."""
    entry = error.errors(include_url=False)[0]
    return _allowed(entry, tuple(entry["loc"]), None)


def refused(error: ValidationError, field: str, meaning: str = "is required") -> BadParameter:
    """Return the first fault as a refusal that names the field. A text that is a number is shown as a number.

    meaning  told where the value is missing.
    """
    entry = error.errors(include_url=False)[0]
    if entry["type"] == "missing":
        return BadParameter(field, None, meaning)
    value = entry["input"]
    if isinstance(value, str):
        value = _number(value) if not entry["type"].startswith("string") else None
        value = _cut(entry["input"]) if value is None else value
    return BadParameter(field, value, _allowed(entry, tuple(entry["loc"]), None))


def _number(text: str) -> float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the location of a fault, without what a web framework says of the part of a request that it is in."""
    place = tuple(entry["loc"])
    key = entry["type"] == "extra_forbidden" and len(place) == 1  # an unknown key may be called so as well
    return place[1:] if place[:1] in {("body",), ("query",), ("path",)} and not key else place


def _line(entry: Mapping[str, Any], place: Sequence[Any], allowed: str) -> str:
    parts, value = [_short(str(part), _LONGEST_KEY) for part in place], entry.get("input")
    if entry["type"] == "union_tag_invalid" and isinstance(value, Mapping):
        key = _discriminator(entry)
        parts, value = [*parts, key], value.get(key)
    field = ".".join(parts)
    if not field:
        return allowed
    if entry["type"] == "value_error" and isinstance(value, Mapping) and _NAMES_A_FIELD.match(allowed):
        return f"{field}.{allowed}"  # the check of a whole table names the field in it
    if entry["type"] == "missing" or isinstance(value, Mapping):
        return f"{field}: {allowed}"
    return f"{field} = {_shown(value)}: {allowed}"


def _shown(value: object) -> str:
    return _short(repr(_cut(value) if isinstance(value, str) else value), _LONGEST_VALUE)


def _cut(text: str) -> str:
    """Return the beginning of a text, without the passwords of its addresses."""
    end = "@" if len(text) > _LONGEST_ADDRESS else ""  # the password may go on beyond the cut
    return without_passwords(text[:_LONGEST_ADDRESS] + end)[:_LONGEST_VALUE]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _allowed(entry: Mapping[str, Any], place: tuple[Any, ...], model: type[BaseModel] | None) -> str:
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _unknown(str(place[-1]), _keys(model, place[:-1]))
    if kind == "union_tag_not_found":
        return f"must be a table of keys and values, with a {_discriminator(entry)}"
    if kind in _ALLOWED:
        return _ALLOWED[kind].format(**context)
    text = str(entry["msg"]).removeprefix("Value error, ")
    _, one_of, words = text.partition(" is not one of ")  # typer's words for a choice
    return f"must be one of {words.rstrip('.')}" if one_of else text


def _discriminator(entry: Mapping[str, Any]) -> str:
    """Return the key that picks one of several tables; a function that reads it is called like the key."""
    return str(entry["ctx"]["discriminator"]).strip("'_()")


def _unknown(key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key[:_LONGEST_KEY], keys, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    allowed = f"; allowed keys are {', '.join(keys)}" if keys else ""
    return f"unknown key{hint}{allowed}"


def _keys(model: type[BaseModel] | None, place: tuple[Any, ...]) -> list[str]:
    """Return the keys of the table at `place` inside `model`; empty when it cannot be told."""
    tables = _walk(model, place)[1]
    return list(tables[0].model_fields) if len(tables) == 1 else []


def _walk(model: type[BaseModel] | None, place: tuple[Any, ...]) -> tuple[list[Any], list[type[BaseModel]]]:
    """Return `place` without names that pick one of several tables or types, and the tables that it may lead to.

    Where the tables are not known such a name is recognized by its dash: keys have none.
    """
    kept, tables = [], [] if model is None else [model]
    whole = place[:-1] if _is_branch(place) else place
    for number, part in enumerate(whole):
        tagged = [table for table in tables if part in _tags(table)]
        if tagged and len(tables) > 1:
            tables = tagged
            continue
        if tables or not (0 < number < len(whole) - 1 and "-" in str(part)):
            kept.append(part)
        known = len(tables) == 1 and part in tables[0].model_fields
        tables = _tables(tables[0].model_fields[part].annotation) if known else []
    return kept, tables


def _is_branch(place: tuple[Any, ...]) -> bool:
    """Return whether the last part of `place` names one of a field's types, such as `constrained-float`."""
    return len(place) > 1 and isinstance(place[-1], str) and _TYPE.match(place[-1]) is not None


def _tags(table: type[BaseModel]) -> tuple[Any, ...]:
    """Return the names under which a union knows a table."""
    fields = (table.model_fields.get(key) for key in ("name", "kind"))
    return tuple(tag for field in fields if field is not None for tag in typing.get_args(field.annotation))


def _tables(annotation: object) -> list[type[BaseModel]]:
    """Return the models inside an annotation such as `Spec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for argument in typing.get_args(annotation) for table in _tables(argument)]
