"""Shares between two clients, closed with ChaCha20-Poly1305 under the pair's channel key (RFC 8439).

The key is fresh for each cohort and pair, and each direction is used once, with its own nonce.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from distrust.common.crypto.share import SHARE
from distrust.common.errors import BadMessage

PAYLOAD = 3 * SHARE
BOX = PAYLOAD + 16
"""Bytes of one box: shares of the self seed, of the mask key seed and of the blinding polynomial, the tag."""

_UP = bytes(11) + b"\x00"  # from the lower slot to the higher
_DOWN = bytes(11) + b"\x01"


def close_box(key: bytes, sender: int, receiver: int, context: bytes, payload: bytes) -> bytes:
    """Return three shares (51 bytes) for one neighbour, closed: 67 bytes. The tag binds sender, receiver, cohort."""
    return ChaCha20Poly1305(key).encrypt(_UP if sender < receiver else _DOWN, payload, _aad(sender, receiver, context))


def open_box(key: bytes, sender: int, receiver: int, context: bytes, box: bytes) -> bytes:
    """Return the 51 bytes in a box. Raises BadMessage unless the sender closed it for the receiver in this cohort."""
    try:
        return ChaCha20Poly1305(key).decrypt(_UP if sender < receiver else _DOWN, box, _aad(sender, receiver, context))
    except InvalidTag as error:
        raise BadMessage(f"the box from slot {sender} to slot {receiver} does not open") from error


def _aad(sender: int, receiver: int, context: bytes) -> bytes:
    return context + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
