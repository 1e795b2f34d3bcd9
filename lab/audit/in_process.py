"""Audits a claim in one process: plays both worlds as many releases of one cohort, as its adversary sees them.

`lab.audit.over_http` plays them over the services.
"""

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.query import CohortWords, PrivacyQuery, checks_arguments
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.common.modular import Vector, add
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.lab.audit.observation import evidence, observed
from distrust.lab.audit.query import DEFAULT_TRIALS, USUAL_CLIENTS, AuditQuery
from distrust.lab.audit.secret import Secret
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import ALARM, Finding, check_trials, judge_worlds

AT_ONCE = 1 << 18
"""Coordinates of messages that are held at a time."""


def audit_in_process(query: AuditQuery, setting: Setting) -> Finding:
    """Run both worlds in this process and return the finding. Raises BadParameter or TooSmall."""
    trials, alarm = DEFAULT_TRIALS if query.trials is None else query.trials, query.alarm()
    if query.seed is not None and query.seed < 0:
        raise BadParameter("seed", query.seed, "must be at least 0")
    stream: Stream = SystemStream() if query.seed is None else UnsafeSeededStream(query.seed, "audit")
    return _found(setting, trials, stream, alarm)


FIELDS = {"via": "intermediary", "broken": "counter_example"}
"""Words of `audit` that have another name than the field of the query."""


class AuditWords(CohortWords, total=False):
    """Fields of `AuditQuery` beside the mechanism, n and ε, and those of its cohort."""

    calibration: str
    via: str | None
    survivors: int | None
    colluders: int
    secret: str | None
    features: int | None
    arms: int | None
    residual: str | None
    broken: str | None
    trials: int | None
    confidence: float
    seed: int | None


@checks_arguments(AuditWords)
def audit(
    mechanism: str | None = None,
    *,
    n: int = USUAL_CLIENTS,
    epsilon: float | None = None,
    **fields: Unpack[AuditWords],
) -> Finding:
    """Try to break a mechanism's claim in this process, as `distrust audit` does, and return the finding.

    mechanism  its name, as in a run file; n, epsilon and `fields` (delta, dropout, dimension, …) as `distrust.privacy`
               takes them. The other fields are those of `AuditQuery`.
    via        "shuffler" or "aggregator", where the mechanism leaves a choice.
    broken     a counter-example in place of a mechanism, such as "noise-for-everybody": its claim is wrong on purpose.
    seed       of the noise; the operating system's when absent.
    Raises     BadParameter or TooSmall, before any trial is played.

    >>> import distrust
    >>> finding = distrust.audit("local-laplace-discrete", n=1, epsilon=1.0, trials=20_000, seed=3)
    >>> finding.violated, finding.claim >= finding.lower > 0.5
    (False, True)
    """
    allow_named(mechanism)
    test = dict[str, Any](fields)
    cohort = {name: test.pop(name) for name in CohortWords.__annotations__ if name in test}
    test = {FIELDS.get(name, name): value for name, value in test.items()}
    query = AuditQuery(mechanism=mechanism, cohort=PrivacyQuery(clients=n, epsilon=epsilon, **cohort), **test)
    with one_thread():
        return query.named(audit_in_process(query, query.setting()))


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
    return _found(Setting(mechanism, answered, colluders, secret=secret), trials, stream, alarm)


def _found(setting: Setting, trials: int, stream: Stream, alarm: float) -> Finding:
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
