"""The verdict on a mechanism: what it claims, and what its outcomes show."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from distrust.common.bandit.statistics import Norm
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import Mechanism
from distrust.common.randomness import Stream
from distrust.common.wire import Message
from distrust.lab.audit.bound import epsilon_at_least, fewest, reach
from distrust.lab.audit.events import EVENTS, Event, Outcomes, choose
from distrust.lab.audit.evidence import names
from distrust.lab.audit.setting import Setting, Transport, View
from distrust.lab.audit.trials import outcomes

ALARM = 1e-3
"""One minus the confidence of 99.9 %."""

FEWEST, MOST = 50, 100_000_000


class Finding(Message):
    """A lower bound on ε that holds but for the false-alarm rate, beside the claim.

    view        what was looked at: see `Setting.view`.
    evidence    the number of a trial that the event is about: see `lab.audit.evidence`.
    trials      runs of each of the two worlds; the first half chose the events, the others, `counted`, were counted.
    cohorts     opened for either world over HTTP, where one may carry many trials; null in process.
    claim       ε of the claimed guarantee at `delta`; null when nothing is claimed.
    lower       the mechanism's ε at `delta` is above this.
    reach       the largest `lower` that so many trials can give: a claim above it cannot be contradicted by them.
    hits        of the event in its likely world and in the other one, of `counted` runs each.
    alarm       P(lower > true ε) is at most this.
    violated    lower > claim.
    """

    mechanism: str
    calibration: str
    transport: Transport
    view: View
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


@dataclass(frozen=True, slots=True)
class Tested:
    """One event, counted in its likely world and in the other one."""

    evidence: str
    event: Event
    hits: tuple[int, int]
    lower: float


def audit(
    mechanism: Mechanism,
    *,
    stream: Stream,
    trials: int = 100_000,
    survivors: int | None = None,
    colluders: int = 0,
    alarm: float = ALARM,
) -> Finding:
    """Run both worlds in this process, through randomize, the sum modulo m and estimate, and judge.

    trials     of each world. survivors: who answered, the floor by default; `colluders` of them tell their noise.
    Raises     TooSmall or BadParameter where the mechanism refuses to release.
    """
    setting = Setting(mechanism, mechanism.floor if survivors is None else survivors, colluders)
    check_trials(setting, trials, alarm)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge(setting, worlds[0], worlds[1], alarm=alarm)


def check_trials(setting: Setting, trials: int, alarm: float = ALARM) -> None:
    """Refuse, before any is played, too few to show anything at this false-alarm rate, and too many to hold."""
    _check_alarm(alarm)
    if not FEWEST <= trials <= MOST:
        raise BadParameter("trials", trials, f"must lie in [{FEWEST}, {MOST}]")
    delta = setting.claim.delta
    least = 2 * fewest(delta, _share(setting, alarm)) - 1
    if trials < least:
        allowed = f"must be at least {least}" if least <= MOST else f"would have to be above {MOST}"
        raise BadParameter("trials", trials, f"{allowed} for a bound above 0 at {1 - alarm:.12g} and δ = {delta:g}")


def judge(setting: Setting, world0: Outcomes, world1: Outcomes, *, alarm: float = ALARM) -> Finding:
    """Choose events on the first half, count them on the second, take the largest of the bounds.

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
        reach=reach(trials - trials // 2, claimed.delta, _share(setting, alarm)),
        event=best.event.describe(),
        hits=best.hits,
        alarm=alarm,
        violated=claim is not None and best.lower > claim,
    )


def _tested(
    setting: Setting, worlds: tuple[Outcomes, Outcomes], trials: int, delta: float, alarm: float
) -> Iterator[Tested]:
    """Every event on every column of the evidence, each with its share of the alarm."""
    known, half, share = names(setting), trials // 2, _share(setting, alarm)
    for name, (one, other) in zip(known, _columns(worlds, trials), strict=True):
        for event in choose(one[:half], other[:half], delta, share):
            hits = _hits(event, one[half:], other[half:])
            yield Tested(name, event, hits, _bound(hits, trials - half, delta, share))


def _check_alarm(alarm: float) -> None:
    if not 0 < alarm < 1:
        raise BadParameter("alarm", alarm, "must lie in (0, 1)")


def _share(setting: Setting, alarm: float) -> float:
    """Of the false-alarm rate, for one event."""
    return alarm / (EVENTS * len(names(setting)))


def _columns(worlds: tuple[Outcomes, Outcomes], trials: int) -> Iterator[tuple[Outcomes, Outcomes]]:
    one, other = (world[:trials].reshape(trials, -1).T for world in worlds)
    return zip(one, other, strict=True)


def _hits(event: Event, world0: Outcomes, world1: Outcomes) -> tuple[int, int]:
    worlds = (world0, world1)
    return event.hits(worlds[event.likely]), event.hits(worlds[1 - event.likely])


def _bound(hits: tuple[int, int], counted: int, delta: float, alarm: float) -> float:
    likely, rare = (np.array([one]) for one in hits)
    return float(epsilon_at_least(likely, rare, counted, delta, alarm)[0])
