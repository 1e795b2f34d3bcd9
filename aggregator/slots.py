"""Slots as a query names them: `0-99,120`."""

import re

from common.errors import BadParameter

_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
_MOST = 100_000  # slots that one request may ask for


def parse_slots(text: str) -> list[int]:
    """The slots of a comma-separated list of numbers and ranges, ends included, each once. Raises BadParameter."""
    slots: list[int] = []
    for part in filter(None, text.split(",")):
        found = _PART.fullmatch(part)
        if found is None:
            raise BadParameter("slots", part[:40], "must be numbers and ranges such as 0-99,120")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or len(slots) + last - first >= _MOST:
            raise BadParameter("slots", part, f"must ascend, {_MOST} slots at most")
        slots.extend(range(first, last + 1))
    return list(dict.fromkeys(slots))
