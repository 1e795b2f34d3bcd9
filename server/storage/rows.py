"""Rows of the server's database as values, and the parts of an event."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from pydantic import ValidationError

from distrust.common.explain import first
from distrust.common.protocol.messages.cohort import KEEP_SECONDS, LONGEST_KEPT
from distrust.common.protocol.messages.status import CohortState
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import RunState
from distrust.server.storage.keys import RunIdentity


@dataclass(frozen=True, slots=True)
class CohortRow:
    """A cohort that was opened.

    granted  slots 0 … granted - 1 have tickets.
    taken    how many of them each caller with a limit has, by its id. Only `Store.with_taken` reads it.
    """

    cohort: str
    round: int
    clients: int
    granted: int
    state: CohortState
    lost: int | None
    taken: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrantRow:
    """Consecutive slots that one request got. `participant`: a caller with a limit, until the cohort's outcome."""

    round: int
    want: int
    cohort: str
    first: int
    count: int
    key_hashes: bytes
    participant: str | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run and its state."""

    config: RunConfig
    identity: RunIdentity
    state: RunState
    reason: str | None


@dataclass(frozen=True, slots=True)
class UnreadRun:
    """A stored run whose configuration is refused today: its JSON (or {} if it is none), and why."""

    run: str
    words: dict[str, Any]
    why: str
    state: RunState

    @property
    def keep_seconds(self) -> float:
        """Return for how long the run's batches are kept, as far as its words tell; else 0."""
        words = self.words.get("intermediary", {})
        seconds = words.get("keep_seconds", KEEP_SECONDS) if isinstance(words, dict) else None
        return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds <= LONGEST_KEPT else 0.0


class EventDetails(TypedDict, total=False):
    """Parts of a `RunEvent` besides its run and its kind."""

    round: int
    cohort: str
    arm: int | None
    survivors: int
    detail: str | None


def read_run(run: str, text: str, identity: RunIdentity, state: RunState, reason: str | None) -> RunRow | UnreadRun:
    """Return a stored run, or one whose configuration is refused today."""
    try:
        return RunRow(RunConfig.model_validate_json(text), identity, state, reason)
    except ValidationError as error:
        try:
            fields = json.loads(text)
        except ValueError:
            fields = {}
        return UnreadRun(run, fields if isinstance(fields, dict) else {}, first(error, RunConfig), state)
