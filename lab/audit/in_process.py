"""Audits in one process, and the question that `distrust audit` answers.

A question names a mechanism, its cohort, and the trials that test its claim. In process both worlds are played as many
releases of one cohort, as its adversary sees them; `lab.audit.over_http` plays them over the services.
"""

from dataclasses import dataclass, fields
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from distrust.common.calculator.query import CohortWords, PrivacyQuery, checks_arguments
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.explain import wanted
from distrust.common.modular import Vector, add
from distrust.common.privacy.searches import one_thread
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.lab.audit.broken import broken, counter_example
from distrust.lab.audit.observation import evidence, observed
from distrust.lab.audit.secret import Secret, named_secret
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import ALARM, Finding, check_trials, judge_worlds

DEFAULT_TRIALS = 100_000
MAJORITY = 2
LEAST_CONFIDENCE = 0.5  # below, the bound may be wrong more often than right

AT_ONCE = 1 << 18
"""Coordinates of messages that are held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A mechanism as a run would calibrate it, or a counter-example by its name, and how to test it.

    mechanism    its name, as in a run file. counter_example: one of `BROKEN` instead, for `cohort.clients` clients.
    cohort       the question of `distrust privacy`, without survivors and colluders.
    secret       "arm" or "context" of a contextual client, whose rewards lie in [cohort.low, cohort.high]; None for the
                 worst pair of the cohort's ball. features, arms and residual: of its statistic, as `named_secret` takes
                 them; None for the usual ones.
    intermediary "shuffler" or "aggregator", where the mechanism leaves a choice; None for its own choice.
    survivors    clients that answered; None for the fewest with which a cohort is opened.
    colluders    of these the ones that reveal their noise.
    trials       of each world; None for the transport's usual number.
    confidence   probability that the bound holds, in [LEAST_CONFIDENCE, 1).
    seed         of the noise, in process only; None for the operating system's.
    http         over the real services.
    """

    mechanism: str | None
    cohort: PrivacyQuery
    calibration: str = "exact"
    intermediary: str | None = None
    secret: str | None = None
    features: int | None = None
    arms: int | None = None
    residual: str | None = None
    survivors: int | None = None
    colluders: int = 0
    counter_example: str | None = None
    trials: int | None = None
    confidence: float = 0.999
    seed: int | None = None
    http: bool = False

    def setting(self) -> Setting:
        """Return the mechanism with the worst cohort that is opened. Raises BadParameter.

        Without stated survivors these are the mechanism's floor; over HTTP at least the least majority, because secure
        aggregation opens no sum below it.
        """
        secret = self._secret() if self.counter_example is None else counter_example(self.counter_example).secret
        mechanism = self._calibrated(secret) if self.counter_example is None else self._broken(self.counter_example)
        majority = mechanism.clients // MAJORITY + 1 if self.http else 1
        survivors = max(mechanism.floor, majority) if self.survivors is None else self.survivors
        return Setting(mechanism, survivors, self.colluders, "http" if self.http else "in-process", secret)

    def _secret(self) -> Secret | None:
        """Return what the client hides. Raises BadParameter for an option that would be ignored."""
        words: tuple[tuple[str, Any], ...] = (
            ("features", self.features),
            ("arms", self.arms),
            ("residual", self.residual),
        )
        if self.secret is None:
            for word, value in words:
                if value is not None:
                    raise BadParameter(word, value, "is for --secret: leave it out")
            return None
        for word, value, usual in (("dimension", self.cohort.dimension, 1), ("norm", self.cohort.norm, "linf")):
            if value != usual:
                raise BadParameter(word, value, "--secret brings its own vectors: leave it out")
        own = {word: value for word, value in words if value is not None}
        return named_secret(self.secret, **own, low=self.cohort.low, high=self.cohort.high)

    def _calibrated(self, secret: Secret | None) -> Mechanism:
        if self.mechanism is None:
            raise BadParameter("mechanism", None, "name one, or a counter-example with --broken")
        statistic = None if secret is None else secret.statistic
        mechanism = self.cohort.planned(self.mechanism, self.calibration, statistic)
        if self.intermediary is None:
            return mechanism
        try:
            # It is not planned with the intermediary: the refusal would name `mechanism.via`, a field of a run file,
            # instead of the option. Nothing else of a mechanism depends on its intermediary.
            return type(mechanism)(**(mechanism.model_dump() | {"via": self.intermediary}))
        except ValidationError as error:
            raise BadParameter("via", self.intermediary, wanted(error)) from error

    def _broken(self, name: str) -> Mechanism:
        """Return the counter-example. Raises BadParameter for an option that it would ignore."""
        words = [(field.name, getattr(self.cohort, field.name), field.default) for field in fields(PrivacyQuery)]
        own = [(word, getattr(self, word), None) for word in ("mechanism", "secret", "features", "arms", "residual")]
        more = (("via", self.intermediary, None), ("calibration", self.calibration, "exact"))
        for word, value, default in (*words, *own, *more):
            if word not in {"clients", "epsilon"} and value != default:
                raise BadParameter(word, value, "--broken brings its own: leave it out")
        return broken(name, self.cohort.clients, 1.0 if self.cohort.epsilon is None else self.cohort.epsilon)

    def alarm(self) -> float:
        """Return the probability that the bound may be wrong. Raises BadParameter."""
        if not LEAST_CONFIDENCE <= self.confidence < 1:
            raise BadParameter("confidence", self.confidence, f"must lie in [{LEAST_CONFIDENCE}, 1)")
        return 1 - self.confidence


def audit_in_process(query: AuditQuery, setting: Setting) -> Finding:
    """Run both worlds in this process and return the finding. Raises BadParameter or TooSmall."""
    trials, alarm = DEFAULT_TRIALS if query.trials is None else query.trials, query.alarm()
    if query.seed is not None and query.seed < 0:
        raise BadParameter("seed", query.seed, "must be at least 0")
    stream: Stream = SystemStream() if query.seed is None else UnsafeSeededStream(query.seed, "audit")
    check_trials(setting, trials, alarm)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge_worlds(setting, worlds[0], worlds[1], alarm=alarm)


@checks_arguments(CohortWords)
def audit(
    mechanism: str,
    *,
    n: int,
    epsilon: float | None = None,
    calibration: str = "exact",
    survivors: int | None = None,
    colluders: int = 0,
    secret: str | None = None,
    trials: int | None = None,
    confidence: float = 0.999,
    seed: int | None = None,
    **words: Unpack[CohortWords],
) -> Finding:
    """Try to break a mechanism's claim in this process, as `distrust audit` does, and return the finding.

    mechanism  its name, as in a run file; n, epsilon and `words` (delta, dropout, dimension, …) as `distrust.privacy`
               takes them. The other fields are those of `AuditQuery`.
    seed       of the noise; the operating system's when absent.
    Raises     BadParameter or TooSmall, before any trial is played.

    >>> import distrust
    >>> finding = distrust.audit("local-laplace-discrete", n=1, epsilon=1.0, trials=20_000, seed=3)
    >>> finding.violated, finding.claim >= finding.lower > 0.5
    (False, True)
    """
    allow_named(mechanism)
    query = AuditQuery(
        mechanism=mechanism,
        cohort=PrivacyQuery(clients=n, epsilon=epsilon, **words),
        calibration=calibration,
        survivors=survivors,
        colluders=colluders,
        secret=secret,
        trials=trials,
        confidence=confidence,
        seed=seed,
    )
    with one_thread():
        return audit_in_process(query, query.setting())


def audit_mechanism(
    mechanism: Mechanism,
    *,
    stream: Stream,
    trials: int = 100_000,
    survivors: int | None = None,
    colluders: int = 0,
    secret: Secret | None = None,
    alarm: float = ALARM,
) -> Finding:
    """Run both worlds in this process, through randomize, the sum modulo m and estimate. Return the finding.

    trials     of each world.
    survivors  clients that answered, the mechanism's floor by default; `colluders` of them reveal their noise.
    secret     what a contextual client hides; None for the worst pair of the mechanism's ball.
    Raises     TooSmall or BadParameter where the mechanism refuses to release.
    """
    answered = mechanism.floor if survivors is None else survivors
    setting = Setting(mechanism, answered, colluders, secret=secret)
    check_trials(setting, trials, alarm)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge_worlds(setting, worlds[0], worlds[1], alarm=alarm)


def outcomes(setting: Setting, world: int, trials: int, stream: Stream) -> NDArray[np.float64]:
    """Return the evidence of `trials` releases, a row a trial, through randomize, the sum modulo m and estimate.

    Raises TooSmall or BadParameter from the mechanism's own `estimate` where such a cohort must not be opened.
    """
    setting.check()
    messages = setting.visible if setting.view == "records" else 1
    at_once = max(1, AT_ONCE // (setting.mechanism.dimension * setting.batches * messages))
    counts = [min(at_once, trials - start) for start in range(0, trials, at_once)]
    parts = [observed(setting, _contents(setting, world, count, stream), stream) for count in counts]
    return np.concatenate([evidence(setting, part) for part in parts])


def _contents(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    """Return the intermediary's output in each of `count` trials, shape (batches, count, messages, D).

    The differing client is in the first batch. Records keep their order: no evidence depends on it.
    """
    batches = [_cohort(setting, world if number == 0 else 0, count, stream) for number in range(setting.batches)]
    return np.stack(batches)


def _cohort(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    mechanism = setting.mechanism
    messages = [mechanism.randomize(setting.vectors(world, count), stream)]
    others = np.tile(setting.others, (count, 1))
    if setting.view == "records":
        messages += [mechanism.randomize(others, stream) for _ in range(setting.visible - 1)]
        return np.stack(messages, axis=1)
    sums = messages[0]
    for _ in range(setting.visible - 1):
        sums = add(sums, mechanism.randomize(others, stream), mechanism.modulus)
    return (sums % np.uint64(mechanism.modulus))[:, np.newaxis]
