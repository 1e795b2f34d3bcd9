"""An estimate is drawn, committed and shown once: what could not be committed was never there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from distrust.common.errors import Unavailable
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort
from distrust.server.store import Store, Writing
from tests.support.in_memory_intermediaries import Crowd
from tests.support.server_harness import REWARDS, House, config

CENTRAL = {"name": "central-laplace-discrete", "epsilon": 1.0, "via": "aggregator"}


async def played(house: House, **changes: Any) -> list[tuple[Cohort, BatchAnswer]]:
    """A run whose first round has been played, with S's last words, of which the server knows nothing yet."""
    house.service.create(config(mechanism=CENTRAL, unsafe=None, **changes))
    asked = house.service.round_view("demo").round
    assert asked is not None
    Crowd(house.s, REWARDS).answer(asked, await house.ask("demo", 96))
    await house.coordinator.stop()
    cohorts = [assignment.cohort for assignment in asked.assignments]
    return [(cohort, await house.s.collect(cohort)) for cohort in cohorts]


def away(*_: object) -> Any:
    raise Unavailable("the database is away")


def ends_but_says_it_failed(writing: Callable[[Store], Any]) -> Callable[[Store], Any]:
    """A commit whose confirmation is lost."""

    @contextmanager
    def patched(store: Store) -> Iterator[Writing]:
        with writing(store) as found:
            yield found
        raise Unavailable("the connection was lost behind the commit")

    return patched


def test_an_estimate_that_could_not_be_committed_is_seen_by_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the noise of a central mechanism would be drawn twice, and two releases of one sum average it out."""
    (cohort, answer), *_ = asyncio.run(played(house))
    with monkeypatch.context() as broken:
        broken.setattr(Store, "writing", away)
        broken.setattr(Store, "outcomes", away)
        with pytest.raises(Unavailable):
            house.service.settle(cohort, answer)
        with pytest.raises(Unavailable):
            house.service.round_view("demo")
    assert cohort in house.service.active_run("demo").pending()
    assert house.service.round_report("demo", 1).cohorts[0].estimate is None
    assert house.service.settle(cohort, answer) is True
    committed = house.service.store.outcomes("demo")
    assert [house.service.round_report("demo", 1).cohorts[0].estimate] == [one.sum for one in committed]  # type: ignore[union-attr]


def test_a_commit_whose_confirmation_is_lost_is_not_repeated_with_fresh_noise(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cohort, answer), *_ = asyncio.run(played(house))
    with monkeypatch.context() as broken:
        broken.setattr(Store, "writing", ends_but_says_it_failed(Store.writing))
        with pytest.raises(Unavailable):
            house.service.settle(cohort, answer)
    (committed,) = house.service.store.outcomes("demo")
    assert house.service.settle(cohort, answer) is False
    assert house.service.store.outcomes("demo") == [committed]


def test_a_run_that_ended_behind_a_lost_confirmation_is_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    *others, (cohort, answer) = asyncio.run(played(house, horizon=97))
    for one, its in others:
        house.service.settle(one, its)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "writing", ends_but_says_it_failed(Store.writing))
        with pytest.raises(Unavailable):
            house.service.settle(cohort, answer)
    assert house.service.round_view("demo").state == "finished"
    assert house.service.view("demo").state == "finished"


def test_a_cohort_is_settled_once_however_often_s_answers(house: House) -> None:
    (cohort, answer), *_ = asyncio.run(played(house))
    assert [house.service.settle(cohort, answer) for _ in range(3)] == [True, False, False]
    assert len(house.service.store.outcomes("demo")) == 1
