"""A small memory for what is expensive to compute and can always be computed again from the database."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """The last `places` values, by cohort. Thread-safe; a value is made by one thread while the others wait."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._values: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: str, make: Callable[[], V]) -> V:
        """The value of a key, made when it is not here."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                while len(self._values) > self._places:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]

    def drop(self, key: str) -> None:
        """Forget a key's value."""
        with self._lock:
            self._values.pop(key, None)
