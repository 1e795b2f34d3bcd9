"""Counts the clients, bytes and seconds of one fleet.

A fleet writes its counts as JSON when it ends. The lab adds up the files of all fleets.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_REASONS = 50
"""Different reasons that a report lists: each may name a slot."""


class FleetStats:
    """Counts of one fleet process.

    clients        joined (held tickets), served (the message with their reward was accepted), departed (simulated),
                   refused (by the intermediary, or by themselves), robbed (another party used their ticket, or the
                   shuffler did not deliver the record that it took), late (their stage was over), aborted (their
                   cohort ended early). Clients whose record was not delivered are among the served, too.
    payload_bytes  bodies of the messages that carry a randomized reward: masked vectors and reports.
    message_bytes  bodies by stage, before they are wrapped in JSON.
    seconds        CPU-side work by stage: keys, masks, noise, sealing.
    reasons        why clients refused or were refused, as far as there are `MOST_REASONS`, with the clients of each.
    """

    def __init__(self) -> None:
        self.clients: Counter[str] = Counter()
        self.message_bytes: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.reasons: Counter[str] = Counter()
        self._started = time.monotonic()

    @property
    def payload_bytes(self) -> int:
        return self.message_bytes["masked"] + self.message_bytes["report"]

    def refuse(self, clients: int, why: str, as_: str = "refused") -> None:
        """Count clients that take no further part, and why."""
        self.clients[as_] += clients
        if why in self.reasons or len(self.reasons) < MOST_REASONS:
            self.reasons[why] += clients

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[stage]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def report(self, **more: Any) -> dict[str, Any]:
        """Return everything counted so far, with the caller's own entries."""
        names = ("joined", "served", "departed", "refused", "robbed", "late", "aborted")
        return {
            **more,
            "clients": {name: self.clients[name] for name in names},
            "payload_bytes": self.payload_bytes,
            "message_bytes": dict(self.message_bytes),
            "stage_seconds": {stage: round(spent, 6) for stage, spent in self.seconds.items()},
            "reasons": dict(self.reasons),
            "seconds": round(time.monotonic() - self._started, 6),
        }


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write the report as one JSON object. A reader sees the old file or the whole new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
