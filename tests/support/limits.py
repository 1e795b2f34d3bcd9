"""The limits of the clients in tests, whose cohorts are smaller than clients without limits of their own accept."""

from typing import Any

from distrust.client.checks.requirements import MAX_DELTA, PrivacyRequirements


def lenient(**changes: Any) -> PrivacyRequirements:
    """Return limits that allow cohorts of any size and δ up to a hundredth, with these changes."""
    return PrivacyRequirements(**{"min_survivors": 1, "max_delta": MAX_DELTA, **changes})
