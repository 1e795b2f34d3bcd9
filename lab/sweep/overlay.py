"""Tables over tables, and keys taken out again: how one run file becomes many."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

Table = dict[str, Any]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """`over` laid on `base`: tables key by key, anything else replaced as a whole. Neither argument is changed."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def removed(table: Mapping[str, Any], keys: Iterable[str]) -> Table:
    """`table` less these dotted keys; those that it does not have are passed over."""
    result = copy.deepcopy(dict(table))
    for key in keys:
        *path, last = key.split(".")
        _inner(result, path).pop(last, None)
    return result


def has(table: Mapping[str, Any], key: str) -> bool:
    """Whether a dotted key is there."""
    *path, last = key.split(".")
    return last in _inner(dict(table), path)


def _inner(table: Table, path: list[str]) -> Table:
    """The table at the end of a path, an empty one when there is none."""
    for part in path:
        below = table.get(part)
        table = below if isinstance(below, dict) else {}
    return table
