"""Participation tickets, verified offline: the server signed this slot of this cohort of this configuration."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from common.messages.cohort import Cohort
from common.messages.ticket import ticket_text

SIZE = 64  # bytes of an Ed25519 signature


class TicketBooth:
    """Verifies tickets of one cohort; its key is read once."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._key = Ed25519PublicKey.from_public_bytes(cohort.ticket_key)

    def admits(self, slot: int, ticket: bytes) -> bool:
        """Whether the ticket is this slot's. 0.1 ms."""
        cohort = self._cohort
        text = ticket_text(cohort.config, cohort.run, cohort.round, cohort.cohort, slot)
        try:
            self._key.verify(ticket, text)
        except InvalidSignature:
            return False
        return True
