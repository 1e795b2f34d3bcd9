"""Participation tickets: Ed25519 over configuration, run, round, cohort and slot. S verifies them without asking us."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.messages.cohort import Cohort
from common.messages.ticket import Grant, ticket_text


def sign(key: Ed25519PrivateKey, cohort: Cohort, first: int, count: int) -> Grant:
    """Tickets for slots first … first + count - 1. Ed25519 is deterministic: a repeated request gets the same bytes."""
    texts = (
        ticket_text(cohort.config, cohort.run, cohort.round, cohort.cohort, slot)
        for slot in range(first, first + count)
    )
    return Grant(cohort=cohort.cohort, first=first, count=count, signatures=b"".join(map(key.sign, texts)))
