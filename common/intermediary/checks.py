"""What a cohort must be before anybody opens it."""

from common.errors import BadParameter
from common.messages.cohort import Cohort, Via


def check_cohort(cohort: Cohort, party: Via) -> None:
    """Raise BadParameter for a cohort that is not this party's, or that no party could serve."""
    if cohort.via != party:
        raise BadParameter("channel", cohort.channel.kind, f"is served by the {cohort.via}, and this is the {party}")
    if cohort.minimum > cohort.clients:
        raise BadParameter("minimum", cohort.minimum, f"must be at most clients = {cohort.clients}")
    for field in ("config", "ticket_key"):
        check_size(field, getattr(cohort, field), 32)


def check_size(field: str, raw: bytes, size: int) -> None:
    """Raise BadParameter unless a field has exactly `size` bytes."""
    if len(raw) != size:
        raise BadParameter(field, f"{len(raw)} bytes", f"must have {size} bytes")
