"""Describes what the shuffler can read in a stored message: sizes and ids of sealed reports, counts of bits."""

import numpy as np

from distrust.common.crypto.seal import REPORT_ID, sealed_size
from distrust.common.intermediary.store import BATCH, DEPARTED, SELF
from distrust.common.messages.batch import BatchAnswer, GroupedRecords, PermutedBits, Records
from distrust.common.messages.cohort import Cohort, Dealt, LabelledBits, SealedRecords
from distrust.common.messages.status import TranscriptEntry
from distrust.shuffler.assignment import CLAIMED
from distrust.shuffler.permutation import count_ones

_HEX_BYTES = 64
_MOST_LABELS = 64

View = dict[str, str | int | float | bool | list[int] | list[str]]


def shuffler_entry(cohort: Cohort, stage: str, slot: int, body: bytes, play: int | None = None) -> TranscriptEntry:
    """Describe one stored message as the shuffler can read it. The caller fills in `number`, its position.

    play  the position in the dealt order that the shuffler told this slot.
    """
    if slot == SELF:
        return _batch(cohort, stage, body) if stage == BATCH else _order(cohort, stage, body)
    return TranscriptEntry(
        number=0,
        direction="in",
        peer=f"client {slot}",
        stage=stage,
        bytes=len(body),
        view=_action(cohort, play) | ({} if stage in {CLAIMED, DEPARTED} else _report(cohort, body)),
        hex=body[:_HEX_BYTES].hex(),
    )


def _order(cohort: Cohort, stage: str, body: bytes) -> TranscriptEntry:
    """Describe the dealt order by its actions and times; each client's own action stands beside its report."""
    assert isinstance(cohort.channel, Dealt)
    deal = cohort.channel.deal
    view: View = {"actions": deal.actions[:_MOST_LABELS], "times": deal.times[:_MOST_LABELS]}
    return TranscriptEntry(
        number=0, direction="out", peer="each client", stage=stage, bytes=len(body), view=view, hex=""
    )


def _action(cohort: Cohort, play: int | None) -> View:
    if play is None or not isinstance(cohort.channel, Dealt):
        return {}
    return {"action": cohort.channel.deal.actions[cohort.channel.deal.place(play)]}


def _report(cohort: Cohort, body: bytes) -> View:
    if isinstance(cohort.channel, SealedRecords):
        return {"report_id": body[:REPORT_ID].hex(), "sealed_bytes": sealed_size(cohort.channel.size)}
    assert isinstance(cohort.channel, LabelledBits)
    _, ones = count_ones([body], cohort.channel.labels, cohort.channel.width)
    return {"labels": cohort.channel.labels, "width": cohort.channel.width, "ones": ones[:_MOST_LABELS].tolist()}


def _batch(cohort: Cohort, stage: str, answer: bytes) -> TranscriptEntry:
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None  # only a released answer is stored
    view: View = {"kind": batch.content.kind, "survivors": batch.survivors}
    match batch.content, cohort.channel:
        case Records(checksum=checksum, count=count, body=body), _:
            view |= {"record_bytes": len(body) // count, "checksum": checksum.hex()}
        case GroupedRecords(counts=counts, checksum=checksum, body=body), _:
            view |= {"by_action": counts[:_MOST_LABELS], "record_bytes": len(body) // batch.survivors}
            view |= {"checksum": checksum.hex()}
        case PermutedBits(body=body), LabelledBits(labels=labels):
            rows = np.frombuffer(body, dtype=np.uint8).reshape(labels, -1)[:_MOST_LABELS]
            view |= {"labels": labels, "ones": np.bitwise_count(rows).sum(axis=1, dtype=np.int64).tolist()}
    raw = batch.content.body
    return TranscriptEntry(
        number=0, direction="out", peer="server", stage=stage, bytes=len(raw), view=view, hex=raw[:_HEX_BYTES].hex()
    )
