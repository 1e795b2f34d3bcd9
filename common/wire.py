"""Defines the base of every value that travels: closed and frozen models, identifiers, and bytes as text."""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    ValidationError,
    WithJsonSchema,
)

from distrust.common.errors import BadMessage, BadParameter, describe_error, without_controls

WIRE: Final = 3
"""Version of the messages between parties. A party speaks one version, and refuses every other."""

Version = Literal[3]

Norm = Literal["l1", "l2", "linf"]
"""The norm in which a client's vector is bounded."""

LARGEST_COHORT = 1_000_000  # clients of one cohort, each in a slot

Via = Literal["aggregator", "shuffler"]
"""The intermediary that carries a cohort's messages."""

INTERMEDIARIES: tuple[Via, ...] = get_args(Via)

_NAME = r"^[a-z0-9][a-z0-9._-]{0,79}$"
_SIGNS = "lower-case letters, digits, dot, dash, underscore"

Identifier = Annotated[str, Field(pattern=_NAME, description=_SIGNS)]


def check_name(field: str, value: object) -> str:
    """Return the name of a run or a cohort, which has no sign that means something in an address.

    Raises BadParameter, naming the field, for what cannot be such a name.
    """
    if isinstance(value, str) and re.fullmatch(_NAME.strip("^$"), value):
        return value
    shown = f"{value[:79]}…" if isinstance(value, str) and len(value) > 80 else value
    raise BadParameter(field, shown, f"must be a name of 1 to 80 signs: {_SIGNS}; the first a letter or a digit")


def utc(since: float) -> str:
    """Return seconds since the epoch as a time for people, to the second."""
    return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


LONGEST_REASON = 2000
"""Characters of another party's sentence that are kept: it may have sent millions."""


def cut_reason(text: str) -> str:
    """Return another party's sentence without control characters, cut to `LONGEST_REASON`."""
    return without_controls(text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…")


Reason = Annotated[str, AfterValidator(cut_reason)]
"""Why something failed, as another party says it."""


def encode_blob(raw: bytes) -> str:
    """Return bytes as unpadded base64url text."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode_blob(value: object) -> object:
    """Return Text back to bytes; bytes pass. Anything that is not canonical base64url is refused."""
    if not isinstance(value, str):
        return value
    if any(sign in value for sign in "+/="):
        raise ValueError("must be unpadded base64url")
    try:
        text = value.replace("-", "+").replace("_", "/")  # two copies; b64decode makes four, and a body may be large
        raw = binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("must be unpadded base64url") from error
    if encode_blob(raw[len(raw) // 3 * 3 :]) != value[len(value) // 4 * 4 :]:  # whole groups have one spelling only
        raise ValueError("must be canonical unpadded base64url")
    return raw


Blob = Annotated[
    bytes,
    BeforeValidator(decode_blob),
    PlainSerializer(encode_blob, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "base64url", "pattern": "^[A-Za-z0-9_-]*$"}),
]
"""Bytes that travel as base64url text."""


M = TypeVar("M", bound=BaseModel)


def read_message(model: type[M], raw: bytes | bytearray) -> M:
    """Return another party's message from its JSON.

    A message checks its values, and computes with them for that. Another party chooses them so that this fails: by a
    division by zero, say, or a number beyond all doubles. Such a message is one that cannot be read, like any other.

    Raises  ValidationError for values that are refused; BadMessage for a message of another version, whatever else it
            lacks, and where a check itself failed.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError:
        _check_version(model, raw)
        raise
    except Exception as error:  # whatever a check raises, the message is at fault
        raise BadMessage(f"its values cannot be checked: {without_controls(describe_error(error))}") from error


class _Versioned(BaseModel):
    """The one part of a message that every version has."""

    version: StrictInt


def _check_version(model: type[BaseModel], raw: bytes | bytearray) -> None:
    """Raise BadMessage for JSON that says it is of another version of the wire than `model`."""
    field = model.model_fields.get("version")
    own = () if field is None else get_args(field.annotation)
    try:
        received = _Versioned.model_validate_json(raw).version
    except ValidationError:  # the fault is another one, or this one has a place of its own in the explanation
        return
    if own and received not in own:
        spoken = f"this program speaks version {own[0]} of the wire"
        raise BadMessage(f"version = {received}: {spoken}, and all parties of a run need one version of distrust")


class Message(BaseModel):
    """A closed, frozen value: unknown fields, wrong types, NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
