"""Tests that a client accepts a searched number exactly while it keeps the configured guarantee, however far it is off.

A lying server plans a whole round with a number of its own: modulus and terms follow from it.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest

from distrust.client.checks.agreement import ROUNDED, check_round
from distrust.client.cohort.randomizer import World
from distrust.client.fleet.fleet import Fleet
from distrust.common.dp.accounting.techniques.searches import _number, _place
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, plan, promise_of
from distrust.common.errors import BadParameter, Refused
from distrust.common.protocol.run.round import Assignment, Round, cohort_terms
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import CONFIGS, RUN_ID, TICKET_KEY, FleetHarness, config_of, serve
from tests.support.limits import lenient

MakeRound = Callable[..., Round]

SEARCHED: dict[str, dict[str, dict[str, Any]]] = {
    "central-gaussian": {"variance": {"delta": 1e-6}},
    "local-gaussian": {"variance": {"delta": 1e-6}},
    "tree": {"variance": {"delta": 1e-6, "batches": 20}},
    "prefix-factorization": {"variance": {"delta": 1e-6, "batches": 20}},
    "distributed-skellam": {"variance": {"delta": 1e-6}},
    "distributed-discrete-gaussian": {"variance": {"delta": 1e-6}},
    "shuffled-binomial": {"chance": {"delta": 5e-4}, "coins": {"delta": 5e-4}},
    "shuffled-laplace": {"local": {"delta": 1e-3}},
    "shuffled-sphere": {"local": {"delta": 1e-3}},
    "shuffled-gaussian": {"variance": {"delta": 1e-3}},
    "relaxed-secagg-shuffle": {"scale": {}, "escape": {}},
}
"""By mechanism, the fields that a search ends with, each with more words of a spec.

They are written out: of a class that lost one, clients on another processor would refuse honest rounds.
"""

EACH = [(name, field, words) for name, fields in SEARCHED.items() for field, words in fields.items()]
RENYI: list[tuple[str, str, dict[str, Any]]] = [
    (name, "variance", {"epsilon": 0.5}) for name in ("distributed-skellam", "distributed-discrete-gaussian")
]
CLIENTS = 60

PAPER: list[tuple[str, str, dict[str, Any]]] = [
    ("central-gaussian", "variance", {"delta": 1e-6, "epsilon": 0.5}),
    ("local-gaussian", "variance", {"delta": 1e-6, "epsilon": 0.5}),
    ("tree", "variance", {"delta": 1e-6, "epsilon": 0.5, "batches": 20}),
    ("distributed-skellam", "variance", {}),
    ("distributed-discrete-gaussian", "variance", {}),
    ("shuffled-binomial", "chance", {"delta": 1e-3}),
    ("shuffled-laplace", "local", {"delta": 1e-3}),
]


def served(round_: Round, **told: float) -> Round:
    """Return the round of a server that ends its search with these numbers and computes the rest honestly."""
    (assignment,), own = round_.assignments, round_.mechanism
    config = CONFIGS[assignment.cohort.run_digest]
    mechanism = plan(
        config.mechanism,
        clients=own.clients,
        min_survivors=config.intermediary.min_survivors(own.clients),
        min_honest=own.floor,
        overflow_probability=own.wrap,
        statistic=round_.statistic,
        stated=told,
    )
    lie = round_.model_copy(update={"mechanism": mechanism})
    cohort = assignment.cohort.model_copy(update={"terms": cohort_terms(lie, assignment.arm, mechanism)})
    return lie.model_copy(update={"assignments": [Assignment(arm=assignment.arm, cohort=cohort)]})


def refusal(round_: Round) -> str | None:
    """Return why a client refuses the round; None where it takes part."""
    try:
        check_round(config_of(round_), RUN_ID, round_, round_.assignments[0])
    except Refused as error:
        return error.detail
    return None


def excess(mechanism: Mechanism) -> float:
    """Return the largest quotient of what the mechanism promises and what it was asked for, less 1."""
    promise, epsilon = promise_of(mechanism), getattr(mechanism, "epsilon", 0.0)
    if promise.rdp and getattr(mechanism, "delta", None) is None:
        return max(2 * one / (order * epsilon**2) for order, one in promise.rdp) - 1
    return (math.inf if promise.epsilon is None else promise.epsilon) / epsilon - 1


def less_noise(number: float, field: str, steps: int) -> float:
    """Return the number so many steps of the grid, or bits, off in the direction of less noise."""
    if isinstance(number, int):
        return number - steps
    return _number(_place(number) + (steps if field == "local" else -steps))


def test_the_numbers_that_clients_may_find_otherwise_are_those_of_a_search() -> None:
    stated = {name: set(kind.searched) for name, kind in MECHANISMS.items() if kind.searched}
    assert stated == {name: set(fields) for name, fields in SEARCHED.items()}


@pytest.mark.parametrize(("name", "field", "words"), [*EACH, *RENYI])
@pytest.mark.few(6)
def test_a_number_with_too_little_noise_is_refused_from_the_first_step_of_the_grid_on(
    make_round: MakeRound, name: str, field: str, words: dict[str, Any]
) -> None:
    """The first number that breaks the promise is found by bisection. Its neighbour with more noise is accepted."""
    honest = make_round(name, clients=CLIENTS, **words)
    number = getattr(honest.mechanism, field)

    def at(steps: int) -> Round:
        return served(honest, **{field: less_noise(number, field, steps)})

    assert refusal(at(0)) is None
    kept, broken = 0, 1
    while refusal(at(broken)) is None:
        kept, broken = broken, 2 * broken
    while broken - kept > 1:
        middle = (kept + broken) // 2
        kept, broken = (middle, broken) if refusal(at(middle)) is None else (kept, middle)
    assert excess(at(kept).mechanism) <= ROUNDED < excess(at(broken).mechanism)
    shown = f"{field} = {less_noise(number, field, broken)!r}"
    assert shown in (refusal(at(broken)) or "").partition(" gives ")[0]


FAR: list[tuple[str, str, Callable[[Any], float]]] = [
    *((name, "variance", lambda number: 1000 * number) for name in SEARCHED if "variance" in SEARCHED[name]),
    ("shuffled-binomial", "chance", lambda number: 1 - number),
    ("shuffled-binomial", "chance", lambda _: 0.5),
    ("shuffled-binomial", "coins", lambda number: number + 1),
    ("shuffled-laplace", "local", lambda number: number / 2),
    ("shuffled-sphere", "local", lambda number: number / 2),
    ("relaxed-secagg-shuffle", "scale", lambda number: number * (1 + 1e-6)),
    ("relaxed-secagg-shuffle", "escape", lambda number: number * (1 - 1e-6)),
]


@pytest.mark.parametrize(("name", "field", "other"), FAR)
def test_a_number_that_keeps_the_promise_is_accepted_however_far_it_is_off(
    make_round: MakeRound, name: str, field: str, other: Callable[[Any], float]
) -> None:
    honest = make_round(name, clients=CLIENTS, **SEARCHED[name][field])
    told = served(honest, **{field: other(getattr(honest.mechanism, field))})
    assert excess(told.mechanism) <= ROUNDED
    assert refusal(told) is None


@pytest.mark.parametrize(
    "change", [{"precision": 9000}, {"modulus": 10**9}, {"wrap": 0.5}, {"floor": 54}, {"high": 2.0}]
)
@pytest.mark.parametrize(("name", "field", "words"), EACH)
def test_more_noise_does_not_cover_another_change(
    make_round: MakeRound, name: str, field: str, words: dict[str, Any], change: dict[str, Any]
) -> None:
    """One client that is told precision 9000 could be read off the sum, with the noise of a true ε = 1."""
    honest = make_round(name, clients=CLIENTS, **words)
    noisier = less_noise(getattr(honest.mechanism, field), field, -1)
    for mechanism in (honest.mechanism, honest.mechanism.model_copy(update={field: noisier})):
        lie = honest.model_copy(update={"mechanism": mechanism.model_copy(update=change)})
        why = refusal(lie) or ""
        assert why.startswith("mechanism")
        assert "the run's configuration gives" in why or "no plan has" in why


@pytest.mark.parametrize("name", ["distributed-skellam", "shuffled-gaussian", "shuffled-laplace"])
def test_the_modulus_of_other_noise_has_the_room_of_that_noise(make_round: MakeRound, name: str) -> None:
    """A server that tells a tenfold noise and the modulus of the honest plan would have sums wrap around."""
    (field,) = SEARCHED[name]
    honest = make_round(name, clients=CLIENTS, **SEARCHED[name][field])
    factor = 0.1 if field == "local" else 100.0
    told = served(honest, **{field: factor * getattr(honest.mechanism, field)})
    assert told.mechanism.modulus > 2 * honest.mechanism.modulus - CLIENTS * honest.mechanism.precision
    small = told.mechanism.model_copy(update={"modulus": honest.mechanism.modulus})
    why = refusal(told.model_copy(update={"mechanism": small})) or ""
    assert why.startswith(f"mechanism.modulus = {honest.mechanism.modulus}: ")


def test_bits_that_hide_more_may_not_make_the_messages_long(make_round: MakeRound) -> None:
    """A search elsewhere ends a bit or a 64th off. Many more bits keep the promise, and cost every client's link."""
    honest = make_round("shuffled-binomial", clients=CLIENTS, delta=5e-4)
    width = honest.mechanism.width
    assert width is not None
    for more in (2, 1000):
        told = served(honest, coins=honest.mechanism.coins + more)  # type: ignore[attr-defined]
        assert excess(told.mechanism) <= 0
        assert refusal(told) == (
            f"mechanism: its messages have {width + more} bits a label, and the run's configuration gives {width}"
        )


@pytest.mark.parametrize(("name", "field", "words"), [*EACH, *RENYI])
@pytest.mark.parametrize("number", [5e-324, 1e-300, 1e-25, 1e-12, 1.0 - 2**-53, 1e12, 1e300])
def test_numbers_that_nothing_can_be_computed_for_are_refused_by_name(
    make_round: MakeRound, name: str, field: str, words: dict[str, Any], number: float
) -> None:
    """Whatever the number, the client ends with a refusal. Where it keeps the promise, terms are of another one."""
    honest = make_round(name, clients=CLIENTS, **words)
    told = honest.mechanism.model_copy(update={field: number if field != "coins" else max(1, int(min(number, 1e9)))})
    why = refusal(honest.model_copy(update={"mechanism": told}))
    assert why is not None
    kept = number > 1e9 or (name == "shuffled-sphere" and number < 1)  # of answers of less ε₀, with the same modulus
    assert why.startswith("mechanism") or (kept and why.startswith("cohort.terms.mechanism"))


def test_numbers_for_which_the_computation_fails_in_whatever_way_are_refused(
    make_round: MakeRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = make_round("central-gaussian", clients=CLIENTS, delta=1e-6)
    told = served(honest, variance=2 * honest.mechanism.variance)  # type: ignore[attr-defined]

    def fails(_mechanism: object) -> None:
        raise IndexError("index 0 is out of bounds")

    monkeypatch.setattr("distrust.client.checks.agreement.promise_of", fails)
    why = refusal(told) or ""
    assert why.startswith("mechanism: nothing is known of the privacy of variance = ")
    assert why.endswith("index 0 is out of bounds")


@pytest.mark.parametrize(("name", "field", "words"), PAPER)
def test_paper_numbers_are_those_of_the_formula_but_for_the_rounding_of_doubles(
    make_round: MakeRound, name: str, field: str, words: dict[str, Any]
) -> None:
    """`paper` promises the noise that is printed: neither less, nor more."""
    honest = make_round(name, clients=CLIENTS, calibration="paper", **words)
    number = getattr(honest.mechanism, field)
    for end in (0.0, math.inf):
        assert refusal(served(honest, **{field: math.nextafter(number, end)})) is None
    for factor in (1 - 1e-13, 1 + 1e-13, 0.5, 1.5):
        try:
            told = served(honest, **{field: factor * number})
        except BadParameter:
            continue  # it is no number of the field
        assert (refusal(told) or "").startswith(f"mechanism.{field} = {factor * number!r}: the run's configuration")


def test_a_fleet_plays_the_round_of_a_server_whose_search_ended_220_steps_away(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """So far apart two processors planned one p. The fleet refused, and the run hung."""
    honest = make_round("shuffled-binomial", clients=CLIENTS, delta=5e-4)
    chance = less_noise(honest.mechanism.chance, "chance", -220)  # type: ignore[attr-defined]
    harness = FleetHarness([served(honest, chance=chance)], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient())
    assert serve(fleet) == ["finished"]
    report = fleet.stats.report()
    assert (report["clients"]["refused"], report["clients"]["served"]) == (0, CLIENTS)


def test_a_fleet_refuses_the_round_of_a_server_whose_noise_is_a_step_too_little(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    honest = make_round("shuffled-binomial", clients=CLIENTS, delta=5e-4)
    chance = less_noise(honest.mechanism.chance, "chance", 1)  # type: ignore[attr-defined]
    harness = FleetHarness([served(honest, chance=chance)], shuffler, TICKET_KEY)
    with pytest.raises(Refused, match=f"chance = {chance!r}, coins = .* gives ε = 1.0000"):
        serve(Fleet(harness, world, lenient()))
    assert harness.uploads == []
