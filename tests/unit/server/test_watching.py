"""Tests of the public views of a run: transcripts, events, the ledger."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.errors import WrongCohort, WrongStage
from distrust.server.learner.rounds import promise_to_survivors
from tests.support.in_memory_intermediaries import InMemoryClients
from tests.support.planned import planned
from tests.support.server_harness import MECHANISMS, REWARDS, ServerHarness, config, serve


def test_unknown_runs_rounds_and_cohorts_are_refused(harness: ServerHarness) -> None:
    harness.service.create(config())
    for call in (
        lambda: harness.reader.view("other"),
        lambda: harness.reader.round_report("demo", 2),
        lambda: harness.reader.round_report("demo", 0),
        lambda: harness.reader.transcript("demo", "demo.9.9.9", 0, 10),
    ):
        with pytest.raises(WrongCohort):
            call()
    with pytest.raises(WrongStage):
        harness.reader.transcript("demo", "demo.1.0.1", 0, 10)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: str(one["name"]))
def test_a_transcript_shows_what_the_server_saw_page_by_page(harness: ServerHarness, mechanism: dict[str, Any]) -> None:
    harness.service.create(config(mechanism=mechanism))
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    serve(harness, "demo", clients, until=2)  # records are shown while the run is open
    whole = harness.reader.transcript("demo", "demo.1.1.1", 0, 100)
    pages = [harness.reader.transcript("demo", "demo.1.1.1", at, 1) for at in range(whole.total)]
    assert whole.messages == [page.messages[0] for page in pages]
    assert (pages[0].next, pages[-1].next, whole.next) == (1, None, None)
    stages = [seen.stage for seen in whole.messages]
    assert [stages[0], stages[-2], stages[-1]] == ["cohort", "batch", "estimate"]
    seen = whole.messages[-2].view
    rows = clients.rows["demo.1.1.1"]
    hashes = [seen.view for seen in whole.messages if seen.stage == "keys"]
    told = harness.reader.key_hashes("demo", "demo.1.1.1").hashes.hex()
    assert "".join(str(one) for view in hashes for one in view["key_hashes"]) == told  # type: ignore[union-attr]
    assert bool(hashes) == (whole.messages[0].peer == "aggregator")
    sampled = harness.reader.transcript("demo", "demo.1.1.1", 0, 100, each=1)
    first = {seen.stage: seen for seen in reversed(whole.messages)}
    assert sampled.messages == sorted(first.values(), key=lambda seen: seen.number)
    assert (sampled.total, sampled.next) == (whole.total, None)
    if "values" in seen:
        assert sorted(rows[:, 0].tolist()) == sorted(seen["values"])  # type: ignore[arg-type]
    elif "ones" in seen:
        assert [int(rows.sum())] == seen["ones"]
    else:
        assert [int(rows.sum()) % int(str(seen["modulus"]))] == seen["sum"]


def test_a_cohorts_page_says_what_is_promised_with_those_who_answered_and_if_some_collude(
    harness: ServerHarness,
) -> None:
    """MAB Theorem 1, t = n: ε = 1 for all 32, and log p_r(0)/p_r(g) at r = 29/32 when 3 of them tell their noise."""
    mechanism = planned(MechanismSpec(name="distributed-polya", epsilon=1.0), 32)
    worse = mechanism.privacy(32, 3).promise.epsilon
    assert worse is not None
    assert worse > 1.1
    assert (
        promise_to_survivors(mechanism, 32) == f"ε = 1 with the 32 who answered, ε = {worse:.3g} if 3 of them collude"
    )
    harness.service.create(config(horizon=96, unsafe=None))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    shown = harness.reader.transcript("demo", "demo.1.1.1", 0, 100).messages[-1].view["privacy"]
    assert re.fullmatch(r"ε = [\d.]+ with the \d+ who answered, ε = [\d.]+ if \d+ of them collude", str(shown))


def test_events_tell_the_run_in_order_and_resume(harness: ServerHarness) -> None:
    harness.service.create(config())
    view = serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    events, over = harness.reader.events("demo", 0)
    kinds = [event.kind for event in events]
    assert over
    assert (kinds[0], kinds[1], kinds[-1]) == ("round-opened", "cohort-opened", "finished")
    assert kinds.count("cohort-released") == view.cohorts_released
    assert kinds.count("round-opened") == view.snapshot.round
    gone = [event.arm for event in events if event.kind == "arm-eliminated"]
    assert gone == [arm.arm for arm in view.snapshot.arms if not arm.active]
    assert harness.reader.events("demo", events[3].number)[0] == events[4:]
    assert not harness.reader.events("demo", 0, limit=3)[1]


def test_events_are_read_while_a_clients_call_holds_the_run(harness: ServerHarness) -> None:
    harness.service.create(config())
    with ThreadPoolExecutor(1) as other, harness.service.active_run("demo").lock:
        assert len(other.submit(harness.reader.events, "demo", 0).result(60)[0]) == 1
        assert other.submit(harness.reader.newest_event, "demo").result(60) == 1


def test_the_ledger_has_a_line_for_each_round(harness: ServerHarness) -> None:
    harness.service.create(config(unsafe=None))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    ledger = harness.reader.ledger("demo")
    rounds = harness.reader.rounds("demo", 0, 50).rounds
    assert [line.clients for line in ledger.lines] == [sum(one.clients for one in page.cohorts) for page in rounds]
    assert ledger.total.epsilon == max(line.guarantee.epsilon or 0 for line in ledger.lines)


def test_watchers_are_rung_for_their_own_run(harness: ServerHarness) -> None:
    harness.service.create(config(horizon=96))
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    assert set(harness.rung) == {"demo"}
    assert len(harness.rung) >= 6


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
