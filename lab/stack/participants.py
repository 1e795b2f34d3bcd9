"""Keeps the operator's list of participants: who may request slots. The server reads the file again as it changes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.messages.admission import (
    MOST_PARTICIPANTS,
    Participant,
    ParticipantList,
    new_token,
    token_id,
)
from distrust.common.wire import check_name, read_message
from distrust.lab.stack.data_dir import FLEET, DataDir, write_secret, writing


class Participants:
    """The list of one data folder. Every change is written whole, or not at all."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir, self._path = data_dir, data_dir.participants_file

    def all(self) -> tuple[Participant, ...]:
        """Return the participants in the order in which they were added. Raises BadParameter for a damaged file."""
        try:
            raw = self._data_dir.read_own(self._path, MOST_PARTICIPANTS)
            return read_message(ParticipantList, raw).participants
        except FileNotFoundError:
            return ()
        except (ValidationError, BadMessage) as error:
            why = f"its {self._path.name} is no list of participants"
            raise BadParameter("data", str(self._data_dir.path), why) from error

    def enroll(self, participant: Participant) -> Participant:
        """Add a participant and return it.

        Raises BadParameter for a name or a key that is in the list, and for the name of the folder's own fleets.
        """
        check_participant(participant.name)
        self._change(lambda before: (*_without_conflict(before, participant), participant))
        return participant

    def new_token(self, participant: Participant, file: Path) -> Participant:
        """Make a token, write it to a new file for its owner only, and add it.

        participant  what the list says of it; the token gives its id.
        Raises       BadParameter for a name that is in the list, and for a file that exists.
        """
        check_participant(participant.name)
        if any(one.name == participant.name for one in self.all()):
            raise _taken("name", participant.name)
        token = new_token()
        write_secret(file, token, "out")
        return self.enroll(participant.model_copy(update={"id": token_id(token)}))

    def revoke(self, name: str) -> Participant:
        """Revoke a participant for good and return it: its name stays in the list. Raises BadParameter."""

        def revoked(before: tuple[Participant, ...]) -> tuple[Participant, ...]:
            if name not in {one.name for one in before}:
                known = ", ".join(one.name for one in before) or "none"
                raise BadParameter("name", name, f"must be the name of a participant: {known}")
            return tuple(one.model_copy(update={"revoked": True}) if one.name == name else one for one in before)

        return next(one for one in self._change(revoked) if one.name == name)

    def keep_fleet(self) -> None:
        """Make the token of this folder's own fleets, once, and have it in the list: without any limit.

        Without its file a new token takes the old one's place, so that removing the file and calling this rotates it.
        Raises BadParameter where the list has another participant of its name.
        """
        if not self._data_dir.fleet_file.exists():
            write_secret(self._data_dir.fleet_file, new_token())
        token = self._data_dir.fleet_token()
        own = Participant(name=FLEET, kind="token", id=token_id(token), own=True)
        if any(one.id == own.id and one.own for one in self.all()):
            return

        def with_own(before: tuple[Participant, ...]) -> tuple[Participant, ...]:
            others = tuple(one for one in before if not one.own)
            if any(one.name == FLEET for one in others):
                why = f"its {self._path.name} has another participant of the name {FLEET}, which is its own fleets'"
                raise BadParameter("data", str(self._data_dir.path), why)
            return (*others, own)

        self._change(with_own)

    def _change(self, change: Callable[[tuple[Participant, ...]], tuple[Participant, ...]]) -> tuple[Participant, ...]:
        with self._locked():
            changed = change(self.all())
            text = ParticipantList(participants=changed).model_dump_json(indent=2, exclude_none=True)
            if len(text.encode()) > MOST_PARTICIPANTS:
                raise BadParameter("data", str(self._path), "its list of participants is full")
            write_secret(self._path, text, replace=True)
        return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one command at a time change the list. The kernel unlocks it when the process ends."""
        lock = self._path.with_suffix(".lock")
        with writing(lock):
            handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _without_conflict(before: tuple[Participant, ...], fresh: Participant) -> tuple[Participant, ...]:
    for one in before:
        if one.name == fresh.name:
            raise _taken("name", fresh.name)
        if one.id == fresh.id:
            raise BadParameter("key", fresh.id, f"is enrolled already, as {one.name}")
    return before


def check_participant(name: str) -> None:
    """Raise BadParameter for a text that is no name, and for the name of the folder's own fleets."""
    check_name("name", name)
    if name == FLEET:
        raise BadParameter("name", name, "is the name of this folder's own fleets: choose another one")


def _taken(field: str, name: str) -> BadParameter:
    return BadParameter(field, name, "is in the list already, which keeps revoked names too: choose another one")
