"""The `[draw]` table of an experiment: how its rows are shown."""

from typing import Literal

from pydantic import ValidationError

from common.errors import BadParameter
from common.messages.base import Message
from common.messages.explain import first
from lab.figures.rows import number
from lab.sweep import Experiment

Scale = Literal["linear", "log"]
Value = Literal["regret", "bits", "payload_bits"]


class Drawing(Message):
    """One of two kinds of figure.

    kind   time-average: regret(t)/t over t, axes for each panel. regret: the same without the division.
           by-panel: one number a run over what tells the panels apart, on axes for all of them.
    x, y   scales of the axes.
    key    by-panel: the run file's key, dotted, whose number is a panel's place on the x axis.
    value  by-panel: the column of a row.
    slope  by-panel: the least-squares exponent of each series' means, in the legend; for two log axes.
    """

    kind: Literal["time-average", "regret", "by-panel"]
    x: Scale = "linear"
    y: Scale = "log"
    key: str = "mechanism.epsilon"
    value: Value = "regret"
    slope: bool = False


def drawing(experiment: Experiment) -> Drawing:
    """The experiment's own. Raises BadParameter for a table that is none, or where a panel has no place on the axis."""
    try:
        how = Drawing.model_validate(experiment.draw)
    except ValidationError as error:
        raise BadParameter("draw", experiment.draw, first(error, Drawing)) from error
    if how.kind == "by-panel":
        for panel in experiment.panels:
            number(experiment, panel, how.key)
    return how
