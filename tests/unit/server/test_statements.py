"""Tests of the aggregator's statements: each is committed once, stage by stage; a list that lies ends its cohort."""

import asyncio
from pathlib import Path

import pytest

from distrust.common.errors import BadMessage, Conflict, ProtocolError
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.status import Stated, Statement, StatementList
from tests.support.in_memory_intermediaries import InMemoryIntermediaries
from tests.support.server_harness import ServerHarness, config

NAME = "demo.1.0.1"


def statement(stage: Stated, byte: int = 1, size: int = 32) -> Statement:
    return Statement(stage=stage, digest=bytes([byte]) * size)


def listed(*statements: Statement, cohort: str = NAME, over: bool = False) -> StatementList:
    return StatementList(cohort=cohort, statements=list(statements), over=over)


CONFIRM, MASKED, UNMASK = statement("confirm", 1), statement("masked", 2), statement("unmask", 3)


class Stating(InMemoryIntermediaries):
    """An aggregator that states one and the same list of its first cohort whenever it is asked, and of others none."""

    def __init__(self, found: StatementList) -> None:
        super().__init__()
        self._found, self.requests = found, 0

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        if cohort.cohort != NAME:
            return await super().statements(cohort, after)
        self.requests += 1
        return self._found


@pytest.fixture
def cohort(harness: ServerHarness) -> Cohort:
    """Return a masked cohort that is open at the aggregator."""
    harness.service.create(config())
    result = next(one for one in harness.service.active_run("demo").pending() if one.cohort == NAME)
    with harness.service.store.writing() as writing:
        writing.cohort(result)
    return result


def published(harness: ServerHarness) -> list[Statement]:
    return harness.reader.statements("demo", NAME).statements


def test_honest_lists_are_committed_in_order_and_repeats_change_nothing(harness: ServerHarness, cohort: Cohort) -> None:
    """After a restart the server may read again what it has committed, and more."""
    harness.service.publish(cohort, 0, listed(CONFIRM))
    harness.service.publish(cohort, 1, listed(MASKED))
    harness.service.publish(cohort, 0, listed(CONFIRM, MASKED))
    assert published(harness) == [CONFIRM, MASKED]
    harness.service.publish(cohort, 1, listed(MASKED, UNMASK))
    harness.service.publish(cohort, 3, listed(over=True))
    assert published(harness) == [CONFIRM, MASKED, UNMASK]


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        pytest.param(listed(MASKED, MASKED), Conflict, "stage masked of .* twice", id="twice-in-one-list"),
        pytest.param(listed(MASKED, statement("masked", 9)), Conflict, "masked of .* twice", id="twice-and-differs"),
        pytest.param(listed(CONFIRM), Conflict, "stage confirm of .* twice", id="again-in-a-later-list"),
        pytest.param(listed(statement("confirm", 9)), Conflict, "confirm of .* twice", id="another-digest-later"),
        pytest.param(listed(UNMASK, MASKED), BadMessage, "out of order: stage masked comes first", id="order"),
        pytest.param(listed(MASKED, statement("unmask", 3, 31)), BadMessage, "digest of 31 bytes, not 32", id="short"),
        pytest.param(listed(statement("masked", 2, 33)), BadMessage, "digest of 33 bytes, not 32", id="long"),
        pytest.param(listed(MASKED, cohort="demo.1.1.1"), BadMessage, "of cohort demo.1.1.1", id="another-cohort"),
    ],
)
def test_a_list_that_lies_is_refused_and_none_of_it_is_committed(
    harness: ServerHarness, cohort: Cohort, found: StatementList, error: type[ProtocolError], words: str
) -> None:
    harness.service.publish(cohort, 0, listed(CONFIRM))
    with pytest.raises(error, match=words):
        harness.service.publish(cohort, 1, found)
    assert published(harness) == [CONFIRM]


def test_a_repeat_that_differs_from_what_was_committed_is_refused(harness: ServerHarness, cohort: Cohort) -> None:
    harness.service.publish(cohort, 0, listed(CONFIRM, MASKED))
    with pytest.raises(Conflict, match=r"stage masked of .* differed"):
        harness.service.publish(cohort, 0, listed(CONFIRM, statement("masked", 9), UNMASK))
    assert published(harness) == [CONFIRM, MASKED]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(listed(CONFIRM, CONFIRM), "conflict: the aggregator stated stage confirm", id="twice"),
        pytest.param(listed(MASKED), "bad-message: the aggregator stated stage masked", id="order"),
        pytest.param(listed(statement("confirm", 1, 5)), "bad-message: the aggregator stated stage confirm", id="size"),
    ],
)
def test_an_aggregator_that_lies_about_its_statements_ends_the_cohort_as_aborted_with_the_reason(
    tmp_path: Path, found: StatementList, reason: str
) -> None:
    intermediaries = Stating(found)
    harness = ServerHarness(tmp_path, intermediaries)

    async def collected() -> None:
        harness.service.create(config())
        await harness.ask("demo", 1)
        for _ in range(30_000):
            if harness.reader.view("demo").cohorts_aborted:
                break
            await asyncio.sleep(0.002)
        await harness.coordinator.stop()

    asyncio.run(collected())
    report = harness.reader.round_report("demo", 1).cohorts[0]
    harness.database.close()
    assert (report.cohort, report.state, intermediaries.requests) == (NAME, "aborted", 1)
    assert str(report.reason).startswith(reason)


def test_the_same_request_with_other_keys_is_a_conflict(harness: ServerHarness, cohort: Cohort) -> None:
    name = "ab" * 16
    first = TicketRequest(request=name, round=1, want=2, keys=bytes(64))
    granted = harness.service.advance("demo", first)
    assert harness.service.advance("demo", first) == granted
    for keys in (b"\x01" + bytes(63), bytes(63) + b"\x01", b""):
        with pytest.raises(Conflict, match="round, count or keys"):
            harness.service.advance("demo", first.model_copy(update={"keys": keys}))
    assert harness.reader.key_hashes("demo", cohort.cohort).hashes == bytes(64)


@pytest.mark.parametrize("size", [0, 32, 63, 65, 96])
def test_a_request_with_a_wrong_number_of_key_bytes_gets_no_ticket(
    harness: ServerHarness, cohort: Cohort, size: int
) -> None:
    wanted = TicketRequest(request="ab" * 16, round=1, want=2, keys=bytes(size))
    with pytest.raises(BadMessage, match=f"keys: {size} bytes, expected 64"):
        harness.service.advance("demo", wanted)
    assert harness.reader.key_hashes("demo", cohort.cohort).hashes == b""
