"""A run whose noise comes from a seed promises nothing, wherever a guarantee is shown."""

from distrust.common.privacy.guarantee import Guarantee
from tests.support.in_memory_intermediaries import Crowd
from tests.support.server_harness import REWARDS, House, config, serve


def shown(house: House) -> list[Guarantee]:
    """Every guarantee that the server shows of its run."""
    service = house.service
    ledger = service.ledger("demo")
    rounds = service.rounds("demo", 0, 50).rounds
    lines = [line.guarantee for line in ledger.lines]
    return [service.view("demo").snapshot.guarantee, ledger.total, *lines, *(one.guarantee for one in rounds)]


def test_an_unsafe_run_shows_no_privacy_and_why_everywhere(house: House) -> None:
    house.service.create(config(unsafe={"noise_seed": 1}))
    serve(house, "demo", Crowd(house.s, REWARDS))
    found = shown(house)
    assert len(found) >= 6
    assert {(one.kind, one.epsilon, one.line()) for one in found} == {("none", None, "no privacy")}
    assert all("noise_seed" in " ".join(one.assumptions) for one in found)


def test_the_same_run_with_noise_from_the_operating_system_keeps_its_promise(house: House) -> None:
    house.service.create(config(unsafe=None))
    serve(house, "demo", Crowd(house.s, REWARDS))
    assert {(one.kind, one.claimed) for one in shown(house)} == {("pure", 2.0)}


def test_a_cohort_that_replaces_another_has_other_clients(house: House) -> None:
    """Nobody of an aborted cohort is asked again: its successor has a name, slots and tickets of its own."""
    house.service.create(config(horizon=200))
    serve(house, "demo", Crowd(house.s, REWARDS, {"1.1": 5}))
    first, second = (one for one in house.service.round_report("demo", 1).cohorts if one.arm == 1)
    assert (first.state, second.state) == ("aborted", "released")
    assert first.cohort != second.cohort
    assert house.service.store.outcome(first.cohort) != house.service.store.outcome(second.cohort)
    assert house.service.view("demo").snapshot.arms[1].pulls >= first.clients + second.clients
