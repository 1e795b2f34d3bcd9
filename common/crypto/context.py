"""What every key is bound to: protocol version, configuration, run, round, and the whole cohort with its terms."""

from distrust.common.messages.cohort import Cohort

_KEPT = 256  # digests in memory
_digests: dict[int, tuple[Cohort, bytes]] = {}


def encode(*fields: bytes | str | int) -> bytes:
    """Fields as bytes, each behind its length in four bytes, so that no two lists of fields look alike.

    Integers take eight bytes.
    """
    raw = [_raw(field) for field in fields]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def context(label: str, cohort: Cohort) -> bytes:
    """Return the bytes that open every HKDF info, HPKE info, associated data and hash of one cohort.

    label   the purpose and its version.

    The digest of the cohort covers its terms, so two clients that were told different rounds agree on no key, and
    neither opens what the other sealed.
    """
    return encode(label, cohort.config, cohort.run, cohort.round, cohort.cohort, cohort_digest(cohort))


def cohort_digest(cohort: Cohort) -> bytes:
    """Return `cohort.digest()`, 32 bytes, computed once for each cohort object: sealing asks for it at every record."""
    found = _digests.get(id(cohort))
    if found is not None and found[0] is cohort:  # the entry keeps its cohort alive, so the id is not used again
        return found[1]
    if len(_digests) >= _KEPT:
        _digests.clear()
    digest = cohort.digest()
    _digests[id(cohort)] = cohort, digest
    return digest


def _raw(field: bytes | str | int) -> bytes:
    if isinstance(field, int):
        return field.to_bytes(8, "big")
    return field.encode() if isinstance(field, str) else field
