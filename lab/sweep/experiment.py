"""An experiment as data: what is compared, in which worlds, how often. One TOML file."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from common.messages.base import Message
from lab.sweep.overlay import has, merged, removed

Table = dict[str, Any]

OURS = ("run", "unsafe", "environment.seed")
"""What a cell's run file gets from its place in the experiment, so that an experiment may not say it."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=32)]


class Overlay(Message):
    """`[[panels]]` or `[[series]]`: what is laid over the run file, and what is taken out at the end.

    run      a table as in a run file. without: dotted keys of the run file, such as "mechanism.epsilon".
    """

    label: Annotated[str, Field(min_length=1, max_length=80)]
    run: Table = Field(default_factory=dict)
    without: list[str] = Field(default_factory=list)


class Experiment(Message):
    """Panels × series × repetitions of one run file.

    name         of the file; seeds derive from it. quick: whether the file's `[quick]` is laid over it.
    source       where the comparison is from; claim: what is said there, in our words.
    note         where it is smaller than there, and why.
    points       checkpoints of the regret curve, evenly spaced over (0, horizon].
    run          the run file that everything starts from, without seeds.
    draw         how it is drawn; the sweep does not look at it.
    """

    name: Name
    quick: bool = False
    title: Annotated[str, Field(min_length=1)]
    source: str
    claim: str
    note: str = ""
    repetitions: Annotated[int, Field(ge=1, le=10_000)]
    points: Annotated[int, Field(ge=1, le=10_000)] = 50
    run: Table
    panels: Annotated[list[Overlay], Field(min_length=1)]
    series: Annotated[list[Overlay], Field(min_length=1)]
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
    def _seeds_are_derived(self) -> Self:
        for table in (self.run, *(overlay.run for overlay in (*self.panels, *self.series))):
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
        """Hex, 64 digits: of everything here that a finished cell depends on.

        Titles, drawing and `repetitions` are not part of it, and the code has a digest of its own (`lab.sweep.code`).
        """
        whole = self.model_dump(include={"name", "points", "run", "panels", "series"})
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def repeated(self, repetitions: int) -> Self:
        """The same with another number of repetitions, checked. Rows of the old ones stay valid."""
        return type(self).model_validate({**self.model_dump(), "repetitions": repetitions})

    def pairs(self) -> Iterator[tuple[Overlay, Overlay]]:
        """(panel, series), panel by panel."""
        return ((panel, series) for panel in self.panels for series in self.series)

    def table(self, panel: Overlay, series: Overlay) -> Table:
        """The run file of a pair, without its name and seeds."""
        return removed(self._laid(panel, series), (*panel.without, *series.without))

    def _laid(self, panel: Overlay, series: Overlay) -> Table:
        return merged(merged(self.run, panel.run), series.run)
