"""What every key is bound to: protocol version, configuration, run, round, cohort."""

from common.messages.cohort import Cohort


def encode(*fields: bytes | str | int) -> bytes:
    """Fields as bytes, each behind its length in four bytes, so that no two lists of fields look alike.

    Integers take eight bytes.
    """
    raw = [_raw(field) for field in fields]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def context(label: str, cohort: Cohort) -> bytes:
    """The bytes that open every HKDF info, associated data and hash of one cohort.

    `label` says what for, and in which version.
    """
    return encode(label, cohort.config, cohort.run, cohort.round, cohort.cohort)


def _raw(field: bytes | str | int) -> bytes:
    if isinstance(field, int):
        return field.to_bytes(8, "big")
    return field.encode() if isinstance(field, str) else field
