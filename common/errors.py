"""Defines the tree of errors: one cause each, with a stable code and an HTTP status.

ProtocolError
├── BadParameter          422  a value outside its range or its theorem
├── BadMessage            422  a message that cannot be read: size, range, version
├── WrongCohort           404  a cohort, run or round that this party does not know
├── WrongStage            409  a message for a stage that is not open (or is frozen)
├── BadTicket             403  a ticket or signature that does not verify
├── Conflict              409  the same id a second time with another body
├── TooSmall              409  fewer clients, survivors or shares than are needed: nothing is released
├── BudgetExceeded        409  a contribution that would overdraw the declared budget: nothing is sent
├── Aborted               410  a cohort that ended without a release
├── Gone                  410  what was deleted: a pruned run, a batch that was scrubbed
├── Refused               409  a client refuses: answering would weaken a client's privacy
├── BadShare              409  a reconstructed secret that does not match its commitment
├── RunFailed             409  a run that ended without a result: failed or cancelled
├── Unauthorized          401  a call without the token that it needs
│   └── ForeignToken      401  a token or a device's key that the operator has not enrolled
├── NotAdmitted           403  a participation token or a device that gets no slots any more
│   ├── RevokedToken      403  the operator has revoked it
│   ├── ExpiredToken      403  its time is over
│   └── ExhaustedToken    403  all slots of its quota have been handed out
└── Unavailable           503  a peer or a resource that is not there right now

A service's logic raises them. `common.protocol.web` renders them as problem+json. The command line prints them and
exits.
"""

import errno
import re
from typing import ClassVar

BUSY = (429, 503)
"""Statuses of errors that may be gone later: a service that is not there, a full disk, a folder in use."""

FAILED, BAD_INPUT, TRY_LATER = 1, 2, 75
"""Exit statuses of the commands, as docs/reference/operations.md has them."""

LATER = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
"""Numbers of OSErrors that may be gone later: a full disk, a disk that fails, too many open files."""

MOST_DIGITS = 17  # they tell any two doubles apart
LONGEST_TEXT = 300  # characters of `describe_error`; a validation error may quote its whole input

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Matches what a terminal or a page obeys: C0 but tabs and line ends, C1, marks of the writing's direction."""


class ProtocolError(Exception):
    """A refusal or a failure, described in one line. Base class of the errors that callers catch.

    >>> import distrust
    >>> try:
    ...     distrust.connect("http://127.0.0.1:port")
    ... except distrust.ProtocolError as error:
    ...     print(error.code, error.status, error.detail)
    bad-parameter 422 server = 'http://127.0.0.1:port': must be an address such as http://127.0.0.1:8701
    """

    code: ClassVar[str] = "protocol-error"
    status: ClassVar[int] = 500

    def __init__(self, detail: str, **extra: str | float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

    @property
    def urn(self) -> str:
        """Return the stable `type` of the problem document."""
        return f"urn:distrust:problem:{self.code}"


def two_spellings(value: float, limit: float) -> tuple[str, str]:
    """Return a value and the limit that it exceeds, with the fewest digits, six or more, by which they differ."""
    texts = ((f"{value:.{digits}g}", f"{limit:.{digits}g}") for digits in range(6, MOST_DIGITS + 1))
    return next((text for text in texts if text[0] != text[1]), (f"{value:g}", f"{limit:g}"))


def exit_status(error: ProtocolError) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, RunFailed):
        return FAILED
    return TRY_LATER if error.status in BUSY else BAD_INPUT


def describe_error(error: Exception) -> str:
    """Return an unexpected exception as one line of at most `LONGEST_TEXT` characters, with its type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_TEXT]


def without_controls(text: str) -> str:
    """Return another party's text with U+FFFD in place of control characters: a terminal would obey them."""
    return _CONTROLS.sub("\ufffd", text)


def escape_controls(text: str) -> str:
    """Return JSON text with control characters inside its strings as escapes, which means the same."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class BadParameter(ProtocolError):
    """A value outside its range or its theorem; names the field, the value and what is allowed. None is missing."""

    code, status = "bad-parameter", 422

    def __init__(self, field: str, value: object, allowed: str) -> None:
        stated = "is missing" if value is None else f"= {value!r}"
        super().__init__(f"{field} {stated}: {allowed}", field=field)
        self.field, self.value, self.allowed = field, value, allowed


class BadMessage(ProtocolError):
    """A message that cannot be read: wrong size, a value outside Z_m, an unknown version."""

    code, status = "bad-message", 422


class WrongCohort(ProtocolError):
    """A cohort, run or round that this party does not know."""

    code, status = "wrong-cohort", 404


class WrongStage(ProtocolError):
    """A message for a stage that is not open, or that is frozen already."""

    code, status = "wrong-stage", 409


class BadTicket(ProtocolError):
    """A ticket whose signature does not verify, or that belongs to another slot."""

    code, status = "bad-ticket", 403


class Conflict(ProtocolError):
    """An identifier came a second time, with another body."""

    code, status = "conflict", 409


class TooSmall(ProtocolError):
    """Fewer clients, survivors or shares than the noise, the graph or a stage needs; nothing is released.

    liars  the clients that are known to have lied, as the end of the line.
    """

    code, status = "too-small", 409

    def __init__(self, got: int, need: int, what: str = "survivors", liars: str = "") -> None:
        super().__init__(f"{got} {what}, at least {need} needed: nothing is released{liars}", got=got, need=need)
        self.got, self.need = got, need


class BudgetExceeded(ProtocolError):
    """A contribution that would overdraw the declared privacy budget; refused before anything is sent.

    epsilon  what it would cost; None where it would leave no privacy at all.
    limit    the limit that it would exceed, in words, where that is no declared budget.
    seed     `unsafe.noise_seed`, where noise from a seed is the reason.
    """

    code, status = "budget-exceeded", 409

    def __init__(
        self,
        epsilon: float | None,
        contributions: int,
        budget: float,
        delta: float,
        limit: str = "the budget",
        *,
        seed: int | None = None,
    ) -> None:
        shown, most = two_spellings(epsilon or 0.0, budget)
        times = "one contribution" if contributions == 1 else f"{contributions} contributions"
        if seed is not None:
            why = "noise from a seed leaves no privacy"
            text = f"unsafe.noise_seed = {seed}: {why}, and {limit} is ε = {most}: leave out one of the two"
        elif epsilon is None:
            text = f"{times} would leave no privacy, and {limit} is ε = {most} at δ = {delta:g}"
        else:
            text = f"{times} would cost ε = {shown} at δ = {delta:g}, and {limit} is ε = {most}"
        super().__init__(text, budget=budget)
        self.epsilon, self.budget, self.delta = epsilon, budget, delta


class Aborted(ProtocolError):
    """A cohort that ended without a release."""

    code, status = "aborted", 410


class Gone(ProtocolError):
    """The operator or the run's configuration had it deleted: a pruned run, a batch that was scrubbed."""

    code, status = "gone", 410


class Refused(ProtocolError):
    """A client refuses, because its answer would weaken a client's privacy."""

    code, status = "refused", 409


class BadShare(ProtocolError):
    """A reconstructed secret that does not match its commitment: a share was false."""

    code, status = "bad-share", 409


class RunFailed(ProtocolError):
    """A run that ended without a result: it failed or was cancelled. `distrust run` exits 1 with it."""

    code, status = "run-failed", 409  # below 500: asking again would fail again


class Unauthorized(ProtocolError):
    """A call without the token that it needs."""

    code, status = "unauthorized", 401


class ForeignToken(Unauthorized):
    """A request for slots with a token, or by a device, that the operator has not enrolled at this server."""

    code = "foreign-token"


class NotAdmitted(ProtocolError):
    """A participation token or an enrolled device that gets no slots any more. Asking again changes nothing."""

    code, status = "not-admitted", 403


class RevokedToken(NotAdmitted):
    """The operator has revoked it."""

    code = "revoked-token"


class ExpiredToken(NotAdmitted):
    """Its time is over."""

    code = "expired-token"


class ExhaustedToken(NotAdmitted):
    """All slots of its quota have been handed out."""

    code = "exhausted-token"


class Unavailable(ProtocolError):
    """A peer or a resource that is not there right now; try again."""

    code, status = "unavailable", 503
