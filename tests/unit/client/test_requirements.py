"""Tests that a user refuses whatever weakens its stated privacy."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.fleet.settings import FleetSettings
from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.statistics import Reward
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.mechanisms import MECHANISMS, MechanismSpec, plan, promise_of
from distrust.common.errors import BudgetExceeded, Refused
from distrust.common.modular import packed_size
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, cohort_terms
from tests.support.fleet_harness import RUN_ID, config_of
from tests.support.limits import lenient

MakeRound = Callable[..., Round]


def config(round_: Round) -> RunConfig:
    return config_of(round_)


def _check(terms: PrivacyRequirements, round_: Round) -> None:
    terms.check(config(round_), RUN_ID, round_, round_.assignments[0])


def _with_cohort(round_: Round, **changes: Any) -> Round:
    cohort = round_.assignments[0].cohort.model_copy(update=changes)
    return round_.model_copy(update={"assignments": [Assignment(arm=0, cohort=cohort)]})


def _with_channel(round_: Round, **changes: Any) -> Round:
    return _with_cohort(round_, channel=round_.assignments[0].cohort.channel.model_copy(update=changes))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("distributed-polya", {}),
        ("distributed-skellam", {}),
        ("local-laplace-discrete", {"via": "shuffler"}),
        ("shuffled-binomial", {"delta": 1e-6}),
    ],
)
def test_an_honest_round_is_accepted(make_round: MakeRound, name: str, more: dict[str, Any]) -> None:
    _check(lenient(min_survivors=16), make_round(name, **more))


def test_a_weaker_guarantee_than_the_users_own_is_refused(make_round: MakeRound) -> None:
    _check(lenient(max_epsilon=1.0), make_round())
    with pytest.raises(Refused, match=r"ε = 1 is above this user's 0\.99"):
        _check(lenient(max_epsilon=0.99), make_round())
    with pytest.raises(Refused, match=r"ε = 1 is above this user's 0\.99999998;"):  # never "1 is above 1"
        _check(lenient(max_epsilon=1 - 2e-8), make_round())


def test_a_larger_delta_than_the_users_own_is_refused(make_round: MakeRound) -> None:
    round_ = make_round("shuffled-binomial", delta=1e-3)
    _check(lenient(max_delta=1e-3), round_)
    for smaller in (1e-4, 1e-3 * (1 - 1e-6)):
        with pytest.raises(Refused, match=r"δ = 0\.001 is above this user's 0\.000"):
            _check(lenient(max_delta=smaller), round_)


def test_a_floor_below_the_users_own_is_refused(make_round: MakeRound) -> None:
    with pytest.raises(Refused, match="counts on 16 survivors, and this user on 17"):
        _check(lenient(min_survivors=17), make_round())


SPREAD = [name for name, kind in MECHANISMS.items() if kind.model in {"distributed", "shuffle"}]
OTHERS = [name for name, kind in MECHANISMS.items() if kind.model in {"local", "central"}]


def _round(make_round: MakeRound, name: str, clients: int, delta: float, **spec: Any) -> Round:
    """Return a round of a cohort that survives no loss, so that its floor is its size."""
    kind = MECHANISMS[name]
    words = {"delta": delta} if kind.takes_delta else {}
    words |= {"batches": 4} if MECHANISMS[name].takes_batches else {}
    return make_round(name, clients=clients, dropout=0.0, corrupt=0.0, via=kind.vias[0], **words, **spec)


SLOW = "relaxed-secagg-shuffle"  # its small cohorts take half a minute to plan


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == SLOW else []) for name in SPREAD]
)
@pytest.mark.few(3)
def test_without_limits_of_its_own_a_user_wants_fifty_survivors_where_others_make_the_noise(
    name: str, make_round: MakeRound
) -> None:
    _check(PrivacyRequirements(), _round(make_round, name, 50, 1e-5))
    told = r"counts on 49 survivors, and this user on 50; \[budget\] of the run file .* DISTRUST_MIN_SURVIVORS"
    with pytest.raises(Refused, match=told):
        _check(PrivacyRequirements(), _round(make_round, name, 49, 1e-5))
    _check(PrivacyRequirements(min_survivors=49), _round(make_round, name, 49, 1e-5))
    _check(PrivacyRequirements(allow_unsafe=True), _round(make_round, name, 2, 1e-5))


@pytest.mark.parametrize("name", [name for name in SPREAD if MECHANISMS[name].takes_delta == "needed"])
def test_without_limits_of_its_own_a_user_wants_a_small_delta_where_others_make_the_noise(
    name: str, make_round: MakeRound
) -> None:
    with pytest.raises(Refused, match=r"δ = 1\.1e-05 is above this user's 1e-05"):
        _check(PrivacyRequirements(), _round(make_round, name, 64, 1.1e-5))
    _check(PrivacyRequirements(max_delta=1.1e-5), _round(make_round, name, 64, 1.1e-5))


@pytest.mark.parametrize("delta", [None, 0.0099])
def test_a_sum_of_two_clients_with_hardly_any_privacy_is_refused(delta: float | None, make_round: MakeRound) -> None:
    words = {"name": "distributed-polya"} if delta is None else {"name": "shuffled-binomial", "delta": delta}
    with pytest.raises(Refused, match="counts on 2 survivors"):
        _check(PrivacyRequirements(), make_round(clients=2, dropout=0.0, corrupt=0.0, epsilon=9.9, **words))


@pytest.mark.parametrize("name", OTHERS)
def test_users_whose_noise_is_their_own_or_the_servers_take_part_in_small_cohorts(
    name: str, make_round: MakeRound
) -> None:
    _check(PrivacyRequirements(), _round(make_round, name, 2, 9e-3))


@pytest.mark.parametrize("name", ["shuffled-binomial", "shuffled-gaussian", "shuffled-laplace", "shuffled-sphere"])
def test_a_cohort_of_one_client_keeps_the_limits_of_a_clients_own_noise(name: str, make_round: MakeRound) -> None:
    _check(PrivacyRequirements(), _round(make_round, name, 1, 9e-3))


def test_what_one_client_more_or_less_changes_is_what_the_page_on_survivors_says() -> None:
    page = (Path(__file__).parents[3] / "docs/concepts/privacy/survivors.md").read_text("utf-8")
    rows = re.findall(r"^  \| `([a-z-]+)`.*missing \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == ["distributed-polya", "distributed-discrete-gaussian", "shuffled-binomial"]
    for name, cells in rows:
        for min_honest, cell in zip((2, 10, 50, 200), cells.split("|"), strict=True):
            assert f"{_left(name, min_honest, 1):.3f}" == cell.strip()
    assert [f"{_left('distributed-polya', min_honest, min_honest // 10):.3f}" for min_honest in (50, 200)] == [
        "1.167",
        "1.176",
    ]
    assert all(number in page for number in ("1.167", "1.176"))


def _left(name: str, min_honest: int, missing: int) -> float:
    """Return ε of a cohort that promised 1 at this floor, when so many of its clients make no noise."""
    spec = MechanismSpec.model_validate(
        {"name": name, "epsilon": 1.0, "delta": 1e-5 if MECHANISMS[name].takes_delta else None}
    )
    mechanism = plan(
        spec,
        clients=min_honest,
        min_survivors=min_honest,
        min_honest=min_honest,
        overflow_probability=1e-9,
        statistic=Reward(),
    )
    return mechanism.privacy(colluders=missing).promise.epsilon or math.inf


def test_a_round_without_privacy_needs_a_user_that_allows_it(make_round: MakeRound) -> None:
    with pytest.raises(Refused, match="no privacy"):
        _check(lenient(), make_round("identity"))
    _check(lenient(allow_unsafe=True), make_round("identity"))


def test_even_an_unsafe_user_insists_on_its_floor(make_round: MakeRound) -> None:
    with pytest.raises(Refused, match="counts on"):
        _check(lenient(min_survivors=17, allow_unsafe=True), make_round("identity"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"clients": 40}, r"cohort\.clients = 40: .* mechanism\.clients = 20", id="inflated-n"),
        pytest.param({"minimum": 15}, r"cohort\.minimum = 15: .* gives 18", id="opens-early"),
        pytest.param({"round": 2}, r"cohort\.round = 2: the round says round\.number = 1", id="another-round"),
        pytest.param({"run": "other"}, r"cohort\.run = 'other'", id="another-run"),
    ],
)
def test_a_cohort_that_contradicts_its_round_is_refused(
    make_round: MakeRound, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        _check(lenient(), _with_cohort(make_round(), **changes))


@pytest.mark.parametrize("changes", [{"neighbours": 2}, {"threshold": 1}])
def test_a_thinner_graph_or_a_lower_threshold_is_refused(make_round: MakeRound, changes: dict[str, int]) -> None:
    with pytest.raises(Refused, match=r"cohort\.channel\.(neighbours|threshold) = "):
        _check(lenient(), _with_channel(make_round(), **changes))


@pytest.mark.parametrize(
    ("name", "more", "changes"),
    [
        pytest.param("distributed-polya", {}, {"modulus": 7}, id="modulus"),
        pytest.param("distributed-polya", {}, {"dimension": 2}, id="dimension"),
        pytest.param("local-laplace-discrete", {"via": "shuffler"}, {"size": 9}, id="size"),
        pytest.param("shuffled-binomial", {"delta": 1e-6}, {"width": 1}, id="width"),
    ],
)
def test_a_channel_that_does_not_fit_the_mechanism_is_refused(
    make_round: MakeRound, name: str, more: dict[str, Any], changes: dict[str, int]
) -> None:
    with pytest.raises(Refused, match="does not fit"):
        _check(lenient(), _with_channel(make_round(name, **more), **changes))


def test_labelled_bits_may_not_travel_as_another_channel(make_round: MakeRound) -> None:
    bits, records = make_round("shuffled-binomial", delta=1e-6), make_round("local-laplace-discrete", via="shuffler")
    swapped = _with_cohort(bits, channel=records.assignments[0].cohort.channel)
    with pytest.raises(Refused, match="does not fit"):
        _check(lenient(), swapped)


@pytest.mark.parametrize("name", ["distributed-polya", "distributed-skellam", "central-laplace-discrete"])
def test_a_share_of_noise_that_counts_on_a_sum_is_never_sealed_to_the_server_alone(
    make_round: MakeRound, name: str
) -> None:
    """A client's own share of the noise is next to nothing: the server would read single records almost in clear."""
    round_ = make_round(name)
    size = packed_size(round_.mechanism.modulus, 1)
    records = make_round("local-laplace-discrete", via="shuffler").assignments[0].cohort.channel
    with pytest.raises(Refused, match=r"via the aggregator, and cohort demo\.1\.0\.1 is served by the shuffler"):
        _check(lenient(), _with_cohort(round_, channel=records.model_copy(update={"size": size})))


def test_noise_that_counts_on_the_clients_who_may_collude_is_refused(make_round: MakeRound) -> None:
    """18 of 20 are sure to answer and 2 may collude: the noise of 16 must do, and a server may not count on 17."""
    round_ = make_round()
    spread = round_.mechanism.model_copy(update={"floor": 17})
    with pytest.raises(Refused, match=r"mechanism\.floor = 17: .* gives 16"):
        _check(lenient(), round_.model_copy(update={"mechanism": spread}))


def test_noise_spread_over_more_clients_than_the_user_believes_in_is_refused(make_round: MakeRound) -> None:
    """An inflated n: with a thousand invented clients the few real ones would add a hundredth of the noise."""
    _check(lenient(max_survivors=16), make_round())
    with pytest.raises(Refused, match="spreads its noise over 800 survivors, and this user believes in 16 at most"):
        _check(lenient(max_survivors=16), make_round(clients=1000))


def test_a_round_that_leaves_too_little_if_all_others_collude_is_refused_by_the_limit_that_is_set(
    make_round: MakeRound,
) -> None:
    """ε = 1 of 20 clients is ε = 5.37 of one alone: the noise of its own device is all that a client can count on."""
    round_ = make_round()
    left = promise_of(round_.mechanism, alone=True).epsilon
    assert left == pytest.approx(5.366, abs=0.001)
    _check(lenient(max_epsilon_alone=left), round_)
    _check(lenient(max_epsilon_alone=2 * left, max_epsilon=2.0, contributions=2), round_)
    with pytest.raises(
        Refused, match=rf"if all other clients collude, ε = {left:.4g}.*DISTRUST_MAX_EPSILON_ALONE"
    ) as no:
        _check(lenient(max_epsilon_alone=left * (1 - 1e-6)), round_)
    assert no.value.extra["limit"] == "max_epsilon_alone"
    with pytest.raises(Refused, match="if all other clients collude, ε = "):
        _check(lenient(max_epsilon_alone=2 * left * (1 - 1e-6), max_epsilon=2.0, contributions=2), round_)
    bits = make_round("shuffled-binomial", delta=1e-6)
    with pytest.raises(Refused, match="if all other clients collude, no guarantee is left, and this user accepts 50"):
        _check(lenient(max_epsilon_alone=50.0), bits)
    _check(lenient(max_epsilon_alone=50.0, allow_unsafe=True), bits)


def test_what_is_left_is_no_condition_of_a_user_that_sets_no_limit(make_round: MakeRound) -> None:
    assert FleetSettings(environment="{}").requirements() == PrivacyRequirements()
    for name, words in (("distributed-polya", {}), ("shuffled-binomial", {"delta": 1e-6})):
        _check(lenient(), make_round(name, **words))


@pytest.mark.parametrize("name", OTHERS)
def test_rounds_that_count_on_no_other_client_leave_their_guarantee(make_round: MakeRound, name: str) -> None:
    round_ = _round(make_round, name, 4, 1e-3)
    epsilon = promise_of(round_.mechanism).epsilon
    assert epsilon is not None
    _check(lenient(max_epsilon_alone=epsilon), round_)
    with pytest.raises(Refused, match="if all other clients collude"):
        _check(lenient(max_epsilon_alone=0.9 * epsilon), round_)


def test_a_returning_user_refuses_what_would_overdraw_its_own_budget(make_round: Callable[..., Round]) -> None:
    """ε = 1 a round: three of them are ε = 3, and a fourth is too much. Terms are read before anything is sent."""
    _check(lenient(max_epsilon=3.0, contributions=3), make_round())
    _check(lenient(max_epsilon=3.0, max_delta=1.0, contributions=3), make_round())
    with pytest.raises(BudgetExceeded, match="4 contributions"):
        _check(lenient(max_epsilon=3.0, max_delta=1e-9, contributions=4), make_round())


def test_a_returning_user_adds_up_rounds_of_different_kinds(make_round: MakeRound) -> None:
    """Twice the one costs ε = 2, twice the other 1.93, and once each 2.2: pure ε joins no Rényi curve for nothing."""
    terms = lenient(max_epsilon=2.0, max_delta=1e-6, contributions=2)
    rounds = [make_round(), make_round("distributed-skellam", epsilon=1.2, delta=1e-6)]
    for first, then in (rounds, rounds[::-1]):
        agreed = [terms.check(config(first), RUN_ID, first, first.assignments[0])]
        assert terms.check(config(first), RUN_ID, first, first.assignments[0], agreed) == agreed[0]
        with pytest.raises(BudgetExceeded, match="2 contributions"):
            terms.check(config(then), RUN_ID, then, then.assignments[0], agreed)


def test_a_renyi_guarantee_is_read_at_the_users_own_delta(make_round: MakeRound) -> None:
    """It is shown at 1e-6 and holds at every δ: at 1e-9 it costs ε = 6.01 instead of 4.98."""
    round_ = make_round("distributed-skellam")
    assert round_.mechanism.privacy().promise.kind == "renyi"
    _check(lenient(max_epsilon=7.0, max_delta=1e-9), round_)
    with pytest.raises(Refused, match=r"ε = \d\.\d+ is above this user's 5\.5"):
        _check(lenient(max_epsilon=5.5, max_delta=1e-9), round_)
    with pytest.raises(Refused, match="δ = 1e-06 is above this user's 0"):
        _check(lenient(max_delta=0.0), round_)


def test_a_budget_admits_by_what_is_proven_at_its_delta_and_only_users_that_allow_all_of_it(
    make_round: MakeRound,
) -> None:
    """Its mechanism states δ = 1e-3, and its law proves ε = 1.285 at δ = 1e-4 for one cohort."""
    mechanism = make_round("shuffled-binomial", delta=1e-3).mechanism
    limits = lenient(max_epsilon=2.0, max_delta=1e-4)
    proven = limits.cost(mechanism, budget=BudgetSpec(epsilon=2.0, delta=1e-4)).once(1e-4)
    assert (proven.kind, proven.delta) == ("approximate", 1e-4)
    assert proven.epsilon == pytest.approx(1.285, abs=1e-3)
    for budget in (None, BudgetSpec(epsilon=2.1, delta=1e-4), BudgetSpec(epsilon=2.0, delta=2e-4)):
        with pytest.raises(Refused, match=r"δ = 0\.001 is above this user's 0\.0001"):
            limits.cost(mechanism, budget=budget)
    tight = lenient(max_epsilon=1.1, max_delta=1e-4)
    with pytest.raises(Refused, match=r"ε = 1\.\d+ is above this user's 1\.1"):
        tight.cost(mechanism, budget=BudgetSpec(epsilon=1.1, delta=1e-4))
    identity = make_round("identity").mechanism
    with pytest.raises(Refused, match="no privacy"):
        limits.cost(identity, budget=BudgetSpec(epsilon=2.0, delta=1e-4))


@pytest.mark.parametrize("name", ["local-laplace-discrete", "shuffled-laplace", "shuffled-sphere"])
def test_an_honest_deal_is_accepted(make_assigned: MakeRound, name: str) -> None:
    _check(lenient(), make_assigned(name, **({"delta": 1e-6} if name.startswith("shuffled") else {})))


def test_noise_that_is_not_said_to_be_for_dealt_actions_is_refused_for_them(make_assigned: MakeRound) -> None:
    round_ = make_assigned("shuffled-laplace", delta=1e-6)
    with pytest.raises(Refused, match=r"mechanism\.dealt = False"):
        _check(lenient(), round_.model_copy(update={"mechanism": round_.mechanism.model_copy(update={"dealt": False})}))


def test_actions_dealt_from_a_seed_need_a_user_that_allows_it(make_assigned: MakeRound) -> None:
    _check(lenient(allow_unsafe=True), make_assigned(seed=7))
    with pytest.raises(Refused, match="dealt from a seed"):
        _check(lenient(), make_assigned(seed=7))


def test_bits_by_label_carry_no_assigned_actions(make_assigned: MakeRound) -> None:
    with pytest.raises(Refused, match=r"cohort\.channel\.kind = 'bits'.* whose decision is assigned-action"):
        _check(lenient(max_delta=0.1), make_assigned("shuffled-binomial", delta=1e-3))


def test_a_deal_that_is_not_the_rounds_is_refused(make_round: MakeRound, make_assigned: MakeRound) -> None:
    """Another list; a list where all clients play one arm; no list where actions are to be hidden."""
    round_, open_to_all = make_assigned(), make_round("local-laplace-discrete", via="shuffler")
    other = AssignedAction(actions=[0, 1, 2], times=[6, 8, 6])
    for broken in (
        round_.model_copy(update={"decision": other}),
        round_.model_copy(update={"decision": open_to_all.decision}),
        open_to_all.model_copy(update={"decision": round_.decision}),
    ):
        with pytest.raises(Refused, match="decision"):
            _check(lenient(), broken)


@pytest.mark.parametrize("times", [[10, 6, 4], [4, 6, 10]])
def test_a_cohort_that_assigns_other_actions_than_its_round_is_refused(
    make_assigned: MakeRound, times: list[int]
) -> None:
    """The round and the terms say one list, so that only the comparison with the channel's own list finds another."""
    round_ = make_assigned()
    cohort = round_.assignments[0].cohort
    other = AssignedAction(actions=[0, 1, 2], times=times)
    assert other != round_.decision
    moved = cohort.model_copy(update={"channel": cohort.channel.model_copy(update={"deal": other})})
    with pytest.raises(Refused, match=r"cohort\.channel\.deal.* does not fit its round"):
        _check(lenient(), round_.model_copy(update={"assignments": [Assignment(cohort=moved)]}))


def test_a_deal_must_have_a_play_for_each_slot(make_assigned: MakeRound) -> None:
    round_ = make_assigned()
    retold = round_.model_copy(update={"decision": AssignedAction(actions=[0, 1], times=[9, 9])})
    cohort = round_.assignments[0].cohort
    channel = cohort.channel.model_copy(update={"deal": retold.decision})
    shown = {"channel": channel, "terms": cohort_terms(retold, None, round_.mechanism)}
    assignment = Assignment(cohort=cohort.model_copy(update=shown))
    with pytest.raises(Refused, match="deal = 18: its times must add up to clients = 20"):
        _check(lenient(), retold.model_copy(update={"assignments": [assignment]}))


def test_what_is_proven_for_a_whole_sum_is_not_opened_by_action(make_assigned: MakeRound) -> None:
    round_ = make_assigned("shuffled-gaussian", delta=1e-3)
    with pytest.raises(Refused, match="protects a whole sum"):
        _check(lenient(), round_)
