"""Tests the audit through the real services: cohorts at intermediaries, real clients, batches over HTTP.

Noise is the operating system's, so these tests are not repeatable. The audit of an honest mechanism has a false alarm
with probability 1e-7. There are fewer than 20 audits, so that less than one of 500 000 runs of the suite has one.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.local.additive import LocalGaussian
from distrust.common.errors import BadParameter, TooSmall
from distrust.lab.audit import observation, over_http
from distrust.lab.audit.broken import broken, counter_example
from distrust.lab.audit.over_http import audit_over_http
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import Finding
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.picked import picked
from tests.support.planned import planned

pytestmark = pytest.mark.slow

ALARM = 1e-7
WEAK: dict[str, Any] = {"epsilon": 0.5, "delta": 0.3}
"""ε and δ of mechanisms with a δ. The test subtracts δ from the frequency that it counts."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(tmp_path_factory.mktemp("audit")), 0) as running:
        yield running


def planned_mechanism(
    name: str, clients: int, min_honest: int, dimension: int = 1, norm: str = "linf", **fields: Any
) -> Mechanism:
    needs = {"epsilon": 1.0} if name != "identity" else {}
    needs |= {"delta": 1e-2} if MECHANISMS[name].takes_delta else {}
    spec = MechanismSpec.model_validate({"name": name, **needs, **fields})
    vectors = BoundedVector.model_validate({"dimension": dimension, "norm": norm, "bound": 1.0})
    statistic = Reward() if dimension == 1 else vectors
    return planned(spec, clients, min_honest, statistic)


def http(stack: Stack, mechanism: Mechanism, trials: int, survivors: int = 0, alarm: float = ALARM) -> Finding:
    setting = Setting(mechanism, survivors or mechanism.floor, transport="http")
    return asyncio.run(audit_over_http(setting, stack.urls, trials=trials, alarm=alarm))


@pytest.fixture
def few_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five cohorts of each world at least, where users of the command get 32: as many trials, in longer messages.

    Coordinates have noise of their own, and so the bound has the same law; a cohort's calls are what takes time.
    """
    monkeypatch.setattr(over_http, "COHORTS", 5)
    monkeypatch.setattr(observation, "MOST_REPLICAS", 512)


def test_sealed_records_come_near_their_claim_and_stay_below(stack: Stack, few_cohorts: None) -> None:
    result = http(stack, planned_mechanism("local-laplace-discrete", 100, 100), 12_000)
    assert (result.transport, result.view, result.trials) == ("http", "message", 12_000)
    assert result.claim is not None
    assert 0.6 < result.lower <= result.claim


def test_masked_sums_come_near_their_claim_and_stay_below(stack: Stack, few_cohorts: None) -> None:
    """A message has several hundred copies of the mechanism, and one of four clients is lost.

    In 300 audits in process the bound's mean was 0.535, six of its deviations above 0.2: P(lower ≤ 0.2) is below 1e-8.
    """
    result = http(stack, planned_mechanism("distributed-polya", 4, 3), 2000)
    assert (result.view, result.survivors) == ("sum", 3)
    assert result.claim is not None
    assert 0.2 < result.lower <= result.claim


def test_lap_one_over_epsilon_is_found_out_over_http(stack: Stack, few_cohorts: None) -> None:
    """The bound is ε/5 above the claim. P(not) is below 1e-6: it is five deviations below the bound's mean."""
    result = http(stack, broken("laplace-for-half-the-range", 100), 8000)
    assert result.claim is not None
    assert result.lower > 1.2 * result.claim


KINDS = [
    pytest.param("identity", "aggregator", id="no-noise"),
    pytest.param("local-gaussian", "shuffler", id="records-of-real-numbers"),
    pytest.param("local-sphere", "shuffler", id="records-of-directions"),
    pytest.param("central-laplace-discrete", "shuffler", id="the-analyzers-noise-on-records"),
    pytest.param("central-gaussian", "aggregator", id="the-analyzers-noise-on-a-sum"),
    pytest.param("distributed-skellam", "aggregator", id="the-clients-noise-in-a-sum"),
    pytest.param("shuffled-binomial", "shuffler", id="labelled-bits"),
    pytest.param("tree", "aggregator", id="a-stream"),
]
"""A mechanism of each kind of message that an intermediary releases, and identity, which must be found out."""

FEW = 3  # of them; CI audits all


@pytest.mark.slow
@pytest.mark.parametrize(("name", "intermediary"), picked(KINDS, FEW, "audits over HTTP"))
def test_what_the_services_release_keeps_the_claim(
    stack: Stack, few_cohorts: None, name: str, intermediary: str
) -> None:
    """Messages, sums, records, estimates and streams through both intermediaries.

    That each mechanism draws over HTTP what it draws in process is tested by `test_same_sums`, and that it keeps its
    claim in process by `tests.oracles.test_audit`.

    At δ = 0.3 this many trials detect half the noise in most audits: the bound's mean was 3.5 of its deviations above
    the claim in 150 audits in process. The test below has twice as many trials, which detect it in all. At δ = 0.01
    they would detect nothing.
    """
    fields: dict[str, Any] = {"batches": 2} if MECHANISMS[name].takes_batches else {}
    fields |= WEAK if MECHANISMS[name].takes_delta else {}
    clients = 100 if name == "local-sphere" else 4
    result = http(stack, planned_mechanism(name, clients, clients - 1, via=intermediary, **fields), 1000)
    assert (result.trials, result.survivors) == (1000, clients - 1)
    assert not result.violated
    assert (result.claim is None) == (name == "identity")
    assert (result.lower > 3) == (name == "identity")


HALVED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "distributed-skellam": lambda whole: {"variance": whole.variance / 4},
    "shuffled-binomial": lambda whole: {"coins": whole.coins // 4},
}
"""Functions from a mechanism to its fields with half the standard deviation."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HALVED)
def test_half_the_noise_is_found_out_at_that_delta(stack: Stack, few_cohorts: None, name: str) -> None:
    """In 300 audits in process the bound's mean was seven of its deviations above the claim, and its least 1.05."""
    whole = planned_mechanism(name, 4, 3, **WEAK)
    result = http(stack, whole.model_copy(update=HALVED[name](whole)), 2000)
    assert result.lower > WEAK["epsilon"] >= (whole.privacy().promise.epsilon or 0.0) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("mechanism", "trials", "cohorts"),
    [
        pytest.param(planned_mechanism("distributed-polya", 3, 3, 4, "linf"), 150, 5, id="boxes-thirty-in-a-message"),
        pytest.param(
            planned_mechanism("shuffled-binomial", 3, 3, 3, "l2"),
            130,
            130,
            id="a-ball-on-its-own",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_vectors_are_audited(stack: Stack, few_cohorts: None, mechanism: Mechanism, trials: int, cohorts: int) -> None:
    result = http(stack, mechanism, trials)
    assert (result.dimension, result.norm, result.cohorts) == (mechanism.dimension, mechanism.norm, cohorts)
    assert result.claim is not None
    assert result.reach > result.claim
    assert not result.violated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clients", "survivors", "epsilon", "trials"),
    [
        pytest.param("noise-that-saturates", 10, 10, 0.5, 1500, id="a-modulus-with-walls"),
        pytest.param("misshifted-bits", 5, 5, 1.0, 9500, id="misshifted-bits"),
    ],
)
def test_what_is_broken_is_found_out_through_its_service(
    stack: Stack, few_cohorts: None, name: str, clients: int, *, survivors: int, epsilon: float, trials: int
) -> None:
    """At the usual confidence of 99.9 %. At ε = 0.5 a message holds a hundred replicas, at 1 fifty.

    In 600 and 1,500 audits in process the bound's mean was 5.6 of its deviations above the claim, and its least 1.36
    and 1.25 times the claim. If the bound is normal, one of them is missed in less than one of 10⁵ runs.
    `tests.oracles.test_audit_broken` audits noise that all clients share where some of them are lost.
    """
    result = http(stack, broken(name, clients, epsilon), trials, survivors, alarm=1e-3)
    assert result.claim is not None
    assert result.lower > result.claim
    assert result.violated


def test_half_a_cohort_cannot_be_lost_on_the_way(stack: Stack) -> None:
    with pytest.raises(BadParameter, match="more than half"):
        http(stack, planned_mechanism("distributed-polya", 6, 3), 64)


def test_a_cohort_below_its_floor_is_not_staged(stack: Stack) -> None:
    """Real clients would refuse to unmask it, because the noise assumes five survivors."""
    with pytest.raises(TooSmall, match="nothing is released"):
        http(stack, planned_mechanism("distributed-polya", 5, 5), 64, survivors=3)


def test_colluders_are_for_audits_in_process(stack: Stack) -> None:
    setting = Setting(planned_mechanism("distributed-polya", 5, 3), 4, 1, "http")
    with pytest.raises(BadParameter, match="whole sum"):
        asyncio.run(audit_over_http(setting, stack.urls, trials=50))


@pytest.mark.parametrize("name", ["skipped-synthetic-updates", None])
def test_the_pulled_arm_is_told_by_reports_without_synthetic_updates_and_by_no_others(
    stack: Stack, name: str | None
) -> None:
    """The noise is on all three blocks, or on the pulled arm's block alone. Only the second audit finds the arm."""
    bare = broken("skipped-synthetic-updates", 100)
    mechanism = bare if name else LocalGaussian.model_validate(bare.model_dump())
    setting = Setting(mechanism, 100, transport="http", secret=counter_example("skipped-synthetic-updates").secret)
    result = asyncio.run(audit_over_http(setting, stack.urls, trials=1500, alarm=ALARM))
    assert (result.view, result.secret, result.cohorts) == ("message", "arm", 15)
    assert result.violated == (name is not None)
