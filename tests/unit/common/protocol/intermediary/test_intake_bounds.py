"""Tests that an upload of bad items costs little: few are verified, few are listed, all are counted."""

import pytest

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.intermediary import intake
from distrust.common.protocol.intermediary.intake import MOST_BAD_TICKETS, Intake, admitted, check_fits
from distrust.common.protocol.messages.cohort import ticket_text
from distrust.common.protocol.messages.upload import MOST_LISTED, Item
from tests.support.cohorts import Authority

SERVER = Authority()


def test_after_some_bad_tickets_no_further_one_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, genuine = list[bytes](), intake._verifies
    monkeypatch.setattr(
        intake, "_verifies", lambda key, ticket, text: bool(verified.append(text)) or genuine(key, ticket, text)
    )
    cohort = SERVER.sealed(clients=500)
    stored = {300: SERVER.ticket(cohort, 300)}
    items = [Item(slot=slot, ticket=bytes(64), body=b"") for slot in range(300)]
    items += [Item(slot=slot, ticket=SERVER.ticket(cohort, slot), body=b"") for slot in (300, 301)]
    taken = Intake(items)
    taken.reject_if(admitted(cohort, stored))
    assert verified == [ticket_text(cohort, slot) for slot in range(MOST_BAD_TICKETS)]
    assert [item.slot for item in taken.items] == [300]
    assert taken.answer().refused[-1].detail == "slot 301: not looked at, as 8 tickets of this upload do not verify"


def test_a_few_bad_tickets_spoil_no_good_one() -> None:
    cohort = SERVER.sealed(clients=500)
    bad = [Item(slot=slot, ticket=bytes(64), body=b"") for slot in range(MOST_BAD_TICKETS - 1)]
    good = [Item(slot=slot, ticket=SERVER.ticket(cohort, slot), body=b"") for slot in range(100, 110)]
    taken = Intake([*bad, *good])
    taken.reject_if(admitted(cohort, {}))
    assert taken.items == good


@pytest.mark.parametrize("beyond", [0, 1, 500])
def test_refusals_beyond_the_listed_ones_are_counted_by_their_reason(beyond: int) -> None:
    taken = Intake([])
    for slot in range(MOST_LISTED + beyond):
        taken.refuse(slot, BadMessage("no"))
    answer = taken.answer()
    assert len(answer.refused) == MOST_LISTED
    assert answer.reasons == ({BadMessage("").urn: MOST_LISTED + beyond} if beyond else None)
    assert ("reasons" in answer.model_dump_json()) == bool(beyond)


@pytest.mark.parametrize("cohort", [SERVER.bits(labels=1000, width=200), SERVER.masked(dimension=20_000)])
def test_a_cohort_whose_reports_fit_no_body_is_refused_and_one_that_fits_is_not(cohort: object) -> None:
    with pytest.raises(BadParameter, match=r"channel = '\w+': makes requests of \d+ bytes, and DISTRUST_MAX_BODY is"):
        check_fits(cohort, 30_000)  # type: ignore[arg-type]
    check_fits(cohort, 50_000)  # type: ignore[arg-type]
