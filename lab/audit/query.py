"""Defines `AuditQuery`, the question that `distrust audit` answers.

It names a mechanism, its cohort, and the trials that test its claim; or a counter-example. `setting` plans the
mechanism with the worst cohort that is opened.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import ValidationError
from typing_extensions import Doc

from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import BadParameter
from distrust.common.explain import wanted
from distrust.lab.audit.broken import BROKEN, broken, counter_example
from distrust.lab.audit.secret import Secret, named_secret
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import Finding

MAJORITY = 2
"""Over HTTP more than 1/MAJORITY of the clients must survive: secure aggregation opens no smaller sum."""

DEFAULT_TRIALS = 100_000  # runs of each of the two worlds
USUAL_TRIALS = 10_000  # of each world over HTTP, unless the caller says how many: about a minute
USUAL_CLIENTS = 10

LEAST_CONFIDENCE = 0.5  # below, the bound may be wrong more often than right


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A mechanism as a run would calibrate it, or a counter-example by its name, and how to test it.

    mechanism        its name, as in a run file; None with a counter-example.
    cohort           the question of `distrust privacy`, without survivors and colluders.
    intermediary     "shuffler" or "aggregator", where the mechanism leaves a choice; None for its own choice.
    secret           "arm" or "context" of a contextual client, whose rewards lie in [cohort.low, cohort.high]; None for
                     the worst pair of the cohort's ball.
    features         of the secret's statistic, as `named_secret` takes it, like `arms` and `residual`; None for the
                     usual one.
    survivors        clients that answered; None for the fewest with which a cohort is opened.
    colluders        of these the ones that reveal their noise.
    counter_example  one of `BROKEN` in place of a mechanism, for `cohort.clients` clients.
    trials           of each world; None for the transport's usual number.
    confidence       probability that the bound holds, in [LEAST_CONFIDENCE, 1).
    seed             of the noise, in process only; None for the operating system's.
    http             over the real services. A field's `Doc` is the help of its option.
    """

    mechanism: Annotated[str | None, Doc("Its name, as in a run file")] = None
    cohort: PrivacyQuery
    calibration: Annotated[str, Doc("exact or paper")] = "exact"
    intermediary: Annotated[str | None, Doc("shuffler or aggregator, where there is a choice")] = None
    survivors: Annotated[int | None, Doc("Clients that answered")] = None
    colluders: Annotated[int, Doc("Survivors that tell their noise")] = 0
    secret: Annotated[str | None, Doc("What a contextual client hides: its arm, or its context")] = None
    features: Annotated[int | None, Doc("With --secret, d: numbers of a context; 2 when absent")] = None
    arms: Annotated[int | None, Doc("With --secret, K: arms with parameters of their own; else 1 or 2")] = None
    residual: Annotated[
        str | None, Doc("With --secret: identity, logistic or poisson, of a gradient without moments")
    ] = None
    counter_example: Annotated[str | None, Doc(f"Instead: {', '.join(BROKEN)}")] = None
    trials: Annotated[int | None, Doc(f"Runs of each world: {DEFAULT_TRIALS}; over HTTP up to {USUAL_TRIALS}")] = None
    confidence: Annotated[float, Doc("That the bound holds")] = 0.999
    seed: Annotated[int | None, Doc("Repeat the same noise; not over HTTP")] = None
    http: Annotated[bool, Doc("Through the real services, on a stack of its own")] = False

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
                    raise BadParameter(word, value, "is for a secret, and none is named: leave it out")
            return None
        for word, value, usual in (("dimension", self.cohort.dimension, 1), ("norm", self.cohort.norm, "linf")):
            if value != usual:
                raise BadParameter(word, value, "the secret brings its own vectors: leave it out")
        own = {word: value for word, value in words if value is not None}
        return named_secret(self.secret, **own, low=self.cohort.low, high=self.cohort.high)

    def _calibrated(self, secret: Secret | None) -> Mechanism:
        if self.mechanism is None:
            raise BadParameter("mechanism", None, "name one, or a counter-example as `broken`")
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
                raise BadParameter(word, value, "the counter-example brings its own: leave it out")
        return broken(name, self.cohort.clients, 1.0 if self.cohort.epsilon is None else self.cohort.epsilon)

    def named(self, finding: Finding) -> Finding:
        """Return a finding that names the counter-example, if it is one."""
        if self.counter_example is None:
            return finding
        return finding.model_copy(update={"mechanism": f"{self.counter_example}, broken on purpose"})

    def alarm(self) -> float:
        """Return the probability that the bound may be wrong. Raises BadParameter."""
        if not LEAST_CONFIDENCE <= self.confidence < 1:
            raise BadParameter("confidence", self.confidence, f"must lie in [{LEAST_CONFIDENCE}, 1)")
        return 1 - self.confidence
