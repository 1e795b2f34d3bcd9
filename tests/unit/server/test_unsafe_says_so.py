"""Tests that a run whose noise comes from a seed promises nothing, wherever a guarantee is shown."""

from distrust.common.dp.accounting.guarantee import Guarantee
from tests.support.in_memory_intermediaries import InMemoryClients
from tests.support.server_harness import REWARDS, ServerHarness, config, serve


def guarantees_of(harness: ServerHarness) -> list[Guarantee]:
    """Return every guarantee that the server shows of its run."""
    reader = harness.reader
    ledger = reader.ledger("demo")
    rounds = reader.rounds("demo", 0, 50).rounds
    lines = [line.guarantee for line in ledger.lines]
    return [reader.view("demo").snapshot.guarantee, ledger.total, *lines, *(record.guarantee for record in rounds)]


def test_an_unsafe_run_shows_no_privacy_and_why_everywhere(harness: ServerHarness) -> None:
    harness.service.create(config(unsafe={"noise_seed": 1}))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    result = guarantees_of(harness)
    assert len(result) >= 6
    assert {(one.kind, one.epsilon, one.line()) for one in result} == {("none", None, "no privacy")}
    assert all("noise_seed" in " ".join(one.assumptions) for one in result)


def test_the_same_run_with_noise_from_the_operating_system_keeps_its_promise(harness: ServerHarness) -> None:
    harness.service.create(config(unsafe=None))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    assert {(one.kind, one.claimed) for one in guarantees_of(harness)} == {("pure", 2.0)}


def test_a_cohort_that_replaces_another_has_other_clients(harness: ServerHarness) -> None:
    """No client of an aborted cohort is asked again: its successor has a name, slots and tickets of its own."""
    harness.service.create(config(horizon=200))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS, {"1.1": 5}))
    first, second = (cohort for cohort in harness.reader.round_report("demo", 1).cohorts if cohort.arm == 1)
    assert (first.state, second.state) == ("aborted", "released")
    assert first.cohort != second.cohort
    assert harness.service.store.outcome(first.cohort) != harness.service.store.outcome(second.cohort)
    assert harness.reader.view("demo").snapshot.arms[1].pulls >= first.clients + second.clients
