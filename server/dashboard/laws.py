"""Draws laws of numbers as SVG: what a party sees with either reward, and the noise of a mechanism."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from distrust.common.dp.calculator.flip import Bins, FlipView, binned
from distrust.common.dp.noise.law import Pmf
from distrust.server.dashboard.charts import Plot, nice_ticks, tick_label

FLIPPED = (("first", "lowest reward"), ("second", "highest reward"))
"""Classes in the style sheet, and names, of the two laws of a flipped reward."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Laws to draw over one axis.

    step, center  an integer k is drawn at (k - center) · step.
    x             the axis' name.
    names         a class and a name for each law.
    """

    title: str
    laws: Sequence[Pmf]
    names: Sequence[tuple[str, str]]
    x: str
    step: float = 1.0
    center: float = 0.0


def law_chart(drawn: Drawn) -> Markup:
    """Return the chart of laws: stairs, a step for each integer, or for equal intervals where there are too many."""
    bins = binned(drawn.laws)
    means = [float(law.masses @ law.support) for law in drawn.laws]
    words = [
        f"{name}: mean {tick_label((mean - drawn.center) * drawn.step)}, most likely around "
        f"{tick_label((law.first + int(np.argmax(law.logs)) - drawn.center) * drawn.step)}"
        for (_, name), mean, law in zip(drawn.names, means, drawn.laws, strict=True)
    ]
    outlines = stairs(drawn, bins)
    xs = nice_ticks(outlines[0][0][0], outlines[0][-1][0])
    unit = "probability" if bins.width == 1 else f"probability of {bins.width:,} values"
    return _plot(drawn, outlines, xs, unit, "; ".join(words) + ".")


def uniform_chart(title: str, modulus: int) -> Markup:
    """Return the chart of a number that is uniform in 0 … `modulus` - 1 with either reward: two laws, one picture."""
    outline = [(-0.5, 1 / modulus), (modulus - 0.5, 1 / modulus)]
    words = f"With either reward each of the {modulus:,} numbers has the probability 1/{modulus:,}."
    xs = nice_ticks(0, modulus - 1)
    return _plot(Drawn(title, (), FLIPPED, "masked number"), [outline, outline], xs, "probability", words)


def flip_chart(view: FlipView, title: str) -> Markup | None:
    """Return the picture of what a party sees with the least and with the largest reward; None without its laws."""
    if view.laws is None:
        return None
    x = "number in the message" if view.step is None else "noisy sum less the other clients' rewards"
    return law_chart(Drawn(title, view.laws, FLIPPED, x, view.step or 1.0, view.center))


def stairs(drawn: Drawn, bins: Bins) -> list[list[tuple[float, float]]]:
    """Return each law's outline as points (x, probability): two for each interval, at its ends."""
    ends = [
        (bins.first + place * bins.width - 0.5 - drawn.center) * drawn.step for place in range(bins.masses[0].size + 1)
    ]
    return [
        [(end, mass) for place, mass in enumerate(masses.tolist()) for end in ends[place : place + 2]]
        for masses in bins.masses
    ]


def _plot(
    drawn: Drawn, outlines: Sequence[Sequence[tuple[float, float]]], xs: Sequence[float], unit: str, words: str
) -> Markup:
    plot = Plot(
        title=drawn.title,
        description=words,
        x=drawn.x,
        y=unit,
        xs=xs,
        ys=nice_ticks(0.0, max(mass for outline in outlines for _, mass in outline)),
        width=440,
        height=230,
    )
    for (kind, name), outline in zip(drawn.names, outlines, strict=True):
        plot.area(outline, kind)
        plot.curve(outline, kind, name)
    return plot.markup()
