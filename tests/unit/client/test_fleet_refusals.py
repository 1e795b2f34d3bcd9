"""Tests that a fleet whose users refuse a round ends with the reason in its report."""

from collections.abc import Callable

import pytest

from distrust.client.fleet import Fleet, FleetOptions
from distrust.client.randomizer import World
from distrust.client.requirements import PrivacyRequirements
from distrust.common.errors import BudgetExceeded, ProtocolError, Refused
from distrust.common.run.round import Round
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import TICKET_KEY, FleetHarness, LyingFleetHarness, serve

MakeRound = Callable[..., Round]


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        pytest.param(PrivacyRequirements(max_epsilon=0.5), Refused, id="one-round"),
        pytest.param(
            PrivacyRequirements(max_epsilon=1.5, max_delta=1e-9, contributions=2), BudgetExceeded, id="several"
        ),
    ],
)
def test_terms_that_a_round_breaks_before_tickets_are_taken_count_for_one_user(
    make_round: MakeRound, world: World, shuffler: Shuffler, terms: PrivacyRequirements, error: type[ProtocolError]
) -> None:
    harness = FleetHarness([make_round("local-laplace-discrete", via="shuffler")], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, terms)
    with pytest.raises(error) as raised:
        serve(fleet)
    report = fleet.stats.report()
    why = f"{error.code}: {raised.value.detail}"
    assert (report["clients"]["refused"], report["clients"]["joined"], report["reasons"]) == (1, 0, {why: 1})


def test_a_fleet_with_a_pin_refuses_any_other_configuration_before_it_takes_tickets(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The configuration and its digest agree with each other, and c is 0: the server had no need to lie further."""
    round_ = make_round("local-laplace-discrete", via="shuffler", corrupt=0.0)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    served, meant = round_.assignments[0].cohort.config, make_round().assignments[0].cohort.config
    fleet = Fleet(harness, world, PrivacyRequirements(config_digest=meant))
    with pytest.raises(Refused) as raised:
        serve(fleet)
    own = f"the digest of run demo is {served.hex()}, and this user takes part in {meant.hex()} only"
    assert raised.value.detail == f"config: {own}"
    assert (fleet.stats.report()["clients"]["joined"], harness.uploads, harness.looks) == (0, [], [])


def test_a_fleet_with_a_pin_plays_the_configuration_that_it_names(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler")
    pinned = PrivacyRequirements(config_digest=round_.assignments[0].cohort.config)
    fleet = Fleet(FleetHarness([round_], shuffler, TICKET_KEY), world, pinned)
    assert serve(fleet) == ["finished"]
    assert fleet.stats.report()["clients"]["served"] == 20


def test_users_that_hold_tickets_when_their_fleet_refuses_are_all_counted(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The shuffler was told another minimum than the 7 users of the first block, who find out with their tickets."""
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    shown = round_.assignments[0].cohort.model_copy(update={"minimum": 1})
    fleet = Fleet(
        LyingFleetHarness(round_, shown, shuffler, TICKET_KEY), world, PrivacyRequirements(), FleetOptions(block=7)
    )
    with pytest.raises(Refused, match=r"the shuffler was told cohort\.minimum = 1") as raised:
        serve(fleet)
    report = fleet.stats.report()
    assert (report["clients"]["refused"], report["clients"]["joined"]) == (7, 7)
    assert report["reasons"] == {f"refused: {raised.value.detail}": 7}
