"""The channels: the ways in which a cohort's messages travel from its clients to the server.

The type on the wire, batches, transcripts and pages follow from `CLASSES`. To add a channel: write its class
(`distrust.common.protocol.channels.base.Channel` says what it states), and add a line here.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.assigned import AssignedRecords
from distrust.common.protocol.channels.base import Channel, ChannelTerms, Content
from distrust.common.protocol.channels.bits import LabelledBits
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.channels.sealed import Sealed
from distrust.common.wire import cut_reason

CLASSES: tuple[type[Channel], ...] = (Masking, Sealed, AssignedRecords, LabelledBits)
"""All the channels. Where several carry a cohort's messages, the last one does."""

CHANNELS: dict[str, type[Channel]] = {kind.model_fields["kind"].default: kind for kind in CLASSES}

if TYPE_CHECKING:
    AnyChannel = Channel
    AnyContent = Content
else:
    AnyChannel = Annotated[Union[CLASSES], Field(discriminator="kind")]  # noqa: UP007  `|` takes no tuple
    AnyContent = Annotated[Union[tuple(kind.CONTENT for kind in CLASSES)], Field(discriminator="kind")]  # noqa: UP007


def channel_of(terms: ChannelTerms) -> Channel:
    """Return the channel of a cohort. Raises BadParameter where none carries its mechanism's messages."""
    for kind in reversed(CLASSES):
        if kind.via == terms.via and (channel := kind.of(terms)) is not None:
            return channel
    raise BadParameter("mechanism.via", terms.via, "has no channel for its messages")


def channel_class(kind: str) -> type[Channel]:
    """Return a channel's class by its kind, which a party's transcript says. Raises BadMessage for one that is none."""
    if kind not in CHANNELS:
        raise BadMessage(f"a cohort that cannot be: its channel is {cut_reason(kind)!r}")
    return CHANNELS[kind]
