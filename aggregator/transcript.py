"""Describes what the aggregator can read in a stored message: public keys, sizes, masked values, the sum modulo m."""

from typing import Literal

from distrust.common.crypto.graph import KEYS
from distrust.common.crypto.keys import BOX
from distrust.common.crypto.share import MISSING, SHARE
from distrust.common.intermediary.store import BATCH, SELF
from distrust.common.messages.batch import BatchAnswer, ModularSum
from distrust.common.messages.cohort import Masking
from distrust.common.messages.status import StageView, TranscriptEntry
from distrust.common.modular import unpack

_HEX_BYTES = 64
_MOST_VALUES = 16

View = dict[str, str | int | float | bool | list[int] | list[str]]


def aggregator_entry(channel: Masking, stage: str, slot: int, body: bytes) -> TranscriptEntry:
    """Describe one stored message as the aggregator can read it. The caller fills in `number`, its position."""
    if slot != SELF:
        return _entry("in", f"client {slot}", stage, body, _message(channel, stage, body))
    if stage == BATCH:
        return _batch(channel, body)
    view = StageView.model_validate_json(body)
    facts: View = {"members": sum(byte.bit_count() for byte in view.members)}
    facts |= {name: raw.hex() for name, raw in (("challenge", view.challenge), ("statement", view.statement)) if raw}
    sent = view.members + (view.roster or b"") + (view.challenge or b"") + (view.statement or b"")
    return _entry("out", "everyone", stage, sent, facts)


def _message(channel: Masking, stage: str, body: bytes) -> View:
    match stage:
        case "keys":
            return {"mask_key": body[: KEYS // 2].hex(), "channel_key": body[KEYS // 2 :].hex()}
        case "shares":
            return {"commitment": body[:32].hex(), "boxes": (len(body) - 32) // BOX}
        case "confirm":
            return {"coefficients": channel.threshold, "shares": len(body) // SHARE - channel.threshold}
        case "masked":
            return {"modulus": channel.modulus, "masked": _values(channel, body)}
        case "unmask":
            shares = [body[i : i + SHARE] for i in range(0, len(body), SHARE)]
            return {"shares": len(shares), "missing": shares.count(MISSING)}
        case _:
            return {}  # a departure holds nothing else


def _batch(channel: Masking, answer: bytes) -> TranscriptEntry:
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None  # only a released answer is stored
    assert isinstance(batch.content, ModularSum)
    body = batch.content.body
    facts: View = {"survivors": batch.survivors, "modulus": channel.modulus, "sum": _values(channel, body)}
    facts |= {"liars": batch.liars, "disputes": batch.disputes}
    return _entry("out", "server", BATCH, body, facts)


def _values(channel: Masking, body: bytes) -> list[int]:
    return [int(value) for value in unpack(body, channel.modulus, channel.dimension)[:_MOST_VALUES]]


def _entry(direction: Literal["in", "out"], peer: str, stage: str, body: bytes, view: View) -> TranscriptEntry:
    shown = body[:_HEX_BYTES].hex()
    return TranscriptEntry(number=0, direction=direction, peer=peer, stage=stage, bytes=len(body), view=view, hex=shown)
