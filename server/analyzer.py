"""A: a batch to an estimate. Whatever does not add up is refused whole; nothing of a bad batch is released."""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.errors import BadMessage, TooSmall
from common.mechanisms import Mechanism
from common.messages.batch import Batch, ModularSum, PermutedBits, Records
from common.messages.cohort import Channel, Cohort, LabelledBits, Masking, Sealed
from common.modular import add, unpack
from common.randomness import Stream

Opened = tuple[bytes, bytes]
"""A record in clear: report id, payload."""

OpenRecord = Callable[[bytes], Opened]
"""A sealed record to its report id and payload; raises BadMessage."""

REPORT_ID = 16  # bytes
HPKE_OVERHEAD = 48  # bytes: encapsulated X25519 key, ChaCha20-Poly1305 tag


def analyze(
    mechanism: Mechanism, cohort: Cohort, batch: Batch, stream: Stream, open_record: OpenRecord
) -> tuple[NDArray[np.float64], int]:
    """The estimate of the survivors' true sum, shape (dimension,), in data units, and the survivors' count.

    stream  noise of central mechanisms is drawn here, so the caller commits the answer and never asks twice.
    Raises  BadMessage for a batch that does not add up, TooSmall below the cohort's minimum.
    """
    if batch.cohort != cohort.cohort:
        raise BadMessage(f"a batch of cohort {batch.cohort}, not of {cohort.cohort}")
    if batch.survivors < cohort.minimum:
        raise TooSmall(batch.survivors, cohort.minimum)
    if batch.survivors > cohort.clients:
        raise BadMessage(f"survivors = {batch.survivors}: the cohort has {cohort.clients} clients")
    total = _total(cohort.channel, batch, open_record)
    return mechanism.estimate(total % np.uint64(mechanism.modulus), batch.survivors, stream), batch.survivors
