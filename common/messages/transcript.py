"""A party → its operator: the messages that it saw, as it saw them, page by page."""

from typing import Annotated, Literal

from pydantic import Field

from distrust.common.messages.base import Identifier, Message, Version


class TranscriptEntry(Message):
    """One message in one party's eyes. `view` is what that party could read; `hex` a prefix of the body."""

    number: Annotated[int, Field(ge=0, description="position in the cohort's transcript")]
    direction: Literal["in", "out"]
    peer: str  # "client 17", "server", "aggregator", "shuffler", "everyone"
    stage: str
    bytes: Annotated[int, Field(ge=0)]
    view: dict[str, str | int | float | bool | list[int] | list[str]]
    hex: str


class Transcript(Message):
    """A page of a cohort's messages. `next` is the `after` of the following page."""

    version: Version = 1
    party: Literal["server", "shuffler", "aggregator", "client"]
    cohort: Identifier
    total: int
    next: int | None
    messages: list[TranscriptEntry]
