"""What every elimination shares, of arms or of actions: who is still in the race, and what is known of each."""

from abc import ABC, abstractmethod

from server.policies.base import Ask, Interval


class Race(ABC):
    """`arms` start, K ≥ 1; `tell` of a policy keeps `_active`, `_latest` and `_chosen`."""

    def __init__(self, arms: int) -> None:
        self._active = tuple(range(arms))
        self._latest: dict[int, Interval] = {}
        self._chosen: int | None = None

    @property
    def active(self) -> tuple[int, ...]:
        return self._active

    @property
    def intervals(self) -> tuple[Interval, ...]:
        return tuple(self._latest[arm] for arm in sorted(self._latest))

    @property
    def formed(self) -> tuple[Interval, ...]:
        last = max((interval.batch for interval in self._latest.values()), default=0)
        return tuple(interval for interval in self.intervals if interval.batch == last)

    @property
    def chosen(self) -> int | None:
        return self._chosen

    def ask(self, left: int) -> Ask | None:
        if not self.going_on:
            return None
        ask = self._next()
        return ask if ask.size <= left else None

    @property
    def going_on(self) -> bool:
        """Whether there is another batch."""
        return True

    @abstractmethod
    def _next(self) -> Ask:
        """The batch to come, whether the horizon has room for it or not."""
