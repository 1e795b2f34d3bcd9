"""The `[draw]` table of an experiment: how its rows are shown."""

from typing import Literal

from pydantic import ValidationError

from distrust.common.errors import BadParameter
from distrust.common.messages.base import Message
from distrust.common.messages.explain import first
from distrust.lab.figures.rows import Spread, number
from distrust.lab.sweep.experiment import Experiment

Scale = Literal["linear", "log"]
Value = Literal["regret", "bits", "payload_bits"]


class Drawing(Message):
    """What a figure shows, and on which axes.

    kind    time-average: regret(t)/t over t, axes for each panel. regret: the same without the division.
            finals: the regret at T alone, axes for each panel, a column for each algorithm.
            by-panel: one number a run over what tells the panels apart, on axes for all of them.
    x, y    scales of the axes.
    unit    what t and T count: pulls of an arm, or rounds.
    spread  of bands and bars: the standard deviation of one repetition, or the standard error of the mean.
    split   over time: a row of axes for each variant of the series, so that few lines share one pair of axes.
    finals  over time: a last row of axes with the regret at T, each series in a column of its own.
    key     by-panel: the run file's key, dotted, whose number is a panel's place on the x axis.
    value   by-panel: the column of a row, or several: axes for each. The bits of one report have a linear y axis.
    slope   by-panel: the least-squares exponents of each series' means, in the legend; for two log axes.
    """

    kind: Literal["time-average", "regret", "finals", "by-panel"]
    x: Scale = "linear"
    y: Scale = "log"
    unit: Literal["pulls", "rounds"] = "pulls"
    spread: Spread = "deviation"
    split: bool = False
    finals: bool = False
    key: str = "mechanism.epsilon"
    value: Value | list[Value] = "regret"
    slope: bool = False

    @property
    def values(self) -> list[Value]:
        """The columns of a by-panel figure, in the order of its axes."""
        return self.value if isinstance(self.value, list) else [self.value]


def drawing(experiment: Experiment) -> Drawing:
    """Return the experiment's own.

    Raises BadParameter for a table that is none, no value, or a panel that has no place on the axis.
    """
    try:
        how = Drawing.model_validate(experiment.draw)
    except ValidationError as error:
        raise BadParameter("draw", experiment.draw, first(error, Drawing)) from error
    if not how.values or len(set(how.values)) < len(how.values):
        raise BadParameter("draw.value", how.value, "must be one of the columns, or a list of different ones")
    if how.kind == "by-panel":
        for panel in experiment.panels:
            number(experiment, panel, how.key)
    return how
