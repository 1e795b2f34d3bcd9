"""Plays a run over the real services: creates it, lets fleets play it, watches it, and summarizes it.

The clients' side knows the true means. So the run is replayed from its published rounds to count its failures, and what
simulated clients held is drawn again.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from distrust.client.randomizer import true_vectors
from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.errors import (
    BadMessage,
    BadParameter,
    Conflict,
    ProtocolError,
    Refused,
    RunFailed,
    Unavailable,
    WrongCohort,
)
from distrust.common.mechanisms import AnyMechanism
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.status import CohortList, CohortView
from distrust.common.privacy.searches import one_thread
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.run.progress import (
    LedgerView,
    RegretCurve,
    RoundList,
    RoundReport,
    RunView,
    Snapshot,
)
from distrust.common.web.client import Http, Patience, Peer
from distrust.lab.run.failures import summarize, tracker_of
from distrust.lab.run.fleet_processes import Fleets
from distrust.lab.run.parties import next_page
from distrust.lab.run.progress import Progress, Standings
from distrust.lab.run.result import CohortResult, Result, RoundResult, Truth, Wire, most_common
from distrust.lab.run.run_file import RunFile
from distrust.lab.stack.stack import Urls
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan

LOOK_SECONDS = 0.5
PATIENCE = Patience(first=0.25, longest=5.0, total=60.0)
LAST_WORDS_SECONDS = 30.0  # for fleets to notice that the run is over
TOLERANCE = 1e-9  # two machines may add in another order
ARM_FIELDS = ("active", "pulls", "batch", "eliminated", "mean", "lower", "upper")
LEARNED_FIELDS = ("round", "pulls", "aborted", "unfinished", "finished", "chosen")
HELD_VALUES = 12  # coordinates of a client's vector in a file of what clients held
GUARANTEE_FIELDS = ("kind", "epsilon", "delta")


@dataclass
class HttpRun:
    """One run file over running services.

    fleets  the processes that play it; None when fleets play it that this process did not start.
    alive   called at every look; raises when a service of the local stack has died.
    post_regret  whether the server gets the regret curve, for readers of its pages. It tells about the true means.
    """

    file: RunFile
    urls: Urls
    fleets: Fleets | None
    progress: Progress
    alive: Callable[[], None] = lambda: None
    post_regret: bool = False

    async def run(self) -> Result:
        """Create the run, or join it, watch it to its end, and return the result.

        Raises RunFailed when it fails or is cancelled, Unavailable when a service or every fleet is gone.
        """
        async with Http(PATIENCE) as http:
            self._server = http.peer(self.urls.server, self.urls.token)
            self._parties = {
                "aggregator": http.peer(self.urls.aggregator, self.urls.token),
                "shuffler": http.peer(self.urls.shuffler, self.urls.token),
            }
            view = await create(self._server, self.file)
            if view.state != "running" and self.fleets is None:  # a watcher that comes late gets the result
                return await result_of(self._server, self.file, finished(view))
            if view.state != "running":
                raise Conflict(f"run {view.run} is {view.state} already; give this one another name: --name")
            began = time.perf_counter()
            with self.fleets or contextlib.nullcontext():
                view = await self._watched()
                seconds = time.perf_counter() - began
                wire = await self._wire()
            result = await result_of(self._server, self.file, view, seconds=seconds, wire=wire)
            if self.post_regret:
                regret = RegretCurve(curve=result.regret.curve)
                await self._server.put(f"/v1/runs/{view.run}/regret", regret, RegretCurve)
            return result

    async def _watched(self) -> RunView:
        """Return the run's view once it is over. An error carries the reasons of clients that refused."""
        try:
            return await self._watch()
        except RunFailed as error:
            raise RunFailed(error.detail + _why(await self._wire())) from error
        except Unavailable as error:
            wire = None if self.fleets is None else self.fleets.wire()  # fleets may go on: no waiting for their reports
            raise Unavailable(error.detail + _why(wire)) from error

    async def _watch(self) -> RunView:
        """Return the run's view once it is over."""
        with self.progress.running():
            while True:
                deserted = self.fleets is not None and not self.fleets.running  # looked at first
                view = await self._server.get(f"/v1/runs/{self.file.config.run}", RunView)
                await self._show(view)
                if view.state != "running":
                    return finished(view)
                self._check(deserted=deserted)
                await asyncio.sleep(LOOK_SECONDS)

    def _check(self, *, deserted: bool) -> None:
        self.alive()
        if self.fleets is not None:
            self.fleets.check()
        if deserted:
            raise Unavailable("every fleet has ended, and the run has not")

    async def _show(self, view: RunView) -> None:
        report = await self._server.get(f"/v1/runs/{view.run}/rounds/{max(1, view.snapshot.round)}", RoundReport)
        self.progress.show(view, report, await _standings(self._parties[report.mechanism.via]))

    async def _wire(self) -> Wire | None:
        """Return the fleets' counts, once they have noticed that the run is over."""
        if self.fleets is None:
            return None
        await asyncio.to_thread(self.fleets.wait, LAST_WORDS_SECONDS)
        return self.fleets.wire()


async def all_rounds(server: Peer, run: str) -> list[RoundReport]:
    """Return every round of a run, read page by page. Raises BadMessage as `next_page`."""
    rounds: list[RoundReport] = []
    after: int | None = 0
    while after is not None:
        page = await server.get(f"/v1/runs/{run}/rounds", RoundList, {"after": after})
        rounds += page.rounds
        after = next_page(page, len(page.rounds), after)
    return rounds


async def _standings(party: Peer) -> Standings:
    """Return the open cohorts' states at an intermediary; empty if it fails, because this is for display only."""
    with contextlib.suppress(ProtocolError):
        return {entry.cohort: entry for entry in (await party.get("/v1/cohorts", CohortList, {"open": "true"})).cohorts}
    return {}


def _why(wire: Wire | None) -> str:
    """Return clients' reasons for refusing, as the rest of an error's line; empty when none refused."""
    refusals = {} if wire is None else wire.refusals
    reasons = [(why.removeprefix(f"{Refused.code}: "), clients) for why, clients in most_common(refusals)]
    return "".join(f"; {clients:,} clients refused: {why}" for why, clients in reasons)


async def create(server: Peer, file: RunFile) -> RunView:
    """Create a run at the server, and return it; the same run again is the one that is there already."""
    try:
        return await server.post("/v1/runs", file.config, RunView)
    except ProtocolError as error:
        missing = [one.name for one in file.extensions if repr(one.name) in error.detail]
        if missing:
            raise Unavailable(f"the server cannot use {', '.join(missing)}: {error.detail}") from error
        raise


async def result_of(
    server: Peer, file: RunFile, view: RunView, *, seconds: float | None = None, wire: Wire | None = None
) -> Result:
    """Return the result of a finished run, with regret and failures counted in the world of its run file."""
    reports = await all_rounds(server, view.run)
    rounds = [from_report(report) for report in reports]
    truth = replay_failures(file, reports, view.snapshot)
    spent = (await server.get(f"/v1/runs/{view.run}/ledger", LedgerView)).classes
    return summarize(file, "http", view.snapshot, rounds, truth, spent=spent, seconds=seconds, wire=wire)


def finished(view: RunView) -> RunView:
    """Return the view of a finished run. Raises RunFailed for one that failed or was cancelled."""
    if view.state == "finished":
        return view
    how = "was cancelled" if view.state == "cancelled" else "failed"
    raise RunFailed(f"run {view.run} {how}: {view.reason}")


def from_report(report: RoundReport) -> RoundResult:
    """Return the result of a round from the server's report of it."""
    return RoundResult(
        number=report.number,
        batch=report.batch,
        arms=report.arms,
        decision=report.decision,
        eliminated=report.eliminated,
        modulus=report.mechanism.modulus,
        payload_bits=report.mechanism.bits,
        guarantee=report.guarantee,
        cohorts=[
            CohortResult(
                cohort=c.cohort,
                arm=c.arm,
                clients=c.clients,
                survivors=c.survivors,
                estimate=c.estimate,
                liars=c.liars,
                disputes=c.disputes,
                reason=c.reason,
            )
            for c in report.cohorts
        ],
    )


class ReplayDiffers(ProtocolError):
    """The published rounds lead our learner to another state than the server's: its failures are not the run's."""

    code, status = "replay-differs", 409

    def __init__(self, run: str, what: str) -> None:
        advice = "do the server and this command have the same release?"
        super().__init__(f"run {run}, played again from its published rounds: {what}; {advice}")


def replay_failures(file: RunFile, reports: Iterable[RoundReport], snapshot: Snapshot) -> Truth:
    """Return the regret and the failures of a finished run, replayed from all its rounds.

    snapshot  what the server says it learned.
    Raises    ReplayDiffers when the rounds lead to another snapshot, or when a cohort has no outcome that needs one.
    """
    ended = {cohort.cohort: cohort for report in reports for cohort in report.cohorts}
    try:
        with one_thread():  # the first round is planned when a learner is made
            tracker, learner = tracker_of(file), Learner(file.config)
            learner.play(partial(_published_outcome, file.config.run, ended), tracker)
    except (BadMessage, WrongCohort) as error:  # an outcome that cannot be
        raise ReplayDiffers(file.config.run, error.detail) from error
    _require_same_snapshot(file.config.run, learner.snapshot(), snapshot)
    return tracker.truth(learner)


def _published_outcome(
    run: str, ended: Mapping[str, CohortView], _plan: RoundPlan, cohort: CohortPlan
) -> ReleasedCohort | LostCohort:
    """Return a cohort's outcome, as the server published it."""
    view = ended.get(cohort.cohort)
    if view is None or view.clients != cohort.clients:
        raise ReplayDiffers(run, f"the server had no cohort {cohort.cohort} of {cohort.clients} clients")
    if view.state == "aborted":
        return LostCohort(cohort=view.cohort, reason=view.reason or "the server gave no reason")
    if view.estimate is None or view.survivors is None:
        raise ReplayDiffers(run, f"cohort {cohort.cohort} is {view.state}, without a sum")
    return ReleasedCohort(cohort=view.cohort, sum=view.estimate, survivors=view.survivors, counts=view.counts)


def _require_same_snapshot(run: str, ours: Snapshot, theirs: Snapshot) -> None:
    """Raise ReplayDiffers unless whole numbers are the server's, and all others agree to TOLERANCE."""
    for field in LEARNED_FIELDS:
        _require_same(run, field, getattr(ours, field), getattr(theirs, field))
    for field in GUARANTEE_FIELDS:
        _require_same(run, f"guarantee: {field}", getattr(ours.guarantee, field), getattr(theirs.guarantee, field))
    for one, other in zip(ours.arms, theirs.arms, strict=True):
        for field in ARM_FIELDS:
            _require_same(run, f"arm {one.arm}: {field}", getattr(one, field), getattr(other, field))


def _require_same(run: str, field: str, ours: float | str | None, theirs: float | str | None) -> None:
    equal = ours == theirs
    if isinstance(ours, float) and isinstance(theirs, float):
        equal = math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if not equal:
        raise ReplayDiffers(run, f"{field} is {ours}, and {theirs} at the server")


def held(file: RunFile, cohort: Cohort) -> dict[str, Any]:
    """Return the reward of each simulated client of a cohort, drawn again from the environment's seed.

    With a noise seed also the number that the client sent before it was masked or sealed; without one only the client
    knew it. Raises BadParameter for a file of another run, one without a seed, and actions that the shuffler assigned.
    """
    if file.config.digest() != cohort.config:
        raise BadParameter("held", file.config.run, f"must be the run file that {cohort.cohort} is of")
    if file.drawn or file.environment.seed is None:
        raise BadParameter("environment.seed", None, "must be stated: without it no process knows what clients held")
    terms = json.loads(cohort.terms)
    decision = TypeAdapter[Decision](Decision).validate_python(terms["decision"])
    if isinstance(decision, AssignedAction):
        raise BadParameter("held", cohort.cohort, "the shuffler assigned the actions: it alone knows who played what")
    statistic = TypeAdapter[Statistic](Statistic).validate_python(terms["statistic"])
    stream = UnsafeSeededStream(file.environment.seed, cohort.run, cohort.cohort, "rewards")
    vectors = true_vectors(file.world(), decision, statistic, arm=terms["arm"], clients=cohort.clients, stream=stream)
    clients: list[dict[str, Any]] = [
        {"slot": slot, "reward": row} for slot, row in enumerate(vectors[:, :HELD_VALUES].tolist())
    ]
    if file.config.unsafe is not None:
        mechanism = TypeAdapter[AnyMechanism](AnyMechanism).validate_python(terms["mechanism"])
        noise = UnsafeSeededStream(file.config.unsafe.noise_seed, cohort.run, cohort.cohort)
        rows = mechanism.randomize(vectors, noise)[:, :HELD_VALUES].tolist()
        clients = [{**one, "message": row} for one, row in zip(clients, rows, strict=True)]
    return {"cohort": cohort.cohort, "config": cohort.config.hex(), "clients": clients}
