"""Tests of each party's view of one flipped reward: its laws are those of the messages and sums that travel."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.dp.accounting.profile import SHOWN_DELTA, response_epsilon
from distrust.common.dp.calculator.compare import suited
from distrust.common.dp.calculator.flip import FlipView, binned, flip_views, law_pair_epsilon, noise_law
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism
from distrust.common.dp.mechanisms.families.grid import GridMechanism, Randomness
from distrust.common.dp.mechanisms.local.additive import LocalLaplaceDiscrete
from distrust.common.dp.noise.law import Pmf
from distrust.common.randomness import UnsafeSeededStream
from tests.support.laws import chi_square

QUERY = PrivacyQuery(clients=300, epsilon=1.0, delta=1e-6, batches=64, dropout=0.1, corrupt=0.1)
DRAWS = 20_000
FALSE_ALARM = 1e-6  # of one chi-square test; 32 of them, and the streams have fixed seeds


def calibrated(name: str, query: PrivacyQuery = QUERY) -> GridMechanism:
    result = suited(query, name).planned(name, "exact")
    assert isinstance(result, GridMechanism)
    return result


def by_party(mechanism: Mechanism) -> dict[str, FlipView]:
    return {view.party: view for view in flip_views(mechanism)}


class Stored:
    """A law that is stored already."""

    def __init__(self, pmf: Pmf) -> None:
        self.stored = pmf

    def pmf(self) -> Pmf:
        return self.stored


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_law_of_a_message_is_that_of_the_messages_that_clients_send(name: str) -> None:
    mechanism = calibrated(name)
    for high in (False, True):
        vectors = np.full((DRAWS, 1), 1.0 if high else 0.0)
        rows = mechanism.randomize(vectors, UnsafeSeededStream(5, name, str(high)))[:, 0].astype(np.int64)
        law = mechanism.message_law(high=high)
        assert law is not None
        assert law.masses.sum() == pytest.approx(1, abs=1e-9)
        numbers = rows if mechanism.width else np.where(rows > mechanism.modulus // 2, rows - mechanism.modulus, rows)
        if law.logs.size == 1:
            assert (numbers == law.first).all()
        else:
            stored = Stored(law)
            assert chi_square(stored, numbers) > FALSE_ALARM  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_party_has_a_view_and_none_claims_more_than_the_promise(name: str) -> None:
    mechanism = calibrated(name)
    views = flip_views(mechanism)
    assert [view.party for view in views] == ["client", mechanism.via, "server", "everyone"]
    promise = mechanism.privacy().promise
    for view in views[2:]:
        if view.epsilon is not None:
            assert (view.epsilon, view.delta, view.how) == (promise.epsilon, promise.delta, "bound")
            if view.laws is not None:  # they are no more than what the promise counts
                assert law_pair_epsilon(*view.laws, view.delta or SHOWN_DELTA) <= view.epsilon * (1 + 1e-9)
        else:
            assert view.change == "everything"


@pytest.mark.parametrize("name", MECHANISMS)
def test_of_a_vector_no_view_claims_an_epsilon_of_one_coordinate(name: str) -> None:
    query = replace(QUERY, epsilon=4.0, dimension=8, norm="l2", low=-1.0)
    mechanism = calibrated(name, query)
    promise = mechanism.privacy().promise
    for view in flip_views(mechanism):
        assert view.change == "nothing" or view.epsilon in {None, promise.epsilon}


@pytest.mark.parametrize("name", ["distributed-skellam", "distributed-discrete-gaussian", "shuffled-binomial"])
def test_where_only_a_sum_is_released_its_two_laws_lie_exactly_the_promise_apart(name: str) -> None:
    server = by_party(calibrated(name))["server"]
    assert server.laws is not None
    assert server.epsilon == pytest.approx(law_pair_epsilon(*server.laws, server.delta), rel=1e-9)


def test_a_sealed_shuffler_sees_one_law_whatever_the_reward() -> None:
    view = by_party(calibrated("shuffled-laplace"))["shuffler"]
    assert (view.change, view.laws, view.epsilon) == ("nothing", None, 0.0)


@pytest.mark.parametrize("name", [name for name, kind in MECHANISMS.items() if kind.vias[0] == "aggregator"])
def test_the_aggregator_sees_the_sum_as_the_server_does_and_of_a_masked_number_nothing(name: str) -> None:
    views = by_party(calibrated(name))
    aggregator, server = views["aggregator"], views["server"]
    seen = ("change", "laws", "step", "center", "epsilon", "delta", "how")
    assert [getattr(aggregator, one) for one in seen] == [getattr(server, one) for one in seen]
    assert "uniform modulo m with either reward" in aggregator.stays
    assert ("trust the aggregator, too" in aggregator.why) == (server.change == "everything")


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_view_says_what_stays_the_same(name: str) -> None:
    for view in flip_views(calibrated(name)):
        assert view.stays.endswith(".")
        assert (view.change == "nothing") == view.stays.startswith("All of it")


def test_a_shuffler_of_bits_sees_the_message_itself() -> None:
    views = by_party(calibrated("shuffled-binomial"))
    assert views["shuffler"].laws is views["client"].laws
    assert views["shuffler"].change == "law"
    assert "trust this shuffler" in views["shuffler"].why


def test_the_server_of_a_central_mechanism_sees_the_reward_and_readers_do_not() -> None:
    views = by_party(calibrated("central-laplace-discrete"))
    assert (views["server"].change, views["server"].epsilon) == ("everything", None)
    assert (views["everyone"].change, views["everyone"].epsilon) == ("law", 1.0)


def test_without_a_mechanism_every_reader_sees_the_reward() -> None:
    views = by_party(calibrated("identity"))
    assert {views[party].change for party in ("client", "server", "everyone")} == {"everything"}
    assert views["everyone"].epsilon is None


def test_a_local_sum_has_the_noise_of_all_its_clients() -> None:
    mechanism = calibrated("local-laplace-discrete").model_copy(update={"via": "aggregator"})
    law = noise_law(mechanism)
    assert law is not None
    variance = float(law.masses @ law.support**2)
    own = mechanism.client_law()
    assert own is not None
    assert variance == pytest.approx(mechanism.floor * own.std**2, rel=1e-9)


def test_continuous_noise_has_no_picture_and_says_so() -> None:
    mechanism = calibrated("local-laplace", replace(QUERY, noise="continuous"))
    client = by_party(mechanism)["client"]
    assert (client.change, client.laws) == ("unknown", None)
    assert "no law on the integers" in client.why


def test_a_class_that_makes_messages_in_a_way_of_its_own_has_no_law_unless_it_states_one() -> None:
    class Doubled(LocalLaplaceDiscrete):
        def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
            return 2 * super().randomize_with(vectors, randomness)

    known = calibrated("local-laplace-discrete")
    doubled = Doubled.model_validate(known.model_dump())
    assert known.message_law(high=True) is not None
    assert doubled.message_law(high=True) is None
    assert by_party(doubled)["client"].change == "unknown"


def test_the_distance_of_two_coins_is_that_of_randomized_response() -> None:
    for epsilon, delta in ((1.0, 1e-6), (0.1, 0.01), (5.0, 1e-12)):
        heads = 1 / (1 + math.exp(-epsilon))
        coins = [Pmf(0, np.log([p, 1 - p]), 0.0) for p in (heads, 1 - heads)]
        assert law_pair_epsilon(coins[0], coins[1], delta) == pytest.approx(response_epsilon(epsilon, delta), rel=1e-8)
    apart = [Pmf(place, np.zeros(1), 0.0) for place in (0, 7)]
    assert law_pair_epsilon(apart[0], apart[1], 1e-6) == math.inf


@pytest.mark.parametrize("name", ["distributed-polya", "central-gaussian", "identity", "shuffled-binomial"])
@pytest.mark.parametrize("most", [7, 240])
def test_the_intervals_of_a_picture_hold_the_laws_exact_probabilities(name: str, most: int) -> None:
    laws = by_party(calibrated(name))["everyone" if name != "identity" else "client"].laws
    assert laws is not None
    bins = binned(laws, most)
    assert {masses.size for masses in bins.masses} == {len(bins.masses[0])}
    assert len(bins.masses[0]) <= most
    for law, masses in zip(laws, bins.masses, strict=True):
        by_number = dict(zip(law.support.tolist(), law.masses.tolist(), strict=True))
        for i, mass in enumerate(masses):
            start = bins.first + i * bins.width
            exact = math.fsum(by_number.get(start + j, 0.0) for j in range(bins.width))
            assert mass == pytest.approx(exact, rel=1e-12, abs=1e-300)
        assert 1 - 3e-4 <= masses.sum() <= 1 + 1e-9
