"""Tests Clopper–Pearson bounds and the choice of events against closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from distrust.lab.audit.verdict import (
    FAMILIES,
    at_least,
    at_most,
    cell,
    choose_events,
    epsilon_at_least,
    fewest_trials,
    largest_bound,
)


def counts(*hits: int) -> np.ndarray:
    return np.array(hits)


@given(st.integers(1, 500), st.data(), st.sampled_from([0.05, 1e-3, 1e-9]))
def test_the_ends_are_where_the_observed_count_becomes_as_rare_as_the_alarm(
    trials: int, data: st.DataObject, alarm: float
) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = at_least(counts(hits), trials, alarm)[0], at_most(counts(hits), trials, alarm)[0]
    assert low <= hits / trials <= high
    if hits:
        assert binom.sf(hits - 1, trials, low) == pytest.approx(alarm, rel=1e-6)
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(alarm, rel=1e-6)


def test_the_bound_is_the_logarithm_of_the_ends() -> None:
    low, high = at_least(counts(700), 1000, 5e-4)[0], at_most(counts(100), 1000, 5e-4)[0]
    result = epsilon_at_least(counts(700), counts(100), 1000, 0.01, 1e-3)[0]
    assert result == pytest.approx(math.log((low - 0.01) / high))


@pytest.mark.parametrize("delta", [0.0, 0.5, 0.9])
def test_equal_counts_show_nothing(delta: float) -> None:
    assert epsilon_at_least(counts(500), counts(500), 1000, delta, 1e-3)[0] == 0


def test_the_best_threshold_is_found_in_both_directions() -> None:
    world0, world1 = np.repeat([0.0, 1, 2], [60, 30, 10]), np.repeat([0.0, 1, 2], [10, 30, 60])
    events = choose_events(world0, world1, 0.0, 0.1)
    assert [event.family for event in events] == [*FAMILIES, *FAMILIES]
    down, up = events[0], events[len(FAMILIES) + 1]
    assert (down.likely, down.hits(world0), down.hits(world1)) == (0, 60, 10)
    assert (up.likely, up.hits(world1), up.hits(world0)) == (1, 60, 10)


def test_an_outcome_between_or_below_the_cells_still_has_one() -> None:
    edges = np.array([0.0, 1.0, 5.0])
    assert cell(edges, np.array([-3.0, 0.5, 4.9, 5.0, 99.0])).tolist() == [0, 0, 1, 2, 2]


def test_continuous_outcomes_are_cut_at_quantiles() -> None:
    rng = np.random.default_rng(1)
    events = choose_events(rng.normal(0, 1, 50_000), rng.normal(1, 1, 50_000), 0.0, 1e-3)
    assert 1000 < events[0].edges.size < 2200
    assert "cells from" in events[0].describe()


@given(st.floats(0, 0.95), st.floats(1e-12, 0.5))
def test_fewest_is_the_least_number_of_trials_that_reaches_above_nothing(delta: float, alarm: float) -> None:
    least = int(fewest_trials(delta, alarm))
    assert largest_bound(least + 1, delta, alarm) > 0  # one more: `least` itself may be lost to rounding at the border
    assert least == 1 or largest_bound(least - 1, delta, alarm) == 0


def test_what_everything_allows_is_never_reached() -> None:
    assert fewest_trials(1.0, 0.001) == math.inf
    assert largest_bound(10**6, 1.0, 0.001) == 0


def test_the_reach_is_the_logarithm_of_the_only_event_there_is() -> None:
    """All of 1000 runs and none of 1000: p = (alarm/2)^(1/1000) at either end."""
    p = (1e-3 / 2) ** (1 / 1000)
    assert largest_bound(1000, 0.0, 1e-3) == pytest.approx(math.log(p / (1 - p)), rel=1e-9)
