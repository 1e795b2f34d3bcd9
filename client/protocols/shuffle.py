"""The shuffler's script: one message a client, its report."""

from collections.abc import Iterable, Mapping, Sequence
from secrets import token_bytes
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distrust.client.fleet.user import User
from distrust.client.protocols.base import Check
from distrust.client.randomizer import Randomizer, labelled_bits, record
from distrust.common.crypto.seal import REPORT_ID, seal
from distrust.common.errors import BadMessage
from distrust.common.messages.cohort import Cohort, SealedRecords
from distrust.common.messages.status import StageView
from distrust.common.messages.upload import Item


class ShuffleProtocol:
    """Reports of one cohort's users: labelled bits in clear, or records sealed to the server.

    Where S deals the actions a record is bound to its action as well, and looks like all the others; behind it stands
    the secret whose commitment asked for the action.
    """

    first: Literal["report"] = "report"
    last: Literal["report"] = "report"

    def __init__(self, randomizer: Randomizer) -> None:
        self._randomizer = randomizer
        self.refusals: dict[int, str] = {}  # always empty: a report is sent, or its cohort was refused

    def deal(self, plays: Mapping[int, int]) -> None:
        """Slot to play."""
        self._randomizer.deal(plays)

    def begin(self, users: Sequence[User]) -> list[Item]:
        """Every report is made once; a retry sends the same bytes."""
        rows = self._randomizer.rows([user.slot for user in users])
        return [user.item(self._body(user, row)) for user, row in zip(users, rows, strict=True)]

    def answer(self, users: Sequence[User], view: StageView, check: Check) -> list[Item]:
        """Return nothing: a report is all that the shuffler ever asks for."""
        del users, view, check
        return []

    def forget(self, slots: Iterable[int]) -> None:
        """Nothing is kept."""

    def _body(self, user: User, row: NDArray[np.uint64]) -> bytes:
        cohort = self._randomizer.assignment.cohort
        if cohort.channel.kind == "bits":
            return labelled_bits(row, cohort.channel.width)
        message = sealed(cohort, record(row, self._randomizer.mechanism.modulus), self._randomizer.place(user.slot))
        return message + user.secret if cohort.channel.kind == "dealt" else message


def sealed(cohort: Cohort, payload: bytes, place: int | None = None) -> bytes:
    """Report id (16 fresh random bytes) ‖ HPKE(report id ‖ payload), to the server's key of the cohort."""
    if not isinstance(cohort.channel, SealedRecords):
        raise BadMessage(f"cohort {cohort.cohort} takes no sealed records")
    report_id = token_bytes(REPORT_ID)
    return report_id + seal(cohort.channel.server_key, cohort, report_id, payload, place)
