"""The ledger of a run: what its clients have spent, and a budget that they never overdraw. Spending gives a new ledger.

What a client has spent depends on how often it took part: once, twice, … up to `contributions` times. Rounds with
disjoint clients compose in parallel, one client's own contributions in sequence. Contributions to one stream, whose
batches share noise, are one release: the stream says what they cost together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from distrust.common.dp.accounting.composition import ADAPTIVE, compose, without_privacy
from distrust.common.dp.accounting.guarantee import BudgetSpec, Guarantee, Kind
from distrust.common.dp.accounting.profile import BatchStream, Repeated
from distrust.common.errors import BadParameter, BudgetExceeded

UNIQUE = "every client takes part in one cohort of the run"
OWN = "what each round assumes of its own cohorts holds; the ledger has it round by round"
RETURNING = "every client takes part in at most {} cohorts of the run"

BUDGET_ROUNDING = 1e-9
"""Relative difference up to which a computed ε is within a budget."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One round.

    guarantee  what each of its `cohorts` cost the clients that took part in that cohort.
    streams    where its cohorts are batches of streams: of each stream, what several batches of it cost.
    laws       of each of its mechanisms, what several releases cost by their law; empty where one has no such law.
    """

    label: str
    clients: int
    cohorts: int
    guarantee: Guarantee
    streams: tuple[BatchStream, ...] = ()
    laws: tuple[Repeated, ...] = ()

    def once(self, delta: float) -> Guarantee:
        """Return what one of its cohorts costs at δ in [0, 1); of kind "none" where nothing is proven there."""
        return _once(self.guarantee, self.streams, self.laws, delta)


@dataclass(frozen=True, slots=True)
class PrivacyLedger:
    """The rounds so far, and what they cost. Only `spend` adds a round.

    contributions  R: one client takes part in at most so many cohorts.
    budget         what one client may spend in all; None: no budget was declared.
    """

    contributions: int = 1
    budget: BudgetSpec | None = None
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        if self.contributions < 1:
            raise BadParameter("contributions", self.contributions, "must be at least 1")

    def spend(self, entry: Entry) -> "PrivacyLedger":
        """Return the ledger with one more entry. Raises BudgetExceeded if a client that comes R times would overdraw.

        All R contributions count at the weakest guarantee so far. So every client can carry out an admitted plan to the
        end, and a hopeless plan is refused before its first client.
        """
        after = replace(self, entries=(*self.entries, entry))
        if self.budget is not None:
            after.check(self.budget)
        return after

    def check(self, budget: BudgetSpec) -> None:
        """Raise BudgetExceeded unless R contributions, at the weakest guarantee so far, stay within a budget."""
        weakest = parallel([entry.guarantee for entry in self.entries])
        if self.contributions == 1 and within(weakest, budget):
            return
        spent = self._several(weakest, self.contributions, budget.delta)
        if not within(spent, budget):
            raise BudgetExceeded(spent.epsilon, self.contributions, budget.epsilon, budget.delta)

    def of(self, times: int) -> Guarantee:
        """Return what a client that took part `times` times so far has spent at most.

        Every time counts at the weakest guarantee. The ledger must have an entry.
        """
        # No client can have taken part more often than there were cohorts.
        weakest = parallel([entry.guarantee for entry in self.entries])
        most = min(times, self._cohorts)
        return _assuming(self._stated(weakest, most), self.contributions)

    @property
    def total(self) -> Guarantee:
        """Return the most that any client has spent."""
        return self.of(self.contributions)

    @property
    def classes(self) -> dict[int, Guarantee]:
        """Return what clients have spent at most, by the times that they took part: 1, 2, 4, … and the most possible.

        The ledger must have an entry.
        """
        most = min(self.contributions, self._cohorts)
        powers = [2**i for i in range(most.bit_length()) if 2**i < most]
        return {times: self.of(times) for times in (*powers, most)}

    @property
    def _cohorts(self) -> int:
        return sum(entry.cohorts for entry in self.entries)

    def _stated(self, weakest: Guarantee, times: int) -> Guarantee:
        """Return what `times` contributions cost: one that is within the budget as its mechanism states it.

        All else at the budget's δ, by which `check` admits; without a budget, and where an overdrawn ledger has nothing
        that is proven at its δ, at the δ to which the releases' own add up.
        """
        if self.budget is None or (times == 1 and within(weakest, self.budget)):
            return self._several(weakest, times, None)
        at_budget = self._several(weakest, times, self.budget.delta)
        if not within(at_budget, self.budget):
            # A client that comes less often is in fewer of the releases: what holds for all R contributions holds here.
            admitted = self._several(weakest, self.contributions, self.budget.delta)
            at_budget = admitted if within(admitted, self.budget) else at_budget
        return self._several(weakest, times, None) if at_budget.kind == "none" else at_budget

    @property
    def _streams(self) -> frozenset[BatchStream]:
        return frozenset(stream for entry in self.entries for stream in entry.streams)

    @property
    def _law(self) -> Repeated | None:
        """Return the law of all releases so far, or None where one has none, or none is known of all together."""
        if not all(entry.laws for entry in self.entries):
            return None
        first, *others = dict.fromkeys(law for entry in self.entries for law in entry.laws)
        joined: Repeated | None = first
        for other in others:
            joined = joined and joined.joined(other)
        return joined

    def _several(self, weakest: Guarantee, times: int, delta: float | None) -> Guarantee:
        """Return what `times` contributions cost together at most, each at the weakest guarantee so far."""
        if times == 1:  # it was to one cohort only, so that each round counts apart
            apart = dict.fromkeys((one.guarantee, one.streams, one.laws) for one in self.entries)
            return weakest if delta is None else parallel([_once(*one, delta) for one in apart])
        streams = self._streams
        if not streams:
            composed = compose(((weakest, times),), delta)
            return tightened_by(self._law, weakest, times, composed, delta)
        if weakest.kind == "none" or not all(entry.streams for entry in self.entries):  # no sum of both is known
            return without_privacy(weakest)
        joint = [stream.joint(times) for stream in streams]
        return parallel([one.promise if delta is None else one.at(delta) for one in joint])


@lru_cache(maxsize=1024)
def _once(
    guarantee: Guarantee, streams: tuple[BatchStream, ...], laws: tuple[Repeated, ...], delta: float
) -> Guarantee:
    """Return the least that is proven at δ: by the guarantee, by the weakest law, or by the weakest stream."""
    composed = compose(((guarantee, 1),), delta)
    if guarantee.kind == "none":
        return composed
    ways = [composed]
    if laws:
        ways.append(max((tightened_by(law, guarantee, 1, composed, delta) for law in laws), key=_least_epsilon))
    if streams:
        ways.append(parallel([stream.joint(1).at(delta) for stream in streams]))
    return min(ways, key=_least_epsilon)


def _least_epsilon(one: Guarantee) -> float:
    return math.inf if one.kind == "none" or one.epsilon is None else one.epsilon


def tightened_by(
    law: Repeated | None, once: Guarantee, times: int, composed: Guarantee, delta: float | None
) -> Guarantee:
    """Return what `times` releases cost together: `composed`, or what their law says where that is less.

    once   the guarantee of one release.
    law    None where it is not known.
    delta  target; None: that of `composed`.
    """
    target = composed.delta if delta is None else delta
    if law is None or once.kind == "none" or not 0 < target < 1:
        return composed
    epsilon = law.epsilon(times, target)
    if epsilon >= (math.inf if composed.epsilon is None else composed.epsilon):
        return composed
    change = {"kind": "approximate", "epsilon": epsilon, "delta": target, "rdp": (), "claimed": None}
    return once.model_copy(update={**change, "assumptions": (*once.assumptions, ADAPTIVE)})


def parallel(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return what the weakest of at least one guarantee promises: none if any has none, else the largest ε and δ.

    Rényi curves are merged order by order, over the orders that all of them have. Guarantees of different kinds become
    (ε, δ).
    """
    without = [guarantee for guarantee in guarantees if guarantee.kind == "none" or guarantee.epsilon is None]
    if without:
        return without_privacy(without[0]).model_copy(update={"assumptions": without[0].assumptions})
    weakest = max(guarantees, key=lambda one: one.epsilon or 0.0)
    delta = max(one.delta for one in guarantees)
    alike = all(one.kind == weakest.kind for one in guarantees)
    kind: Kind = weakest.kind
    if not alike:
        kind = "approximate" if delta else "pure"
    curve = _curve(guarantees) if alike else ()
    assumptions = _assumptions(guarantees)
    return weakest.model_copy(update={"kind": kind, "delta": delta, "rdp": curve, "assumptions": assumptions})


def within(spent: Guarantee, budget: BudgetSpec) -> bool:
    """Return whether a guarantee's ε is at most the budget's, but for BUDGET_ROUNDING, and so is its δ."""
    if spent.kind == "none" or spent.epsilon is None or spent.delta > budget.delta:
        return False
    return spent.epsilon <= budget.epsilon * (1 + BUDGET_ROUNDING)


def _assuming(one: Guarantee, contributions: int) -> Guarantee:
    if one.kind == "none":
        return one
    promise = UNIQUE if contributions == 1 else RETURNING.format(contributions)
    return one.model_copy(update={"assumptions": (*one.assumptions, promise)})


def _assumptions(guarantees: Sequence[Guarantee]) -> tuple[str, ...]:
    """Return the assumptions that all rounds state, and OWN where a round has others."""
    shared = [text for text in guarantees[0].assumptions if all(text in one.assumptions for one in guarantees)]
    own = any(text not in shared for guarantee in guarantees for text in guarantee.assumptions)
    stated = [text for text in shared if text != OWN]  # a round whose cohorts differ states OWN already
    return (*stated, *([OWN] if own or stated != shared else []))


def _curve(guarantees: Sequence[Guarantee]) -> tuple[tuple[float, float], ...]:
    curves = [dict(guarantee.rdp) for guarantee in guarantees]
    shared = [order for order in curves[0] if all(order in curve for curve in curves)]
    return tuple((order, max(curve[order] for curve in curves)) for order in shared)
