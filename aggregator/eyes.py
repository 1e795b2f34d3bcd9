"""What an aggregator can read of what it sees: public keys, sizes, masked values, the sum modulo m."""

from common.crypto.box import BOX
from common.crypto.graph import KEYS
from common.crypto.share import SHARE
from common.intermediary.store import BATCH, OURSELVES
from common.messages.batch import BatchAnswer, ModularSum
from common.messages.cohort import Masking
from common.messages.stage import StageView
from common.messages.transcript import Seen
from common.modular import unpack

_HEX_BYTES = 64
_MOST_VALUES = 16

View = dict[str, str | int | float | bool | list[int] | list[str]]


def see(channel: Masking, stage: str, slot: int, body: bytes) -> Seen:
    """One stored message in the aggregator's eyes. `number` is its position in the transcript: the caller knows it."""
    if slot != OURSELVES:
        return _seen("in", f"client {slot}", stage, body, _message(channel, stage, body))
    if stage == BATCH:
        return _batch(channel, body)
    view = StageView.model_validate_json(body)
    facts: View = {"members": sum(byte.bit_count() for byte in view.members)}
    return _seen("out", "everyone", stage, view.members + (view.roster or b""), facts)


def _message(channel: Masking, stage: str, body: bytes) -> View:
    match stage:
        case "keys":
            return {"mask_key": body[: KEYS // 2].hex(), "channel_key": body[KEYS // 2 :].hex()}
        case "shares":
            return {"commitment": body[:32].hex(), "boxes": (len(body) - 32) // BOX}
        case "masked":
            return {"modulus": channel.modulus, "masked": _values(channel, body)}
        case "unmask":
            return {"shares": len(body) // SHARE}
        case _:
            return {}  # a client that leaves says nothing else


def _batch(channel: Masking, answer: bytes) -> Seen:
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None  # only a released answer is stored
    assert isinstance(batch.content, ModularSum)
    body = batch.content.body
    facts: View = {"survivors": batch.survivors, "modulus": channel.modulus, "sum": _values(channel, body)}
    return _seen("out", "server", BATCH, body, facts)


def _values(channel: Masking, body: bytes) -> list[int]:
    return [int(value) for value in unpack(body, channel.modulus, channel.dimension)[:_MOST_VALUES]]


def _seen(direction: str, peer: str, stage: str, body: bytes, view: View) -> Seen:
    fields = {"direction": direction, "peer": peer, "stage": stage, "bytes": len(body), "view": view}
    return Seen.model_validate({**fields, "number": 0, "hex": body[:_HEX_BYTES].hex()})
