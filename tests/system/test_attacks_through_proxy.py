"""Tests that a caller without a token cannot take a service down behind its proxy: attacks over real sockets.

The proxy is the real HAProxy with the configuration that the service's settings print. Attackers come from 127.0.0.2,
honest clients from 127.0.0.1. Honest work keeps half of its speed during an attack, and the service stays below twice
the memory that it had before. performance.md has the measured figures. A test measures both speeds one right after
the other. It may repeat an attack: other load slows some measurements, and a service that an attack slows down is slow
in all of them.
"""

from collections.abc import Iterator

import pytest

from tests.support.attacks import Attacked, attacked
from tests.support.floods import ATTACKS, INTERMEDIARIES, WAITED, allow_sockets, harm
from tests.support.proxy import PARTIES, proxied

pytestmark = pytest.mark.alone

SLOWER = 2.0
LARGER = 2.0
ATTEMPTS = 6
PIECES = 40  # of honest work: seconds, so that the burst that a rate lets in is a part of them

PROXYS = {"429", "503"}
"""Statuses with which the proxy refuses: each tells when to come again."""

REFUSED = {
    "eight bodies of 15 MB",
    "bad JSON of 16 kB on two connections",
    "64 wrong tickets on eight connections",
    "100 connections of GET /healthz",
}
"""Attacks of which the proxy must have refused a part: their rates are far above what any address may have."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the shuffler at which the attacked server opens its cohorts."""
    with attacked("shuffler", tmp_path_factory.mktemp("elsewhere")) as service:
        yield service.url


@pytest.fixture(scope="module", params=PARTIES)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, elsewhere: str
) -> Iterator[Attacked]:
    """Yield one service of each kind behind a proxy. A later attack shows the harm that an earlier one left."""
    allow_sockets(8192)
    folder = tmp_path_factory.mktemp("attacked")
    own = {"DISTRUST_SHUFFLER_URL": elsewhere, "DISTRUST_FIRST_SECONDS": "3600"}
    with attacked(request.param, folder, **own) as direct:
        direct.prepare()
        if request.param in INTERMEDIARIES:
            direct.open_waited(WAITED)
        with proxied(request.param, direct, folder) as result:
            yield result


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.parties == PARTIES])
def test_no_attack_takes_half_of_an_honest_callers_speed(service: Attacked, name: str) -> None:
    check_unhurt(service, name)


@pytest.mark.parametrize("service", INTERMEDIARIES, indirect=True)
@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.parties == INTERMEDIARIES])
def test_no_attack_on_intermediaries_takes_half_of_an_honest_callers_speed(service: Attacked, name: str) -> None:
    check_unhurt(service, name)


def check_unhurt(service: Attacked, name: str) -> None:
    """Assert that honest work keeps half of its speed, that memory stays bounded, and what a flood is answered."""
    service.forget_peak()
    slower, answers = list[float](), dict[str, list[int]]()
    while len(slower) < ATTEMPTS:
        done = harm(service, ATTACKS[name], PIECES)
        slower.append(done.slower)
        for status, counts in done.answers.items():
            before = answers.get(status, [0, 0])
            answers[status] = [before[0] + counts[0], before[1] + counts[1]]
        if slower[-1] <= SLOWER:
            break
    assert service.peak() < LARGER * service.fresh
    assert slower[-1] <= SLOWER, f"honest work took {slower} times as long under attack"
    assert set(answers) <= {"200", "400", "404", "409", "413", "422"} | PROXYS
    assert all(counts[0] == counts[1] for status, counts in answers.items() if status in PROXYS)
    assert name not in REFUSED or "429" in answers
