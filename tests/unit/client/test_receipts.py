"""Tests of what clients of a crowd say of their records, against a real shuffler."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from distrust.client.cohort.randomizer import World
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.fleet.memory import Memory
from distrust.common.errors import Refused
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import InboxRequest, Leaving, Upload, UploadAnswer
from distrust.common.protocol.run.config import RunConfig
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import TICKET_KEY, FleetHarness, serve
from tests.support.limits import lenient
from tests.support.recording import record_run
from tests.unit.client.conftest import MakeRound, spent

CLIENTS = 20
NAME = "demo.1.0.1"


class HeldBack(FleetHarness):
    """Delays the last client's report until the shuffler has closed the cohort without it."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        (item,) = upload.items
        if item.slot == CLIENTS - 1:
            await self.leave(cohort, Leaving(cohort=cohort.cohort, slots=[item.slot], tickets=item.ticket))
            while len(self.receipts[NAME]) < CLIENTS - 1:  # noqa: ASYNC110  the harness has no event for it
                await asyncio.sleep(0.001)
        return await super().upload(cohort, upload)


class OtherDigest(FleetHarness):
    """A shuffler that states another digest than that of its list, or none."""

    stated: bytes | None = None
    shown = False

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        view = await super().stage(cohort, after, asked, wait)
        self.shown = self.shown or view.stage == "done"
        return view.model_copy(update={"statement": self.stated})

    def _is_settled(self, cohort: Cohort, view: StageView) -> bool:
        """Return whether the cohort's deadline has passed: here once clients have seen that there is no digest."""
        return self.shown and self.stated is None


def test_every_client_says_that_its_record_is_there(make_round: MakeRound, world: World, shuffler: Shuffler) -> None:
    harness = FleetHarness([make_round("shuffled-laplace", clients=CLIENTS, delta=1e-2)], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=7))
    assert serve(fleet) == ["finished"]
    assert harness.receipts == {NAME: dict.fromkeys(range(CLIENTS), 1)}
    assert (fleet.stats.clients["served"], fleet.stats.clients["robbed"]) == (CLIENTS, 0)
    assert fleet.stats.message_bytes["receipt"] == 17 * CLIENTS


def test_a_client_whose_report_was_not_taken_says_nothing(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """Its record is not in the list, and the shuffler is honest: the word "absent" would help to name it."""
    harness = HeldBack([make_round("shuffled-laplace", clients=CLIENTS, delta=1e-2)], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=1))
    assert serve(fleet) == ["finished"]
    assert harness.receipts == {NAME: dict.fromkeys(range(CLIENTS - 1), 1)}
    assert fleet.stats.clients["served"] == CLIENTS - 1


@pytest.mark.parametrize("stated", [None, bytes(32)], ids=["none", "false"])
def test_a_shuffler_that_states_no_digest_or_a_false_one_gets_no_receipt(
    make_round: MakeRound, world: World, shuffler: Shuffler, stated: bytes | None
) -> None:
    """A false one ends the fleet. The clients have spent a contribution all the same."""
    harness = OtherDigest([make_round("shuffled-laplace", clients=CLIENTS, delta=1e-2)], shuffler, TICKET_KEY)
    harness.stated, memory = stated, Memory()
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=7), memory)
    with nullcontext() if stated is None else pytest.raises(Refused, match="is not the one whose digest the shuffler"):
        serve(fleet)
    assert harness.receipts == {}
    assert any("states no digest" in why or "whose digest" in why for why in fleet.stats.reasons)
    run = harness.rounds[0].assignments[0].cohort.run_digest
    assert [row[2:4] for row in spent(memory, run)] == [(0, 6), (7, 13), (14, 19)]


def test_a_run_that_begins_with_one_client_an_action_has_receipts_in_its_later_crowds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for tickets waits for whichever round is next: it has the hashes that a crowd needs."""
    actions = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
    whole = {
        "run": "growing",
        "arms": 2,
        "horizon": 60,
        "policy": {"name": "almost-free", "actions": actions},
        "mechanism": {"name": "shuffled-laplace", "epsilon": 4.0, "delta": 1e-2},
        "intermediary": {"minimum": 1, "dropout": 0.0, "corrupt": 0.0},
    }
    run = record_run(
        tmp_path, [RunConfig.model_validate(whole)], 0.0, monkeypatch, requirements=lenient(max_epsilon=99)
    )
    assert run.views["growing"].state == "finished"
    sizes = "SELECT cohort, json_extract(message, '$.clients') FROM cohorts WHERE state = 'released'"
    released = dict(run.rows("server", sizes))
    assert released["growing.1.0.1"] == 1
    assert max(released.values()) > 1
    given = dict(run.rows("server", "SELECT cohort, sum(present) FROM receipts GROUP BY cohort"))
    assert given == {cohort: clients for cohort, clients in released.items() if clients > 1}
