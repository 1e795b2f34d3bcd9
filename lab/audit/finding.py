"""The verdict on a mechanism: what it claims, and what its outcomes show."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from common.errors import BadParameter
from common.mechanisms import Mechanism
from common.messages.base import Message
from common.randomness import Stream
from lab.audit.bound import epsilon_at_least
from lab.audit.events import EVENTS, Event, Outcomes, choose
from lab.audit.trials import Setting, View, outcomes

ALARM = 1e-3
"""One minus the confidence of 99.9 %."""

Transport = Literal["in-process", "http"]


class Finding(Message):
    """A lower bound on ε that holds but for the false-alarm rate, beside the claim.

    view        what was looked at: `sum` modulo m, a single `message`, or the published `estimate`.
    trials      runs of each of the two worlds; the first half chose the events, the others, `counted`, were counted.
    claim       ε of the claimed guarantee at `delta`; null when nothing is claimed.
    lower       the mechanism's ε at `delta` is above this.
    hits        of the event in its likely world and in the other one, of `counted` runs each.
    alarm       P(lower > true ε) is at most this.
    violated    lower > claim.
    """

    mechanism: str
    calibration: str
    transport: Transport
    view: View
    clients: int
    survivors: int
    colluders: int
    trials: int
    counted: int
    claim: float | None
    delta: float
    lower: float
    event: str
    hits: tuple[int, int]
    alarm: Annotated[float, Field(gt=0, lt=1)]
    violated: bool


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
    check_trials(trials)
    setting = Setting(mechanism, mechanism.floor if survivors is None else survivors, colluders)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge(setting, worlds[0], worlds[1], alarm=alarm)


def check_trials(trials: int) -> None:
    """Refuse too few to say anything, and too many to hold."""
    if not 50 <= trials <= 100_000_000:
        raise BadParameter("trials", trials, "must lie in [50, 100000000]")


def judge(
    setting: Setting, world0: Outcomes, world1: Outcomes, *, alarm: float = ALARM, transport: Transport = "in-process"
) -> Finding:
    """Choose events on the first half, count them on the second, take the largest of the eight bounds."""
    if not 0 < alarm < 1:
        raise BadParameter("alarm", alarm, "must lie in (0, 1)")
    mechanism = setting.mechanism
    claimed = mechanism.guarantee(setting.survivors, setting.colluders)
    claim = None if claimed.kind == "none" else claimed.epsilon
    trials = min(len(world0), len(world1))
    half = trials // 2
    events = choose(world0[:half], world1[:half], claimed.delta, alarm / EVENTS)
    hits = [_hits(event, world0[half:trials], world1[half:trials]) for event in events]
    bounds = [_bound(pair, trials - half, claimed.delta, alarm / EVENTS) for pair in hits]
    best = int(np.argmax(bounds))
    return Finding(
        mechanism=str(getattr(mechanism, "name", type(mechanism).__name__)),
        calibration=mechanism.calibration,
        transport=transport,
        view=setting.view,
        clients=mechanism.clients,
        survivors=setting.survivors,
        colluders=setting.colluders,
        trials=trials,
        counted=trials - half,
        claim=claim,
        delta=claimed.delta,
        lower=bounds[best],
        event=events[best].describe(),
        hits=hits[best],
        alarm=alarm,
        violated=claim is not None and bounds[best] > claim,
    )


def _hits(event: Event, world0: Outcomes, world1: Outcomes) -> tuple[int, int]:
    worlds = (world0, world1)
    return event.hits(worlds[event.likely]), event.hits(worlds[1 - event.likely])


def _bound(hits: tuple[int, int], counted: int, delta: float, alarm: float) -> float:
    likely, rare = (np.array([one]) for one in hits)
    return float(epsilon_at_least(likely, rare, counted, delta, alarm)[0])
