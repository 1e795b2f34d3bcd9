"""A clock that stands still until a test moves it."""


class ManualClock:
    """A `Clock` of the intermediaries (`deadlines.py`) that only `advance` moves. `time`: seconds since the epoch."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
