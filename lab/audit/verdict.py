"""Computes a lower bound of a mechanism's ε from the outcomes of two worlds, and whether it breaks the claim.

An outcome is a number. Four families of events are looked at: at most c, at least c, exactly one value, and the values
that one world prefers most (a likelihood-ratio test on the histogram). Each is tried in both directions: eight events.
Half of the trials choose the event of each family, the other half counts it, so that the choice costs nothing. Each of
the eight gets an eighth of the false-alarm rate (union bound).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.errors import BadParameter
from distrust.common.extras import stats
from distrust.common.notebook import Card, NamedRows, Shown
from distrust.common.wire import Message, Norm
from distrust.lab.audit.observation import evidence_names
from distrust.lab.audit.secret import Hidden
from distrust.lab.audit.setting import Observable, Setting, Transport

Counts = NDArray[np.int64]
Outcomes = NDArray[np.float64]

ALARM = 1e-3
"""One minus the confidence of 99.9 %."""

FEWEST, MOST = 50, 100_000_000  # trials that a caller may ask for

CELLS = 2048
"""Finest histogram. Outcomes with more values than that are cut at the quantiles of the training half."""

FAMILIES = ("at most", "at least", "exactly", "likelier")
EVENTS = 2 * len(FAMILIES)


def at_least(hits: Counts, trials: int, alarm: float) -> NDArray[np.float64]:
    """Return Clopper–Pearson's lower end, entry by entry: P(the true probability lies below it) ≤ alarm."""
    low = stats.beta.ppf(alarm, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits > 0, low, 0.0)


def at_most(hits: Counts, trials: int, alarm: float) -> NDArray[np.float64]:
    """Return Clopper–Pearson's upper end, entry by entry: P(the true probability lies above it) ≤ alarm."""
    high = stats.beta.isf(alarm, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits < trials, high, 1.0)


def epsilon_at_least(likely: Counts, rare: Counts, trials: int, delta: float, alarm: float) -> NDArray[np.float64]:
    """Return ln((p₀ - δ) / p₁) with p₀ at its lower end and p₁ at its upper end; at least 0.

    The mechanism's ε is above it with probability at least 1 - alarm.

    likely, rare  hits of one event in `trials` runs of either world.
    """
    # (ε, δ)-DP means p₀ ≤ e^ε p₁ + δ for every event. Each end is wrong with probability at most alarm / 2.
    surplus = at_least(likely, trials, alarm / 2) - delta
    ceiling = at_most(rare, trials, alarm / 2)
    with np.errstate(divide="ignore"):
        epsilons = np.log(np.maximum(surplus, 0.0)) - np.log(ceiling)
    return np.asarray(np.maximum(epsilons, 0.0), dtype=np.float64)


def largest_bound(trials: int, delta: float, alarm: float) -> float:
    """Return the largest bound of so many trials: an event in all runs of one world, in none of the other."""
    all_, none = np.array([trials]), np.array([0])
    return float(epsilon_at_least(all_, none, trials, delta, alarm)[0])


def fewest_trials(delta: float, alarm: float) -> float:
    """Return the number of trials from which on `largest_bound` is above 0; infinity where δ = 1."""
    # The lower end of all hits is p = (alarm/2)^(1/trials), and the upper end of none is 1 - p: p - δ > 1 - p.
    return math.inf if delta >= 1 else math.floor(math.log(alarm / 2) / math.log((1 + delta) / 2)) + 1


@dataclass(frozen=True, slots=True)
class CountedEvent:
    """A set of cells of the histogram. likely: the world (0 or 1) in which it should be the more frequent one."""

    family: str
    likely: int
    edges: Outcomes
    inside: NDArray[np.bool_]

    def hits(self, outcomes: Outcomes) -> int:
        """Return how many of the outcomes lie in it."""
        return int(self.inside[cell(self.edges, outcomes)].sum())

    def describe(self) -> str:
        """Return its range, for people."""
        chosen = np.flatnonzero(self.inside)
        first, last = self.edges[chosen[0]], self.edges[chosen[-1]]
        return f"{self.family}: {chosen.size} of {self.inside.size} cells from {first:.6g} to {last:.6g}"


def cell(edges: Outcomes, outcomes: Outcomes) -> NDArray[np.int64]:
    """Return the cell of each outcome: the last edge at or below it; outcomes below all edges are in the first."""
    return np.maximum(np.searchsorted(edges, outcomes, side="right") - 1, 0)


def choose_events(world0: Outcomes, world1: Outcomes, delta: float, alarm: float) -> list[CountedEvent]:
    """Return the best event of each family in each direction, by the bound that this half of the trials would give."""
    edges = _edges(np.concatenate((world0, world1)))
    counts = [np.bincount(cell(edges, one), minlength=edges.size) for one in (world0, world1)]
    trials = len(world0)
    events = []
    for likely in (0, 1):
        a, b = counts[likely], counts[1 - likely]
        for family, order, size in _candidates(a, b):
            taken_a, taken_b = (np.cumsum(one[order]) if size == 0 else one[order] for one in (a, b))
            scores = epsilon_at_least(taken_a, taken_b, trials, delta, alarm)
            best = int(np.argmax(scores))
            inside = np.zeros(edges.size, dtype=np.bool_)
            inside[order[: best + 1] if size == 0 else order[best : best + 1]] = True
            events.append(CountedEvent(family, likely, edges, inside))
    return events


def _candidates(a: Counts, b: Counts) -> Iterator[tuple[str, NDArray[np.intp], int]]:
    """Yield orders of the cells whose beginnings are events (size 0), or whose single cells are (size 1)."""
    forth = np.arange(a.size)
    yield "at most", forth, 0
    yield "at least", forth[::-1], 0
    yield "exactly", forth, 1
    yield "likelier", np.argsort(-(a + 0.5) / (b + 0.5), kind="stable"), 0


def _edges(pooled: Outcomes) -> Outcomes:
    values = np.unique(pooled)
    if values.size <= CELLS:
        return values
    cuts = np.quantile(pooled, np.linspace(0, 1, CELLS, endpoint=False), method="lower")
    return np.unique(np.concatenate((cuts, values[:32], values[-32:])))


PROVES_NOTHING = "An audit can break a claim. It cannot prove one: the bound is below ε wherever the claim holds."


class Finding(Shown, Message):
    """A lower bound on ε, which may be wrong with the false-alarm rate, beside the claim.

    view        the observation: see `Setting.view`.
    evidence    the number of a trial that the event is about: see `evidence_names`.
    secret      "arm" or "context" of a contextual client; null for the worst pair of the mechanism's ball.
    trials      runs of each of the two worlds; the first half chose the events, the others, `counted`, were counted.
    cohorts     opened for either world over HTTP, where one may carry many trials; null in process.
    claim       ε of the claimed guarantee at `delta`; null without a claim.
    lower       the mechanism's ε at `delta` is above this.
    reach       the largest `lower` that so many trials can give: a claim above it cannot be contradicted by them.
    hits        of the event in its likely world and in the other one, of `counted` runs each.
    alarm       P(lower > true ε) is at most this.
    violated    lower > claim.
    frame()     one row with these fields: rows of several findings make a table.
    """

    TABLES: ClassVar[tuple[str, ...]] = ("finding",)

    mechanism: str
    calibration: str
    transport: Transport
    view: Observable
    secret: Hidden | None = None
    evidence: str
    clients: int
    dimension: int
    norm: Norm
    survivors: int
    colluders: int
    trials: int
    counted: int
    cohorts: int | None = None
    claim: float | None
    delta: float
    lower: float
    reach: float
    event: str
    hits: tuple[int, int]
    alarm: Annotated[float, Field(gt=0, lt=1)]
    violated: bool

    @property
    def title(self) -> str:
        """Return what was audited, for people."""
        return f"{self.mechanism} ({self.calibration}), {self.transport}"

    @property
    def verdict(self) -> str:
        """Return what the trials say of the claim."""
        if self.violated:
            return "the claim is broken"
        far = self.claim is None or self.reach > self.claim
        return "nothing against the claim" if far else "too few trials to contradict the claim"

    def lines(self) -> list[tuple[str, str]]:
        """Return the finding as text, by name."""
        vectors = f"{self.dimension} coordinates, bounded in {self.norm}"
        cohorts = "" if self.cohorts is None else f" in {self.cohorts} cohorts"
        return [
            ("claimed ε", "none" if self.claim is None else f"{self.claim:.6g}"),
            ("δ", f"{self.delta:g}"),
            (f"ε is at least, at {1 - self.alarm:.9g} confidence", f"{self.lower:.6g}"),
            ("so many trials show at most", f"{self.reach:.6g}"),
            ("seen", f"the {self.view}, {self.survivors} of {self.clients} clients"),
            *([("vectors", vectors)] if self.dimension > 1 else []),
            *([("secret", f"the client's {self.secret}")] if self.secret is not None else []),
            ("colluders", str(self.colluders)),
            ("trials of each world", f"{self.trials}{cohorts}, {self.counted} of them counted"),
            ("event", f"{self.evidence} {self.event}"),
            ("hits in either world", f"{self.hits[0]} and {self.hits[1]}"),
        ]

    @override
    def _table(self, name: str) -> NamedRows:
        return list(type(self).model_fields), [self.model_dump()]

    @override
    def _line(self) -> str:
        return f"on {self.title}: {self.verdict}"

    @override
    def _cards(self) -> list[Card]:
        """Return the table of `distrust audit`."""
        return [Card(f"{self.title}: {self.verdict}", self.lines(), notes=[PROVES_NOTHING])]


class Tested(NamedTuple):
    """One event, counted in its likely world and in the other one."""

    evidence: str
    event: CountedEvent
    hits: tuple[int, int]
    lower: float


def check_trials(setting: Setting, trials: int, alarm: float = ALARM) -> None:
    """Refuse too few trials for this false-alarm rate, and too many for memory, before any is played."""
    _check_alarm(alarm)
    if not FEWEST <= trials <= MOST:
        raise BadParameter("trials", trials, f"must lie in [{FEWEST}, {MOST}]")
    delta = setting.claim.delta
    least = 2 * fewest_trials(delta, _share(setting, alarm)) - 1
    if trials < least:
        allowed = f"must be at least {least}" if least <= MOST else f"would have to be above {MOST}"
        raise BadParameter("trials", trials, f"{allowed} for a bound above 0 at {1 - alarm:.12g} and δ = {delta:g}")


def judge_worlds(setting: Setting, world0: Outcomes, world1: Outcomes, *, alarm: float = ALARM) -> Finding:
    """Return the largest of the bounds: events are chosen on the first half and counted on the second.

    world0, world1  evidence, one row a trial. Eight events for each of its columns share the alarm.
    """
    _check_alarm(alarm)
    mechanism, claimed = setting.mechanism, setting.claim
    claim = None if claimed.kind == "none" else claimed.epsilon
    trials = min(len(world0), len(world1))
    best = max(_tested(setting, (world0, world1), trials, claimed.delta, alarm), key=lambda one: one.lower)
    return Finding(
        mechanism=str(getattr(mechanism, "name", type(mechanism).__name__)),
        calibration=mechanism.calibration,
        transport=setting.transport,
        view=setting.view,
        secret=None if setting.secret is None else setting.secret.hidden,
        evidence=best.evidence,
        clients=mechanism.clients,
        dimension=mechanism.dimension,
        norm=mechanism.norm,
        survivors=setting.survivors,
        colluders=setting.colluders,
        trials=trials,
        counted=trials - trials // 2,
        claim=claim,
        delta=claimed.delta,
        lower=best.lower,
        reach=largest_bound(trials - trials // 2, claimed.delta, _share(setting, alarm)),
        event=best.event.describe(),
        hits=best.hits,
        alarm=alarm,
        violated=claim is not None and best.lower > claim,
    )


def _tested(
    setting: Setting, worlds: tuple[Outcomes, Outcomes], trials: int, delta: float, alarm: float
) -> Iterator[Tested]:
    """Yield every event on every column of the evidence, each with its share of the alarm."""
    names, half, share = evidence_names(setting), trials // 2, _share(setting, alarm)
    columns = (world[:trials].reshape(trials, -1).T for world in worlds)
    for name, *pair in zip(names, *columns, strict=True):
        for event in choose_events(pair[0][:half], pair[1][:half], delta, share):
            hits = event.hits(pair[event.likely][half:]), event.hits(pair[1 - event.likely][half:])
            likely, rare = (np.array([hit]) for hit in hits)
            yield Tested(name, event, hits, float(epsilon_at_least(likely, rare, trials - half, delta, share)[0]))


def _check_alarm(alarm: float) -> None:
    if not 0 < alarm < 1:
        raise BadParameter("alarm", alarm, "must lie in (0, 1)")


def _share(setting: Setting, alarm: float) -> float:
    """Return the false-alarm rate of one event."""
    return alarm / (EVENTS * len(evidence_names(setting)))
