"""Tests when the server calls an intermediary, and calls it again, by a clock of the test's own."""

import asyncio
from types import SimpleNamespace

import pytest

from distrust.common.errors import ProtocolError, Unauthorized, Unavailable
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.server.runs.coordinator import RENEWAL_SECONDS, RunCoordinator
from tests.support.in_memory_intermediaries import InMemoryIntermediaries
from tests.support.server_harness import ServerHarness, config

ASKED_SECONDS = 4.0
"""Time by the test's clock in which the calls for one cohort are counted."""


class Refusing(InMemoryIntermediaries):
    """Notes when it is asked for a batch, by the clock of the pauses, and refuses. Without a refusal: `waiting`."""

    def __init__(self, refusal: ProtocolError | None) -> None:
        super().__init__()
        self.refusal, self.asked, self.over = refusal, list[float](), asyncio.Event()

    async def collect(self, cohort: Cohort, *, opening: bool = False) -> BatchAnswer:
        self.asked.append(self.time)
        if self.refusal is not None:
            raise self.refusal
        return BatchAnswer(cohort=cohort.cohort, state="waiting")

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass at once, and no more than the test needs."""
        self.time += seconds
        if self.time >= ASKED_SECONDS:
            self.over.set()
            await asyncio.Event().wait()


class Closed(InMemoryIntermediaries):
    """Refuses to open any cohort."""

    def __init__(self, refusal: ProtocolError) -> None:
        super().__init__()
        self._refusal = refusal

    async def open(self, cohort: Cohort) -> None:
        raise self._refusal


async def calls(harness: ServerHarness, intermediary: Refusing) -> list[float]:
    """Open one cohort at its intermediary. Return when the server asks for its batch, in seconds."""
    coordinator = RunCoordinator(harness.service, intermediary, sleep=intermediary.sleep)
    harness.service.create(config())
    harness.coordinator = coordinator
    await harness.ask("demo", 7)
    async with asyncio.timeout(120):
        await intermediary.over.wait()
    await coordinator.stop()
    return intermediary.asked


@pytest.mark.parametrize("refusal", [Unauthorized("another token"), Unavailable("not there")])
def test_an_intermediary_that_refuses_the_server_is_asked_again_after_two_seconds(
    harness: ServerHarness, refusal: ProtocolError
) -> None:
    assert asyncio.run(calls(harness, Refusing(refusal))) == [0.0, 2.0]


def test_an_intermediary_that_answers_waiting_at_once_is_asked_ten_times_a_second(harness: ServerHarness) -> None:
    asked = asyncio.run(calls(harness, Refusing(None)))
    assert asked == pytest.approx([0.1 * turn for turn in range(40)])


def test_a_cohort_is_opened_again_before_more_of_its_tickets_are_handed_out_late(
    harness: ServerHarness, intermediaries: InMemoryIntermediaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first deadline runs from its opening: a ticket of its last second would be worth nothing."""
    now = [0.0]
    monkeypatch.setattr("distrust.server.runs.coordinator.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def late() -> list[list[str]]:
        harness.service.create(config())
        opened = []
        for moment in (0.0, RENEWAL_SECONDS / 2, 2 * RENEWAL_SECONDS, 2 * RENEWAL_SECONDS + 1):
            now[0] = moment
            assert (await harness.ask("demo", 3)).grants[0].cohort == "demo.1.0.1"
            opened.append(intermediaries.opened[:])
            intermediaries.opened.clear()
        intermediaries.time += FIRST_SECONDS  # it has ended there: its slots are given to nobody
        now[0] += 2 * RENEWAL_SECONDS
        assert (await harness.ask("demo", 3)).grants[0].cohort == "demo.1.1.1"
        await harness.coordinator.stop()
        return opened

    assert asyncio.run(late()) == [["demo.1.0.1"], [], ["demo.1.0.1"], []]


def test_an_intermediary_that_refuses_the_servers_token_is_unavailable_to_clients(harness: ServerHarness) -> None:
    """Their own token was accepted, and a fleet would end for good at a 401."""
    harness.coordinator = RunCoordinator(harness.service, Closed(Unauthorized("another token")))
    harness.service.create(config())
    with pytest.raises(Unavailable, match="the aggregator refuses this server's token"):
        asyncio.run(harness.ask("demo", 3))
