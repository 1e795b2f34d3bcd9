"""Defines the result of a run: the object that `run --json` writes, the same for runs in process and over services.

Regret is counted here, on the clients' side: the server never learns the true means.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.bandit.decisions import AssignedArm, Decision
from distrust.common.extensions import Extension
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.run.progress import ArmView, LedgerClass, RoundReport, Snapshot
from distrust.common.wire import Message
from distrust.lab.run.run_file import RunFile

Driver = Literal["in-process", "http"]


class Regret(Message):
    """Σ over all pulls of (best mean - the pulled arm's mean). `curve`: (pulls, regret) after each round, cumulated."""

    final: float
    curve: list[tuple[int, float]]


class CohortResult(Message):
    """One cohort. `estimate` is of its survivors' sum, absent when nothing was released.

    liars     slots of clients whose lies the aggregator proved. disputes: pairs of which one lied.
    reason    why nothing was released, as the services report it, with the slots of clients that lied.
    """

    cohort: str
    arm: int | None
    clients: int
    survivors: int | None = None
    estimate: list[float] | None = None
    liars: list[int] = Field(default_factory=list)
    disputes: int = 0
    reason: str | None = None


class RoundResult(Message):
    """One round: its arms, those dropped after it, its cohorts, the size of a message, its line of the ledger."""

    number: int
    batch: int
    arms: list[int]
    decision: Decision = AssignedArm()
    eliminated: list[int]
    modulus: int
    payload_bits: int
    guarantee: Guarantee
    cohorts: list[CohortResult]

    def pulls(self) -> list[tuple[int | None, int]]:
        """Return (arm, pulls) of all its cohorts, replaced ones too; arm None where only the clients know it."""
        return [pull for cohort in self.cohorts for pull in self.decision.pulls(cohort.arm, cohort.clients)]


class Bits(Message):
    """The size of a client's message.

    payload  bits of its randomized vector, the mean over the run's clients: by the mechanism's own count.
    modulus  ⌈log₂ m⌉ bits a coordinate, the same mean: what a sum in Z_m needs.
    sent     bits of the bodies that carried it, as the fleets counted them; absent in process, like `wire`.
    wire     bytes for one client, both ways: all stages' bodies with their JSON, and header lines.
    """

    payload: float
    modulus: float
    sent: float | None = None
    wire: float | None = None


class Wire(Message):
    """The traffic and refusals that the fleets counted.

    payload_bits  sent for one client that was served; None when none was.
    bytes         both ways, for one client that joined a cohort; None when none did.
    refusals      why clients refused or were refused, and how many.
    """

    payload_bits: float | None = None
    bytes: float | None = None
    refusals: dict[str, int] = Field(default_factory=dict)


class PolicyFailures(Message):
    """Failures of one run.

    best_dropped     whether no arm of the largest true mean is left; best_dropped_at: the pulls when the last one went.
    widths           confidence intervals that the policy formed: one for each arm that it judged after a batch, and for
                     UCB1, whose batches are pulls, one for each pull that was answered (`Policy.formed`).
    width_failures   those that miss the true mean when they are formed. None fails later: elimination keeps an interval
                     as it is, and UCB1's only grow around the same estimate until the arm is pulled again.
    failure          probability, by the policy's own statement, that any of them does (`stated`); null for none.
    indefinite       batches after which noise left the matrix V of a contextual policy indefinite, and it was shifted
                     further than the theorem has it; absent for a policy without such a matrix.
    """

    best_dropped: bool
    best_dropped_at: int | None
    widths: int
    width_failures: int
    failure: float | None
    indefinite: int | None = Field(default=None, exclude_if=lambda indefinite: indefinite is None)


@dataclass(frozen=True, slots=True)
class Truth:
    """Facts of a run that only the clients' side knows. `best` is None where the best arm depends on the client.

    clipped  contexts of the world's data that were shortened to length 1.
    """

    best: int | None
    regret: Regret
    events: PolicyFailures
    clipped: int = 0


class Result(Message):
    """A run that ended. `seed` is the environment's; `noise_seed` is there in unsafe runs only.

    spent   the run's ledger: what clients have spent at most, by how often they took part; `guarantee` is the total.
    events  the policy's failures, seen from the clients' side; over services the lab plays the run again for them.
    fault   why the run failed: a round that could not be planned, an exception with its type, or nothing measured.
            None for a run that finished. In process only: over services a run that failed has no result.
    extensions  where the classes of the user's own are from, as this driver has them; absent for a run without any.
    """

    run: str
    driver: Driver
    policy: str
    mechanism: str
    calibration: str
    environment: str
    horizon: int
    seed: int | None
    noise_seed: int | None
    chosen: int | None
    best: int | None = Field(
        description="the arm of the largest true mean, known to the clients' side; null where each client has one"
    )
    arms: list[ArmView]
    pulls: list[int]
    hidden: int = Field(
        default=0, exclude_if=lambda hidden: hidden == 0, description="pulls whose arms only the clients know"
    )
    clipped: int = Field(
        default=0,
        exclude_if=lambda clipped: clipped == 0,
        description="contexts of the environment's data that were longer than 1, and were shortened",
    )
    regret: Regret
    rounds: list[RoundResult]
    aborted: int
    unfinished: int
    guarantee: Guarantee
    spent: tuple[LedgerClass, ...]
    bits: Bits
    seconds: float
    clients_per_second: float
    events: PolicyFailures
    fault: str | None = None
    refusals: dict[str, int] = Field(default_factory=dict, description="why clients refused, and how many")
    extensions: tuple[Extension, ...] = Field(default=(), exclude_if=lambda extensions: not extensions)


def summarize(
    file: RunFile,
    driver: Driver,
    snapshot: Snapshot,
    rounds: Sequence[RoundResult],
    truth: Truth,
    *,
    spent: tuple[LedgerClass, ...],
    seconds: float,
    wire: Wire | None = None,
    fault: str | None = None,
) -> Result:
    """Return a run's result. `seconds` is wall time; `wire` is what fleets counted, None in process."""
    config = file.config
    pulls = [arm.pulls for arm in snapshot.arms]
    clients = sum(cohort.clients for one in rounds for cohort in one.cohorts)
    return Result(
        run=config.run,
        driver=driver,
        policy=config.policy.name,
        mechanism=config.mechanism.name,
        calibration=config.mechanism.calibration,
        environment=file.environment.name,
        horizon=config.horizon,
        seed=file.environment.seed,
        noise_seed=config.unsafe.noise_seed if config.unsafe else None,
        chosen=snapshot.chosen,
        best=truth.best,
        arms=snapshot.arms,
        pulls=pulls,
        hidden=snapshot.pulls - sum(pulls),
        clipped=truth.clipped,
        regret=truth.regret,
        rounds=list(rounds),
        aborted=snapshot.aborted,
        unfinished=snapshot.unfinished,
        guarantee=snapshot.guarantee,
        spent=spent,
        bits=_bits(rounds, clients, wire),
        refusals=wire.refusals if wire else {},
        seconds=seconds,
        clients_per_second=clients / seconds,
        events=truth.events,
        fault=fault,
        extensions=file.extensions,
    )


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


def regret_of_pulls(
    gaps: NDArray[np.float64], pulls: list[int], rounds: Iterable[Iterable[tuple[int | None, int]]]
) -> Regret:
    """Return the regret of pulls by arm.

    gaps    largest true mean less each arm's, shape (K,). pulls: of the whole run, by arm.
    rounds  (arm, pulls) of all cohorts of each round. The curve's last point counts the pulls after the last cohort.
    """
    curve: list[tuple[int, float]] = []
    counted = [0] * len(pulls)
    for one in rounds:
        for arm, count in one:
            assert arm is not None  # only contextual runs have pulls that the server does not know
            counted[arm] += count
        curve.append((sum(counted), _total(gaps, counted)))
    final = _total(gaps, pulls)
    if sum(counted) < sum(pulls):
        curve.append((sum(pulls), final))
    return Regret(final=final, curve=curve)


def _total(gaps: NDArray[np.float64], pulls: list[int]) -> float:
    """Return the regret of these pulls, rounded once, so that more pulls never show less regret."""
    return math.fsum(gaps * pulls)


def _bits(rounds: Sequence[RoundResult], clients: int, wire: Wire | None) -> Bits:
    weights = [sum(cohort.clients for cohort in one.cohorts) / clients for one in rounds]
    payload = sum(weight * one.payload_bits for weight, one in zip(weights, rounds, strict=True))
    modulus = sum(weight * (one.modulus - 1).bit_length() for weight, one in zip(weights, rounds, strict=True))
    if wire is None:
        return Bits(payload=payload, modulus=modulus)
    return Bits(payload=payload, modulus=modulus, sent=wire.payload_bits, wire=wire.bytes)
