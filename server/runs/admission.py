"""Decides who may request tickets: the operator's own fleets, holders of participation tokens, enrolled devices.

A server without an operator's token listens on loopback only. It is open to every caller there.
"""

import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from distrust.common.errors import BadMessage, BadParameter, ExpiredToken, ForeignToken, RevokedToken, Unauthorized
from distrust.common.explain import first
from distrust.common.inputs import Watched, read_file
from distrust.common.protocol.messages.admission import (
    MOST_PARTICIPANTS,
    Participant,
    ParticipantList,
    bearer,
    read_proof,
    token_id,
)
from distrust.common.wire import read_message

NEEDED = "a request for tickets needs a participation token: Authorization: Bearer …"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who requests tickets, as far as slots depend on it.

    name    in the operator's list.
    id      by which the slots of a cohort, and those of a quota, are counted. None: a holder of the operator's token.
    quota   slots in all; None: no limit.
    share   largest share of a cohort whose promise counts on other clients. None: the operator's own fleets, no limit.
    single  one slot of any cohort.
    """

    name: str = "operator"
    id: str | None = None
    quota: int | None = None
    share: float | None = None
    single: bool = False

    def most(self, clients: int, colluders: float | None) -> int:
        """Return how many slots of a cohort of so many clients it gets at most, at least 1.

        colluders  the share of clients that may collude while the cohort's promise holds, `corrupt` of its run. None:
                   the promise counts on no other client.
        """
        if self.single:
            return 1
        if self.share is None or colluders is None:
            return clients
        return max(1, math.floor(min(self.share, colluders) * clients))

    def is_noted(self, clients: int, colluders: float | None) -> bool:
        """Return whether its slots of such a cohort must be counted. The server notes no caller without a limit."""
        limited = self.most(clients, colluders) < clients
        return self.id is not None and (limited or self.single)


OPERATOR = Caller()
"""The operator's own fleets: no limit."""


class Admission:
    """Admits callers by the operator's token file and the list of participants, as both files are now.

    operator      returns the operator's token; None: every caller is admitted as the operator's own.
    participants  the operator's list; None: it is empty.
    now           returns the time, by which tokens expire.

    Raises BadParameter for a list that cannot be read, and for one without an operator's token.
    """

    def __init__(
        self,
        operator: Callable[[], str] | None = None,
        participants: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if participants is not None and operator is None:
            raise BadParameter("participants_file", str(participants), "needs DISTRUST_OPERATOR_TOKEN_FILE, too")
        self._operator, self._now = operator, now
        self._list = None if participants is None else Watched(participants, lambda: _read(participants), WHOSE)

    def caller(self, authorization: str, text: Callable[[], bytes]) -> Caller:
        """Return who makes a request for tickets.

        authorization  the header; an empty text without one.
        text           returns the bytes that a device signs.

        Raises Unauthorized without a token; ForeignToken for one that is not in the list; RevokedToken, ExpiredToken;
        Unavailable while a file cannot be read.
        """
        if self._operator is None:
            return OPERATOR
        token, proof = bearer(authorization), read_proof(authorization)
        if not token and proof is None:
            raise Unauthorized(NEEDED)
        if proof is None and hmac.compare_digest(token.encode(), self._operator().encode()):
            return OPERATOR
        found = self._found(token_id(token) if proof is None else proof[0])
        if found is None or (found.kind == "device") != (proof is not None):
            what = "this participation token" if proof is None else "this device's key"
            raise ForeignToken(f"{what} is not enrolled at this server")
        if proof is not None and not _verifies(*proof, text()):
            raise Unauthorized(f"the signature of device {found.name} does not verify: nothing is granted")
        return self._admitted(found)

    def again(self, caller: Caller) -> Caller:
        """Return a caller, who may have waited, as the list has it now. Raises as `caller` does."""
        if caller.id is None:
            return caller
        found = self._found(caller.id)
        if found is None:
            raise ForeignToken(f"{caller.name} is not enrolled at this server any more")
        return self._admitted(found)

    def _admitted(self, found: Participant) -> Caller:
        match found.state(self._now()):
            case "revoked":
                raise RevokedToken(f"{found.kind} {found.name} has been revoked by the operator")
            case "expired":
                raise ExpiredToken(f"{found.kind} {found.name} has expired, at {found.expires:%Y-%m-%d %H:%M:%S %Z}")
        share = None if found.own else found.share
        return Caller(found.name, found.id, found.quota, share, single=found.kind == "device")

    def _found(self, name: str) -> Participant | None:
        return None if self._list is None else self._list.value().get(name)


WHOSE = "the list of participants"


def _read(path: Path) -> dict[str, Participant]:
    """Return the participants in a file by their ids. Raises BadParameter."""
    return {participant.id: participant for participant in read_participants(path).participants}


def read_participants(path: Path) -> ParticipantList:
    """Return the operator's list. Raises BadParameter for a file that is none."""
    field = "participants_file"
    try:
        return read_message(ParticipantList, read_file(path, MOST_PARTICIPANTS)[0])
    except OSError as error:
        raise BadParameter(field, str(path), f"cannot be read: {error.strerror}") from error
    except (ValidationError, BadMessage) as error:
        why = error.detail if isinstance(error, BadMessage) else first(error, ParticipantList)
        raise BadParameter(field, str(path), f"must be a list of participants: {why}") from error


def _verifies(key: str, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
