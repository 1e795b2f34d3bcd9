"""Closes what one receiver alone opens: records for the server, through the shuffler, and boxes between two clients.

Records are sealed by HPKE (RFC 9180) with X25519, HKDF-SHA256 and ChaCha20-Poly1305 (RFC 8439), boxes by the last one.
The info binds run, round and cohort, and the action where the shuffler assigns actions. A record that is
moved to another cohort or action does not open.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.sealed import REPORT_ID, SealedRecords, sealed_size
from distrust.common.protocol.crypto.context import context, encode
from distrust.common.protocol.crypto.keys import load_public
from distrust.common.protocol.crypto.share import SHARE_SIZE
from distrust.common.protocol.messages.cohort import Cohort

PAYLOAD = 3 * SHARE_SIZE  # bytes of the three shares in a box
BOX = PAYLOAD + 16
"""Bytes of one box: shares of the self seed, of the mask key seed and of the blinding polynomial, the tag."""

# Nonces of boxes. A channel key is fresh for each cohort and pair, and each direction is used once.
_UP = bytes(11) + b"\x00"  # from the lower slot to the higher
_DOWN = bytes(11) + b"\x01"

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def seal_info(cohort: Cohort, place: int | None = None) -> bytes:
    """Return the HPKE info of a sealed record. `place` is that of its action in the list that the shuffler assigns."""
    info = context("distrust seal v3", cohort)
    return info if place is None else info + encode("action", place)


def seal(public_key: bytes, cohort: Cohort, report_id: bytes, payload: bytes, place: int | None = None) -> bytes:
    """Return a record that only the holder of the server's private key can open: `sealed_size(len(payload))` bytes.

    `place` is for assigned actions; it cannot be read off the record. Raises BadParameter unless the report id has
    16 bytes and the payload the cohort's size.
    """
    size = SealedRecords.needed(cohort.channel).size
    if len(report_id) != REPORT_ID:
        raise BadParameter("report_id", f"{len(report_id)} bytes", f"must have {REPORT_ID} bytes")
    if len(payload) != size:
        raise BadParameter("payload", f"{len(payload)} bytes", f"must have the cohort's {size} bytes")
    return _SUITE.encrypt(report_id + payload, load_public(public_key), seal_info(cohort, place))


def open_record(
    private_key: X25519PrivateKey, cohort: Cohort, record: bytes, place: int | None = None
) -> tuple[bytes, bytes]:
    """Return (report id, payload) of a sealed record. Raises BadMessage for another size, key, cohort or place."""
    size = sealed_size(SealedRecords.needed(cohort.channel).size)
    if len(record) != size:
        raise BadMessage(f"a sealed record has {len(record)} bytes, and must have {size}")
    try:
        clear = _SUITE.decrypt(record, private_key, seal_info(cohort, place))
    except (InvalidTag, ValueError) as error:
        raise BadMessage("a sealed record does not open: another key, another cohort, or changed on its way") from error
    return clear[:REPORT_ID], clear[REPORT_ID:]


def close_box(key: bytes | bytearray, sender: int, receiver: int, info: bytes, payload: bytes) -> bytes:
    """Return three shares (51 bytes) for one neighbour, encrypted: 67 bytes. The tag binds sender, receiver, cohort.

    info   `Binding.box`.
    """
    return ChaCha20Poly1305(key).encrypt(_UP if sender < receiver else _DOWN, payload, _aad(sender, receiver, info))


def open_box(key: bytes | bytearray, sender: int, receiver: int, info: bytes, box: bytes) -> bytearray:
    """Return the 51 bytes in a box. Raises BadMessage unless the sender made it for the receiver in this cohort."""
    shares, nonce = bytearray(PAYLOAD), _UP if sender < receiver else _DOWN
    try:
        ChaCha20Poly1305(key).decrypt_into(nonce, box, _aad(sender, receiver, info), shares)
    except (InvalidTag, ValueError) as error:  # a ValueError for another size
        raise BadMessage(f"the box from slot {sender} to slot {receiver} does not open") from error
    return shares


def _aad(sender: int, receiver: int, info: bytes) -> bytes:
    return info + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
