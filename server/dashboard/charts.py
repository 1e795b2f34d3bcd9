"""Charts as SVG, computed from numbers on the server: axes, intervals round by round, curves.

Colours and strokes come from the style sheet, by class, so that a strict Content-Security-Policy holds and dark pages
get dark charts. All coordinates are in units of the viewBox.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup, escape

from distrust.common.protocol.run.progress import ArmView

T = TypeVar("T")

WIDTH, HEIGHT = 720, 340  # of a chart, in units of its SVG
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 12, 44  # room for half a tick's number at the right
SIGN, BESIDE = 7.2, 26  # widths of one sign of a tick's number, and of the axis' name with the gaps around it
TICKS = 5  # wanted on an axis; a few more or less come out
SAME = 1e-12  # of a value's size: ends of an axis that are no further apart count as one value
SMALLEST = 1e-280  # values below count as 0: steps between ticks would be no normal doubles

DRAWN_ROUNDS = 120
"""Rounds drawn in a chart; of more, evenly spread ones and the last."""

MOST_ARMS = 24
"""Arms drawn in a chart; of more, those with the largest estimates."""

NAMED_ARMS = 12
"""Arms of which each has its name above its last bar."""


ANCHOR = {True: "start", False: "end"}
"""End of a text that stands at its coordinates, by whether the text goes to the right."""

FAR_WIDER = 3
"""Early intervals are cut at the chart's edges where all of it would be so many times as high as the later half."""

LABEL_WIDTH, LABEL_HEIGHT = 44, 14
"""Space of an arm's name in the chart, in units of the viewBox."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from values in [low, high] to coordinates in [start, end], which may descend."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value, to a hundredth."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def nice_ticks(low: float, high: float, wanted: int = TICKS) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high]; the ends cover it, too.

    They always differ. A range that doubles cannot divide, or that is next to nothing, is widened.
    """
    if high - low <= max(SMALLEST, SAME * max(abs(low), abs(high))):
        spread = abs(low) / 2 if abs(low) > SMALLEST else 0.5
        low, high = low - spread, high + spread
    raw = (high - low) / wanted
    exponent = math.floor(math.log10(raw))
    power = 10.0**exponent
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(12, 2 - exponent)  # a range may be narrower than 1e-12, as the probabilities of large moduli are
    return [round(number * step, digits) for number in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return a tick's number: 0.25, 1,500, 2M, 1e-05."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


@dataclass(slots=True)
class Plot:
    """Axes with a grid, and shapes between them. `markup` is the SVG, with a title and a description for readers.

    x, y    names of the axes.
    xs, ys  ticks; the first and the last of each are the axis' ends.
    title   read out in place of the picture, with `description`.
    """

    title: str
    description: str
    x: str
    y: str
    xs: Sequence[float]
    ys: Sequence[float]
    x_label: Callable[[float], str] = tick_label
    shapes: list[Markup] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT

    def __post_init__(self) -> None:
        left = max(LEFT, BESIDE + SIGN * max(len(tick_label(value)) for value in self.ys))
        self.sx = Scale(self.xs[0], self.xs[-1], left, self.width - RIGHT)
        self.sy = Scale(self.ys[0], self.ys[-1], self.height - BOTTOM, TOP)

    sx: Scale = field(init=False)
    sy: Scale = field(init=False)

    def segment(self, x: float, low: float, high: float, kind: str, hint: str = "") -> None:
        """Add an upright line from y = low to y = high. `hint` is shown when the pointer rests on it."""
        at = f'x1="{x}" x2="{x}" y1="{self.sy(low)}" y2="{self.sy(high)}"'
        self.shapes.append(_element("line", kind, at, hint))

    def dot(self, x: float, y: float, kind: str, hint: str = "") -> None:
        """Add a point at the coordinate x and the value y."""
        self.shapes.append(_element("circle", kind, f'cx="{x}" cy="{self.sy(y)}" r="2.5"', hint))

    def cross(self, x: float, y: float, kind: str, hint: str = "") -> None:
        """Add a × at the coordinate x and the value y."""
        at, size = self.sy(y), 4
        path = f"M{x - size:.2f} {at - size:.2f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
        self.shapes.append(_element("path", kind, f'd="{path}"', hint))

    def curve(self, points: Iterable[tuple[float, float]], kind: str, hint: str = "") -> None:
        """Add a line through points (x, y), both values."""
        path = "L".join(f"{self.sx(x)} {self.sy(y)}" for x, y in points)
        self.shapes.append(_element("path", f"curve {kind}", f'd="M{path}"', hint))

    def area(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Add the area between points (x, y) and the lower end of the y axis."""
        bottom = self.sy(self.ys[0])
        path = "L".join(f"{self.sx(x)} {self.sy(y)}" for x, y in points)
        whole = f"M{self.sx(points[0][0])} {bottom}L{path}L{self.sx(points[-1][0])} {bottom}Z"
        self.shapes.append(_element("path", f"area {kind}", f'd="{whole}"', ""))

    def label(self, x: float, y: float, text: str, kind: str = "mark", anchor: str = "middle") -> None:
        """Add a text at coordinates."""
        where = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
        self.shapes.append(where.format(kind, x, y, anchor, text))

    def markup(self) -> Markup:
        """Return the SVG element. Its box scrolls on narrow screens, and takes the keyboard's focus for that."""
        name = f"chart-{zlib.crc32((self.title + self.description).encode()):08x}"
        head = Markup(
            '<div class="chart" role="region" tabindex="0" aria-label="{title}">'
            '<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
            '<title id="{name}-t">{title}</title><desc id="{name}-d">{description}</desc>'
        ).format(title=self.title, description=self.description, name=name, width=self.width, height=self.height)
        return head + Markup("").join([*self._grid(), *self.shapes]) + Markup("</svg></div>")

    def _grid(self) -> Iterable[Markup]:
        left, right, bottom = self.sx.start, self.width - RIGHT, self.height - BOTTOM
        for value in self.ys:
            at = self.sy(value)
            yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(left, right, at, at)
            yield _text("tick", left - 8, at + 4, tick_label(value), "end")
        for value in self.xs:
            yield _text("tick", self.sx(value), bottom + 18, self.x_label(value), "middle")
        yield Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(left, right, bottom, bottom)
        yield _text("name", (left + right) / 2, self.height - 6, self.x, "middle")
        middle = (TOP + bottom) / 2
        turned = '<text class="name" x="11" y="{0}" text-anchor="middle" transform="rotate(-90 11 {0})">{1}</text>'
        yield Markup(turned).format(middle, self.y)  # noqa: S704 - a constant; `format` escapes


@dataclass(frozen=True, slots=True)
class Bar:
    """An arm's interval after a round: lower ≤ mean ≤ upper. `kind`: chosen, active or dropped, of the arm today."""

    arm: int
    lower: float
    mean: float
    upper: float
    kind: str
    last: bool = False


def fate(arm: ArmView, chosen: int | None) -> str:
    """Return what became of an arm: chosen, active or dropped."""
    if arm.arm == chosen:
        return "chosen"
    return "active" if arm.active else "dropped"


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with a name: points (x, y) in ascending order of x. `kind`: its class in the style sheet."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


def intervals(rounds: Sequence[tuple[int, Sequence[Bar]]]) -> Markup:
    """Return the chart of intervals, round by round: an upright bar for each, a dot at the estimate.

    rounds  (number, bars) in their order; a bar with `last` gets a × if its arm was dropped after that round. There
            must be a bar. Of many rounds and arms only some are drawn: `thinned`, `shown_arms`. The wide intervals of
            early rounds are cut at the edges; their hints have the whole.
    """
    drawn = thinned(rounds)
    arms = shown_arms(drawn)
    places = {arm: place for place, arm in enumerate(sorted(arms))}
    groups = [[bar for bar in group if bar.arm in places] for _, group in drawn]
    ys = nice_ticks(*_in_view(groups))
    cut = any(bar.lower < ys[0] or bar.upper > ys[-1] for group in groups for bar in group)
    numbers = [number for number, _ in drawn]
    plot = Plot(
        title="Confidence intervals, round by round",
        description=_interval_words(drawn, arms) + (" Wider ones are cut at the edges." if cut else ""),
        x="round",
        y="mean reward; wider intervals cut" if cut else "mean reward",
        xs=[-0.5, len(drawn) - 0.5],
        ys=ys,
        x_label=lambda _place: "",
    )
    slot = plot.sx(1) - plot.sx(0) if len(drawn) > 1 else plot.sx.end - plot.sx.start
    for place, (number, group) in enumerate(drawn):
        here = [bar for bar in group if bar.arm in places]
        for bar in here:
            x = _beside(plot.sx(place), places[bar.arm], len(places), slot)
            hint = f"arm {bar.arm}, round {number}: {bar.mean:.4f} in [{bar.lower:.4f}, {bar.upper:.4f}]"
            plot.segment(x, max(bar.lower, ys[0]), min(bar.upper, ys[-1]), f"bar {bar.kind}", hint)
            if bar.last and bar.kind == "dropped":
                plot.cross(x, bar.mean, "fell", f"arm {bar.arm} was dropped after round {number}")
            else:
                plot.dot(x, bar.mean, bar.kind, hint)
    if len(places) <= NAMED_ARMS:
        ends = {bar.arm: (place, bar) for place, (_, group) in enumerate(drawn) for bar in group if bar.arm in places}
        taken: list[tuple[float, float]] = []
        for arm, (place, bar) in sorted(ends.items(), key=lambda one: one[1][1].kind != "chosen"):  # nearest its bar
            x = _beside(plot.sx(place), places[arm], len(places), slot)
            x = min(x, plot.width - LABEL_WIDTH / 2)
            above, below = plot.sy(min(bar.upper, ys[-1])) - 6, plot.sy(max(bar.lower, ys[0])) + LABEL_HEIGHT
            taken.append((x, _clear(taken, x, above, below)))
            plot.label(*taken[-1], f"arm {arm}", "arm")
    every = max(1, math.ceil(len(numbers) / 16))
    for place in range(0, len(numbers), every):
        plot.label(plot.sx(place), HEIGHT - BOTTOM + 18, str(numbers[place]), "tick")
    return plot.markup()


def _in_view(rounds: Sequence[Sequence[Bar]]) -> tuple[float, float]:
    """Return the least and the largest value shown: all of them, unless the later half of the rounds is far narrower.

    Then every estimate is in view, and every interval of that half. A first round's interval may be a hundred times as
    wide as the last one's, which would be a dot beside it.
    """
    bars = [bar for group in rounds for bar in group]
    later = [bar for group in rounds[len(rounds) // 2 :] for bar in group]
    low, high = min(bar.lower for bar in bars), max(bar.upper for bar in bars)
    means = [bar.mean for bar in bars]
    least, most = min([*means, *(bar.lower for bar in later)]), max([*means, *(bar.upper for bar in later)])
    return (least, most) if high - low > FAR_WIDER * (most - least) else (low, high)


def _clear(taken: Sequence[tuple[float, float]], x: float, above: float, below: float) -> float:
    """Return the height of a label that covers none of those placed: the lowest above a bar, else the highest below."""
    up = [above - step * LABEL_HEIGHT for step in range(int((above - TOP) // LABEL_HEIGHT) + 1)]
    down = [below + step * LABEL_HEIGHT for step in range(int((HEIGHT - BOTTOM - below) // LABEL_HEIGHT) + 1)]
    near = [beside for at, beside in taken if abs(x - at) < LABEL_WIDTH]
    return next((y for y in (*up, *down) if all(abs(y - other) >= LABEL_HEIGHT for other in near)), above)


def _beside(middle: float, place: int, places: int, slot: float) -> float:
    """Return where an arm's bar stands in the slot of a round, which is centred at `middle`."""
    return round(middle + ((place + 0.5) / places - 0.5) * slot * 0.86, 2)


def thinned(whole: Sequence[T]) -> list[T]:
    """Return what is drawn of rounds or points: all, or DRAWN_ROUNDS evenly spread ones with the first and the last."""
    if len(whole) <= DRAWN_ROUNDS:
        return list(whole)
    step = (len(whole) - 1) / (DRAWN_ROUNDS - 1)
    return [whole[round(place * step)] for place in range(DRAWN_ROUNDS)]


def shown_arms(rounds: Sequence[tuple[int, Sequence[Bar]]]) -> set[int]:
    """Return the arms that are drawn: all, or MOST_ARMS with the largest latest estimates."""
    latest = {bar.arm: bar.mean for _, group in rounds for bar in group}
    return set(sorted(latest, key=lambda arm: -latest[arm])[:MOST_ARMS])


def curves(title: str, x: str, y: str, lines: Sequence[Line], *, zero: bool = True) -> Markup:
    """Return the chart of some curves, with their names at the right ends. Each needs a point.

    zero  whether the y axis includes 0.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + ([0.0] if zero else [])
    words = "; ".join(f"{line.name} ends at {line.points[-1][1]:.4g}" for line in lines)
    plot = Plot(
        title=title,
        description=f"{y} against {x}. {words}.",
        x=x,
        y=y,
        xs=nice_ticks(0, max(xs)),
        ys=nice_ticks(min(ys), max(ys)),
    )
    ends: list[float] = []
    for line in lines:
        points = thinned(line.points)
        plot.curve(points, line.kind, line.name)
        last_x, last_y = points[-1]
        for x_value, y_value in points if len(points) < DRAWN_ROUNDS else ():
            plot.dot(plot.sx(x_value), y_value, line.kind)
        at = plot.sy(last_y)
        falls = last_y < line.points[0][1]  # then the curve comes from above: its name goes below where there is room
        ends.append(at + 20 if falls and at + 20 < plot.height - BOTTOM else at - 8)
        early = plot.sx(last_x) < plot.width / 2  # then its name goes to the right, where it covers no axis
        plot.label(plot.sx(last_x) + (6 if early else -6), _free(ends), line.name, f"mark {line.kind}", ANCHOR[early])
    return plot.markup()


def regret(curve: Sequence[tuple[int, float]]) -> Markup:
    """Return the chart of a regret curve, (pulls, regret) from the origin on."""
    return curves("Regret against pulls", "pulls", "regret", [Line("regret", "first", [(0, 0.0), *curve])])


def _free(ends: list[float]) -> float:
    """Return where the newest label goes, so that it does not cover an earlier one."""
    at = ends[-1]
    while any(abs(at - other) < 14 for other in ends[:-1]):
        at -= 14
    ends[-1] = at
    return at


def _interval_words(rounds: Sequence[tuple[int, Sequence[Bar]]], arms: set[int]) -> str:
    """Return what the picture shows, for readers who do not see it."""
    widths = [max(bar.upper - bar.lower for bar in group) for _, group in rounds if group]
    last: dict[int, Bar] = {bar.arm: bar for _, group in rounds for bar in group if bar.arm in arms}
    best = max(last.values(), key=lambda bar: bar.mean)
    narrower = all(later <= earlier for earlier, later in pairwise(widths))
    change = f"from {widths[0]:.3g} to {widths[-1]:.3g}" + (", narrower each round" if narrower else "")
    return (
        f"Intervals of {len(arms)} arms over {len(rounds)} rounds. The widest goes {change}. "
        f"Arm {best.arm} has the largest estimate, {best.mean:.4f}."
    )


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> Markup:
    where = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
    return where.format(kind, round(x, 2), round(y, 2), anchor, text)


def _element(name: str, kind: str, attributes: str, hint: str) -> Markup:
    """Return a shape. `attributes` holds numbers only."""
    inside = Markup("<title>{}</title>").format(hint) if hint else ""
    return Markup(f'<{name} class="{escape(kind)}" {attributes}>{inside}</{name}>')  # noqa: S704 - numbers and classes
