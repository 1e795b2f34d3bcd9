"""Tests that a fleet's bulk requests stay within a service's limits, and that it checks what comes back."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from distrust.client.cohort.randomizer import World
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import Limits, Uploader
from distrust.client.cohort.user import granted
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.fleet.settings import FleetSettings
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import MOST_LISTED, Upload, UploadAnswer
from distrust.common.protocol.run.round import Round
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import TICKET_KEY, FleetHarness, serve
from tests.support.limits import lenient

MakeRound = Callable[..., Round]


class _Brief(FleetHarness):
    """An intermediary that takes nothing, and does not list what it refused."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        await super().upload(cohort, upload)
        self.cancelled = True
        return UploadAnswer(accepted=0, refused=[], reasons={"urn:distrust:problem:conflict": len(upload.items)})


def test_clients_whose_refusal_may_be_among_the_unlisted_ones_do_not_count_as_served(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    fleet = Fleet(_Brief([round_], shuffler, TICKET_KEY), world, lenient(), FleetOptions(block=20))
    assert serve(fleet) == ["cancelled"]
    assert (fleet.stats.clients["served"], fleet.stats.clients["refused"]) == (0, 20)


def test_an_upload_is_never_larger_than_what_an_answer_lists() -> None:
    assert Limits().items <= MOST_LISTED
    with pytest.raises(ValidationError, match="upload_items"):
        FleetSettings(environment="{}", upload_items=MOST_LISTED + 1)


def test_clients_that_leave_together_say_so_in_parts(make_round: MakeRound, shuffler: Shuffler) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    cohort = round_.assignments[0].cohort
    uploader = Uploader(harness, FleetStats(), Limits(items=8))

    async def leave() -> None:
        grant = harness._sign(cohort, 0, 20)
        users = granted(grant, np.full(20, 3))
        await uploader.leave(cohort, users)

    asyncio.run(leave())
    assert [len(leaving.slots) for leaving in harness.departures] == [8, 8, 4]
