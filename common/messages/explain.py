"""What is wrong with an input, one line a fault: field, value, and what is allowed."""

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

_LONGEST_VALUE = 60

_ALLOWED = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "its {discriminator} must be one of {expected_tags}",
    "union_tag_not_found": "needs a {discriminator}",
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
    "string_type": "must be text",
    "bytes_type": "must be unpadded base64url text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be a table of keys and values",
    "model_attributes_type": "must be a table of keys and values",
}


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> list[str]:
    """Every fault of `error`, one line each. With `model`, an unknown key is answered with the keys that exist."""
    return explain_all(error.errors(include_url=False), model)


def explain_all(errors: Sequence[Mapping[str, Any]], model: type[BaseModel] | None = None) -> list[str]:
    """The same for the error entries of pydantic or of a web framework; a leading `body` in a location is left out."""
    return [_line(entry, model) for entry in errors]


def first(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first fault, in one line."""
    return explain(error, model)[0]


def _line(entry: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    place = tuple(entry["loc"])
    place = place[1:] if place[:1] in {("body",), ("query",), ("path",)} else place
    field = ".".join(map(str, place))
    allowed = _allowed(entry, place, model)
    if not field:
        return allowed
    if entry["type"] == "missing" or isinstance(entry.get("input"), Mapping):
        return f"{field}: {allowed}"
    return f"{field} = {_shown(entry.get('input'))}: {allowed}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _allowed(entry: Mapping[str, Any], place: tuple[Any, ...], model: type[BaseModel] | None) -> str:
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _unknown(str(place[-1]), _keys(model, place[:-1]))
    if kind in _ALLOWED:
        return _ALLOWED[kind].format(**context)
    return str(entry["msg"]).removeprefix("Value error, ")


def _unknown(key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    allowed = f"; allowed keys are {', '.join(keys)}" if keys else ""
    return f"unknown key{hint}{allowed}"


def _keys(model: type[BaseModel] | None, place: tuple[Any, ...]) -> list[str]:
    """The keys of the table at `place` inside `model`; empty when it cannot be told."""
    for part in place:
        if model is None or part not in model.model_fields:
            return []
        model = _table(model.model_fields[part].annotation)
    return [] if model is None else list(model.model_fields)


def _table(annotation: object) -> type[BaseModel] | None:
    """The one model inside an annotation such as `Spec | None`; None for unions of several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inside = [found for argument in typing.get_args(annotation) if (found := _table(argument)) is not None]
    return inside[0] if len(inside) == 1 else None
