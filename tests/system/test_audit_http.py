"""The audit through the real services: cohorts at S, real clients, batches over HTTP.

Noise is the operating system's, so these are not repeatable; a false alarm is as rare as 1e-7 an audit.
"""

import asyncio
from collections.abc import Iterator

import pytest

from common.errors import BadParameter, TooSmall
from common.mechanisms import Mechanism, MechanismSpec, plan
from common.statistics import Reward
from lab.audit import Finding, Setting
from lab.audit.broken import broken
from lab.audit.over_http import audit_over_http
from lab.folder import Folder
from lab.stack import Stack

ALARM = 1e-7


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(Folder(tmp_path_factory.mktemp("audit")), 0) as running:
        yield running


def made(name: str, clients: int, floor: int, **words: object) -> Mechanism:
    spec = MechanismSpec.model_validate({"name": name, "epsilon": 1.0, **words})
    return plan(spec, clients=clients, least=floor, floor=floor, wrap=1e-6, statistic=Reward())


def http(stack: Stack, mechanism: Mechanism, trials: int, alarm: float = ALARM) -> Finding:
    setting = Setting(mechanism, mechanism.floor)
    return asyncio.run(audit_over_http(setting, stack.urls, trials=trials, alarm=alarm))


def test_sealed_records_come_near_their_claim_and_stay_below(stack: Stack) -> None:
    found = http(stack, made("local-laplace-discrete", 400, 400), 4000)
    assert (found.transport, found.view, found.trials) == ("http", "message", 4000)
    assert found.claim is not None
    assert 0.5 < found.lower <= found.claim


def test_lap_one_over_epsilon_is_found_out_over_http(stack: Stack) -> None:
    """P(not found) is below 1e-9: the bound would have to fall by a third of ε."""
    found = http(stack, broken("laplace-for-half-the-range", 400), 4000)
    assert found.violated


@pytest.mark.parametrize(
    ("name", "clients", "floor", "words"),
    [
        pytest.param("distributed-polya", 5, 3, {}, id="masked-sums-two-lost"),
        pytest.param("central-laplace-discrete", 4, 4, {"via": "aggregator"}, id="published-estimates"),
        pytest.param("shuffled-binomial", 5, 4, {"delta": 1e-2}, id="labelled-bits-one-lost"),
    ],
)
def test_what_the_services_release_keeps_the_claim(
    stack: Stack, name: str, clients: int, floor: int, words: dict[str, object]
) -> None:
    found = http(stack, made(name, clients, floor, **words), 50)
    assert (found.trials, found.survivors) == (50, floor)
    assert not found.violated


@pytest.mark.slow
def test_noise_that_saturates_is_found_out_through_secure_aggregation(stack: Stack) -> None:
    """400 cohorts of each world, at the usual 99.9 %; the chance that it passes unseen is below 1e-3."""
    assert http(stack, broken("noise-that-saturates", 10), 400, alarm=1e-3).violated


@pytest.mark.parametrize(
    ("mechanism", "survivors"),
    [
        pytest.param(made("distributed-polya", 6, 3), 3, id="half-are-lost"),
        pytest.param(made("local-laplace-discrete", 4, 4, via="aggregator"), 4, id="no-single-message-there"),
    ],
)
def test_what_cannot_be_staged_is_refused(stack: Stack, mechanism: Mechanism, survivors: int) -> None:
    with pytest.raises(BadParameter):
        asyncio.run(audit_over_http(Setting(mechanism, survivors), stack.urls, trials=50))


def test_a_cohort_below_its_floor_is_not_staged(stack: Stack) -> None:
    """Real clients would refuse to unmask it: the noise counts on five."""
    with pytest.raises(TooSmall, match="nothing is released"):
        asyncio.run(audit_over_http(Setting(made("distributed-polya", 5, 5), 3), stack.urls, trials=50))
