"""Shares between two clients, closed with ChaCha20-Poly1305 under the pair's channel key (RFC 8439).

The key is fresh for each cohort and pair, and each direction is used once, with its own nonce.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from common.crypto.share import SHARE
from common.errors import BadMessage

PAYLOAD = 2 * SHARE
BOX = PAYLOAD + 16
"""Bytes of one box: a share of the self seed, a share of the mask key seed, the tag."""

_UP = bytes(11) + b"\x00"  # from the lower slot to the higher
_DOWN = bytes(11) + b"\x01"


def close_box(key: bytes, sender: int, receiver: int, context: bytes, payload: bytes) -> bytes:
    """Both shares (34 bytes) for one neighbour, to 50 bytes; the tag binds sender, receiver and cohort."""
    return ChaCha20Poly1305(key).encrypt(_UP if sender < receiver else _DOWN, payload, _aad(sender, receiver, context))


def open_box(key: bytes, sender: int, receiver: int, context: bytes, box: bytes) -> bytes:
    """The 34 bytes in a box. Raises BadMessage unless the sender closed it for the receiver in this cohort."""
    try:
        return ChaCha20Poly1305(key).decrypt(_UP if sender < receiver else _DOWN, box, _aad(sender, receiver, context))
    except InvalidTag as error:
        raise BadMessage(f"the box from slot {sender} to slot {receiver} does not open") from error


def _aad(sender: int, receiver: int, context: bytes) -> bytes:
    return context + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
