"""Defines who may request slots: participation tokens and enrolled devices, and how a request for tickets shows them.

The operator keeps the list. The server reads it, and finds no token in it: only digests and public keys.
"""

import hashlib
import re
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AwareDatetime, Field, model_validator

from distrust.common.errors import BadParameter
from distrust.common.inputs import read_token
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.wire import Identifier, Message

TOKEN = 32
"""Random bytes of a participation token."""

USUAL_SHARE = 0.1
"""Largest share of one cohort of a token that was made without another one: the rate of corruption of most runs."""

MOST_PARTICIPANTS = 16 * 2**20  # bytes of the list: about 80,000 of them

_HEX = "[0-9a-f]{64}"  # 32 bytes in hexadecimal digits
_PROOF = 64 + 1 + 128  # signs of a device's key, a colon, its signature


class Participant(Message):
    """One participation token, or one enrolled device.

    id       64 hexadecimal digits: SHA-256 of the token, or the device's raw Ed25519 public key.
    quota    slots in all, over all runs of the server; absent: no limit.
    expires  when it gets no slots any more; absent: never.
    share    largest share of one cohort that a token gets, at least one slot, and never more than the share of clients
             that the run's promise allows to collude. Only cohorts whose promise counts on other clients have the
             limit. A device gets one slot of any cohort.
    own      the operator's own fleets: no limit of a cohort's slots.
    """

    name: Identifier
    kind: Literal["token", "device"]
    id: Annotated[str, Field(pattern=f"^{_HEX}$")]
    quota: Annotated[int, Field(ge=1, le=10**12, description="slots in all")] | None = None
    expires: AwareDatetime | None = None
    share: Annotated[float, Field(gt=0, le=1, description="of one cohort")] = USUAL_SHARE
    own: Annotated[bool, Field(exclude_if=lambda own: not own)] = False
    revoked: bool = False

    def state(self, now: datetime) -> Literal["open", "expired", "revoked"]:
        """Return whether it gets slots at this time, as far as the list says."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "open"


class ParticipantList(Message):
    """All that may take part. Names and ids are each used once."""

    version: Literal[1] = 1
    participants: tuple[Participant, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> "ParticipantList":
        for field in ("name", "id"):
            values = [getattr(participant, field) for participant in self.participants]
            if len(set(values)) < len(values):
                raise ValueError(f"participants: each {field} must be used once")
        return self


def new_token() -> str:
    """Return a participation token: 256 random bits as text."""
    return secrets.token_urlsafe(TOKEN)


def token_id(token: str) -> str:
    """Return the id of a participation token. It has 256 random bits, so the digest needs no salt and no stretching."""
    return hashlib.sha256(token.encode()).hexdigest()


def bearer(authorization: str) -> str:
    """Return the token in an `Authorization` header; an empty text where it carries none."""
    scheme, _, received = authorization.partition(" ")
    return received.strip() if scheme.lower() == "bearer" else ""


def read_device_key(field: str, path: Path) -> Ed25519PrivateKey:
    """Return the private key in a device's file: 64 hexadecimal digits. Raises BadParameter, which does not show it."""
    text = read_token(field, path)
    if not re.fullmatch(_HEX, text):
        raise BadParameter(field, str(path), "must hold a device's private key: 64 hexadecimal digits")
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def proof_header(key: bytes, signature: bytes) -> str:
    """Return the `Authorization` header of a device: its raw public key and its signature of `request_text`."""
    return f"Device {key.hex()}:{signature.hex()}"


def read_proof(authorization: str) -> tuple[str, bytes] | None:
    """Return the id and the signature of a device's `Authorization` header; None for another header."""
    scheme, _, proof = authorization.partition(" ")
    key, _, signature = proof.strip().partition(":")
    if scheme.lower() != "device" or len(proof.strip()) != _PROOF or len(key) != 64:
        return None
    try:
        return bytes.fromhex(key).hex(), bytes.fromhex(signature)
    except ValueError:
        return None


def request_text(run_digest: bytes, request: TicketRequest) -> bytes:
    """Return the bytes that a device signs: they name R and every field of its request for tickets.

    The request's id always gets the same slots. So a repeat of the same bytes gains nothing.
    """
    fields = (request.request, str(request.round), str(request.want))
    return b"\x1f".join(
        [b"distrust ticket request v3", run_digest, *(field.encode() for field in fields), request.keys]
    )
