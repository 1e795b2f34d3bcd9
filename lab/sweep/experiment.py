"""Defines an experiment as data, one TOML file: what is compared, in which worlds, how often."""

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from distrust.common.wire import Message

Table = dict[str, Any]

OURS = ("run", "unsafe", "environment.seed")
"""Keys that a cell's run file gets from its place in the experiment, so that an experiment may not set them."""

DECADES = 2
"""Decades of time below the horizon that checkpoints with `spacing = "log"` cover."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `over` laid on `base`: tables key by key, other values replaced. Neither argument is changed."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def removed(table: Mapping[str, Any], keys: Iterable[str]) -> Table:
    """Return `table` without these dotted keys; a key that it does not have is ignored."""
    result = copy.deepcopy(dict(table))
    for key in keys:
        *path, last = key.split(".")
        _inner(result, path).pop(last, None)
    return result


def has(table: Mapping[str, Any], key: str) -> bool:
    """Return whether a table has a dotted key."""
    *path, last = key.split(".")
    return last in _inner(dict(table), path)


def _inner(table: Table, path: list[str]) -> Table:
    """Return the table at the end of a path, an empty one when there is none."""
    for part in path:
        below = table.get(part)
        table = below if isinstance(below, dict) else {}
    return table


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=32)]


Label = Annotated[str, Field(min_length=1, max_length=80)]
Repetitions = Annotated[int, Field(ge=1, le=10_000)]


class Overlay(Message):
    """`[[panels]]` or `[[series]]`: tables laid over the run file, and keys that are taken out at the end.

    run          a table as in a run file.
    without      dotted keys of the run file, such as "mechanism.epsilon".
    repetitions  of a series whose runs take long: at most so many. The experiment's number when absent.
    """

    label: Label
    run: Table = Field(default_factory=dict)
    without: list[str] = Field(default_factory=list)
    repetitions: Repetitions | None = None


class Pair(Message):
    """`[[pairs]]`: a table that is laid over the run file of one series in one panel, after both."""

    panel: Label
    series: Label
    run: Table


class Experiment(Message):
    """Panels × series × repetitions of one run file.

    name     of the file; seeds derive from it.
    quick    whether the file's `[quick]` is laid over it.
    source   the comparison's origin.
    claim    its statement, in our words.
    note     where it is smaller than there, and why.
    points   checkpoints of the regret curve.
    spacing  even over (0, horizon], or log over its last two decades.
    run      the run file that everything starts from, without seeds.
    pairs    numbers that depend on panel and series together, such as the ε that a budget leaves.
    draw     how it is drawn; the sweep does not look at it.
    """

    name: Name
    quick: bool = False
    title: Annotated[str, Field(min_length=1)]
    source: str
    claim: str
    note: str = ""
    repetitions: Repetitions
    points: Annotated[int, Field(ge=1, le=10_000)] = 50
    spacing: Literal["even", "log"] = "even"
    run: Table
    panels: Annotated[list[Overlay], Field(min_length=1)]
    series: Annotated[list[Overlay], Field(min_length=1)]
    pairs: list[Pair] = Field(default_factory=list)
    draw: Table = Field(default_factory=dict)

    @model_validator(mode="after")
    def _labels_tell_apart(self) -> Self:
        for what, overlays in (("panels", self.panels), ("series", self.series)):
            labels = [overlay.label for overlay in overlays]
            twice = sorted({label for label in labels if labels.count(label) > 1})
            if twice:
                raise ValueError(f"{what}: two are labelled {twice[0]!r}; labels must differ")
        return self

    @model_validator(mode="after")
    def _pairs_are_there_and_differ(self) -> Self:
        known = {(panel.label, series.label) for panel in self.panels for series in self.series}
        named = [(pair.panel, pair.series) for pair in self.pairs]
        for panel, series in named:
            if (panel, series) not in known:
                raise ValueError(f"pairs: there is no panel {panel!r} with a series {series!r}")
            if named.count((panel, series)) > 1:
                raise ValueError(f"pairs: two are of panel {panel!r} and series {series!r}")
        return self

    @model_validator(mode="after")
    def _panels_repeat_alike(self) -> Self:
        for panel in self.panels:
            if panel.repetitions is not None:
                raise ValueError(f"panels: {panel.label}: repetitions: only a series may have its own")
        return self

    @model_validator(mode="after")
    def _seeds_are_derived(self) -> Self:
        laid = (*(one.run for one in (*self.panels, *self.series)), *(pair.run for pair in self.pairs))
        for table in (self.run, *laid):
            for key in OURS:
                if has(table, key):
                    raise ValueError(f"run.{key}: is derived from the experiment's name and the cell; leave it out")
        return self

    @model_validator(mode="after")
    def _what_is_left_out_is_there(self) -> Self:
        pairs = [(panel, series) for panel in self.panels for series in self.series]
        for overlay in (*self.panels, *self.series):
            tables = [self._laid(*pair) for pair in pairs if overlay in pair]
            for key in overlay.without:
                if not any(has(table, key) for table in tables):
                    raise ValueError(f"{overlay.label}: without {key!r}: there is no such key to leave out")
        return self

    @property
    def digest(self) -> str:
        """Return the digest of everything here that a finished cell depends on: 64 hex digits.

        Titles, drawing and `repetitions` are not part of it, and the code has a digest of its own (`lab.sweep.code`).
        """
        kept = {"name", "points", "spacing", "run", "panels", "series", "pairs"}
        whole = self.model_dump(include=kept, exclude={"series": {"__all__": {"repetitions"}}})
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def all_pairs(self) -> Iterator[tuple[Overlay, Overlay]]:
        """Return (panel, series), panel by panel."""
        return ((panel, series) for panel in self.panels for series in self.series)

    def repetitions_of(self, series: Overlay) -> int:
        """Return how often a series is played in each panel."""
        return self.repetitions if series.repetitions is None else min(series.repetitions, self.repetitions)

    def places(self, horizon: int) -> NDArray[np.float64]:
        """Return the pulls at which a curve is read, shape (points,), rising to the horizon.

        Those of `spacing = "log"` are whole, so that every processor has the same.
        """
        if self.spacing == "even":
            even: NDArray[np.float64] = horizon * np.arange(1, self.points + 1) / self.points
            return even
        exponents = DECADES * (np.arange(1, self.points + 1) / self.points - 1)
        return np.maximum(1.0, np.rint(horizon * 10.0**exponents))

    def table(self, panel: Overlay, series: Overlay) -> Table:
        """Return the run file of a pair, without its name and seeds."""
        return removed(self._laid(panel, series), (*panel.without, *series.without))

    def _laid(self, panel: Overlay, series: Overlay) -> Table:
        laid = merged(merged(self.run, panel.run), series.run)
        own = (pair.run for pair in self.pairs if (pair.panel, pair.series) == (panel.label, series.label))
        return merged(laid, next(own, {}))
