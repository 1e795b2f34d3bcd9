"""How a client keeps a slot that the server could claim as well: a secret of its own, committed to at its first word.

The server signs tickets, and could sign any slot's again. It cannot know what 32 bytes their holder has drawn.
"""

import hashlib

from distrust.common.crypto.context import context, encode
from distrust.common.messages.cohort import Cohort

SECRET = 32
"""Bytes of a client's secret, from the operating system."""

CLAIM = 32
"""Bytes of the commitment to it."""


def claim(cohort: Cohort, slot: int, secret: bytes) -> bytes:
    """The commitment to a slot's secret: SHA-256, bound to configuration, run, round, cohort and slot."""
    return hashlib.sha256(context("distrust claim v1", cohort) + encode(slot, secret)).digest()
