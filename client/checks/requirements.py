"""Refuses a round whose privacy is less than the user requires: its largest ε, its fewest survivors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from distrust.client.checks.agreement import check_round, same_values
from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.guarantee import IF_OTHERS_COLLUDE, BudgetSpec, Guarantee
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger
from distrust.common.dp.mechanisms import AnyMechanism, privacy_of, promise_of
from distrust.common.errors import BadParameter, BudgetExceeded, Refused, two_spellings
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, cohort_channel

MAX_EPSILON, MAX_DELTA = 10.0, 1e-2  # of users that have set no limits of their own

MIN_SPREAD, MAX_SPREAD_DELTA = 50, 1e-5
"""Least floor t and largest δ, without limits of one's own, where other clients' noise counts: see docs, survivors."""

HOW_TO_ALLOW = "[budget] of the run file sets the limits of the clients of `distrust run`, {} that of other fleets"
_ROUNDING = 1e-9  # relative: sums of ε in another order may differ in last digits, and are no refusal
_LARGEST_DELTA = 0.499  # of a budget


@dataclass(frozen=True, slots=True)
class PrivacyRequirements:
    """A user's own conditions. No message of the server changes them.

    max_epsilon    largest ε (nats) of a guarantee. The user computes it itself from the mechanism's law.
    max_delta      largest δ of it. None: MAX_SPREAD_DELTA in the models distributed and shuffle, else MAX_DELTA.
    min_survivors  smallest number of survivors that the noise may count on. None: MIN_SPREAD in these two models, else
                   1. Neither default concerns cohorts of one client, nor a user that takes part in unsafe rounds.
    max_epsilon_alone
                   largest ε of what is left if all other clients of a cohort collude, of all `contributions` added up.
                   None: no limit. Like max_epsilon it is no limit of a user that takes part in unsafe rounds.
    max_survivors  largest number of survivors that noise may be spread over. A server that announces an inflated n, and
                   invents the other clients, would otherwise remove the noise of the few real ones.
    allow_unsafe   take part in rounds without privacy; for experiments.
    contributions  cohorts that the user will take part in: all of them together keep max_epsilon at max_delta.
    config_digest  SHA-256 of the only run configuration that the user takes part in. None: whichever the server serves,
                   with any dropout and corruption rates and any mechanism.
    """

    max_epsilon: float = MAX_EPSILON
    max_delta: float | None = None
    min_survivors: int | None = None
    max_survivors: int = 1_000_000
    allow_unsafe: bool = False
    contributions: int = 1
    config_digest: bytes | None = None
    max_epsilon_alone: float | None = None

    def check(
        self, config: RunConfig, run_id: bytes, round_: Round, assignment: Assignment, agreed: Sequence[Entry] = ()
    ) -> Entry:
        """Return a cohort's cost. Raises Refused unless it meets these requirements and fits the configuration.

        config  the run's, whose digest the round names; what follows from it is computed again.
        run_id  the run's, which its cohorts are bound to.
        agreed  costs of the run's cohorts that a user may have been in before.

        Raises BudgetExceeded when all `contributions`, at the weakest of `agreed` and this one, would overdraw. Nothing
        has been sent yet.
        """
        cohort, mechanism = assignment.cohort, round_.mechanism_of(assignment)
        if self.config_digest is not None and config.digest() != self.config_digest:
            reason = f"config: the digest of run {config.run} is {config.digest().hex()}"
            raise Refused(f"{reason}, and this user takes part in {self.config_digest.hex()} only")
        check_round(config, run_id, round_, assignment)
        _check_channel(config, round_, mechanism, cohort)
        cost = self.cost(mechanism, agreed, config.budget)
        if cohort.channel.seeded and not self.allow_unsafe:
            raise Refused("the actions are dealt from a seed: a party that knows the seed knows each client's action")
        return cost

    def cost(self, mechanism: AnyMechanism, agreed: Sequence[Entry] = (), budget: BudgetSpec | None = None) -> Entry:
        """Return what a cohort of this mechanism costs. Raises Refused or BudgetExceeded where a limit forbids it.

        agreed  costs of the run's cohorts that a user may have been in before.
        budget  the run's, by which its learner admits. A cohort whose mechanism states more than these limits is
                accepted if the limits allow the whole budget, and all `contributions` are proven to be within it.
        """
        promised = promise_of(mechanism)
        spread = mechanism.counts_on_others and not self.allow_unsafe
        self._check_floor(mechanism, MIN_SPREAD if spread else 1)
        max_delta = self.max_delta
        if max_delta is None:
            max_delta = MAX_SPREAD_DELTA if spread else MAX_DELTA
        if mechanism.counts_on_others and mechanism.floor > self.max_survivors:
            reason = f"the round spreads its noise over {mechanism.floor} survivors"
            raise Refused(f"{reason}, and this user believes in {self.max_survivors} at most", limit="max_survivors")
        alone = Entry("a cohort", 1, 1, promised)
        if self.allow_unsafe:
            return alone
        self._check_alone(mechanism, max_delta)
        refusal = self._refusal(promised, max_delta)
        if refusal is None and self.contributions == 1:
            return alone
        allowed = budget is not None and budget.epsilon <= self.max_epsilon and budget.delta <= max_delta
        if refusal is not None and (promised.kind == "none" or not allowed):
            raise refusal
        cost = self._entry(mechanism, promised)
        costs = [*agreed, cost] if self.contributions > 1 else [cost]
        if refusal is None or budget is None:
            self._check_budget(costs, max_delta)
            return cost
        try:
            PrivacyLedger(self.contributions, budget, tuple(costs)).check(budget)
        except BudgetExceeded:
            shown = cost.once(budget.delta)
            one_is_too_much = self._refusal(promised if shown.kind == "none" else shown, max_delta)
            if one_is_too_much:
                raise one_is_too_much from None
            raise
        return cost

    def _entry(self, mechanism: AnyMechanism, promised: Guarantee) -> Entry:
        """Return a cohort's cost with all by which it may be less at another δ, or for several contributions."""
        privacy = mechanism.privacy()
        stream, laws = privacy.stream, () if privacy.repeated is None else (privacy.repeated,)
        if stream is not None and self.contributions > mechanism.stream_length:
            reason = f"the stream of {mechanism.name} has {mechanism.stream_length} batches"
            taken = f"this user takes part in {self.contributions} cohorts"
            raise Refused(f"{reason}, and {taken}", limit="contributions")
        if stream is not None:
            return Entry("a cohort", 1, 1, promised, (stream,), laws)
        once = promise_of(mechanism, composable=True)
        if once.kind == "none" and self.contributions == 1:  # a batch of a stream that does not say what several cost
            once = promised
        return Entry("a cohort", 1, 1, once, (), laws)

    def _check_floor(self, mechanism: AnyMechanism, default: int) -> None:
        least = default if self.min_survivors is None else self.min_survivors
        if mechanism.floor < least:
            reason = f"the noise counts on {mechanism.floor} survivors, and this user on {least}"
            raise Refused(f"{reason}; {HOW_TO_ALLOW.format('DISTRUST_MIN_SURVIVORS')}", limit="min_survivors")

    def _check_alone(self, mechanism: AnyMechanism, max_delta: float) -> None:
        """Raise Refused where too little is left of the guarantee if all other clients collude."""
        if self.max_epsilon_alone is None:
            return
        left, times = promise_of(mechanism, alone=True), self.contributions
        stream = privacy_of(mechanism, alone=True).stream if times > 1 else None
        if stream is not None:  # several batches are one release of their stream, and do not add up
            left, times = stream.joint(times).promise, 1
        if left.kind == "renyi" and left.delta > max_delta > 0:
            left = _shown_at(left, max_delta)
        # ε is added up, and not composed by laws: a mixture of cohorts that were all accepted is then within the limit.
        epsilon = math.inf if left.kind == "none" or left.epsilon is None else times * left.epsilon
        if epsilon <= self.max_epsilon_alone * (1 + _ROUNDING):
            return
        shown, most = two_spellings(epsilon, self.max_epsilon_alone)
        kept = "no guarantee is left" if math.isinf(epsilon) else f"ε = {shown} is left"
        reason = f"{IF_OTHERS_COLLUDE}, {kept}, and this user accepts {most} at most"
        raise Refused(f"{reason}; DISTRUST_MAX_EPSILON_ALONE sets the limit", limit="max_epsilon_alone")

    def _refusal(self, promised: Guarantee, max_delta: float) -> Refused | None:
        """Return why one cohort is too much for these limits; None where it is not."""
        if promised.kind == "renyi" and promised.delta > max_delta > 0:
            promised = _shown_at(promised, max_delta)  # it holds at every δ, and is shown at one
        if promised.kind == "none" or promised.epsilon is None:
            return Refused("this round has no privacy, and this user does not take part in such rounds")
        if promised.epsilon > self.max_epsilon * (1 + _ROUNDING):
            shown, most = two_spellings(promised.epsilon, self.max_epsilon)
            above = f"ε = {shown} is above this user's {most}"
            return Refused(f"{above}; {HOW_TO_ALLOW.format('DISTRUST_MAX_EPSILON')}", limit="epsilon")
        if promised.delta > max_delta:
            shown, most = two_spellings(promised.delta, max_delta)
            above = f"δ = {shown} is above this user's {most}"
            return Refused(f"{above}; {HOW_TO_ALLOW.format('DISTRUST_MAX_DELTA')}", limit="delta")
        return None

    def _check_budget(self, costs: Sequence[Entry], max_delta: float) -> None:
        budget = BudgetSpec(epsilon=self.max_epsilon, delta=min(max_delta, _LARGEST_DELTA))
        try:
            PrivacyLedger(self.contributions, budget, tuple(costs)).check(budget)
        except BudgetExceeded as error:
            if (self.max_epsilon, self.max_delta) != (MAX_EPSILON, None):
                raise
            spent = error.epsilon, self.contributions, error.budget, error.delta
            raise BudgetExceeded(*spent, limit="this user's limit") from None


@lru_cache(maxsize=256)
def _shown_at(promised: Guarantee, delta: float) -> Guarantee:
    """Return a guarantee at this δ. Rounds repeat their mechanism, so this is asked again and again."""
    return compose(((promised, 1),), delta)


def most_colluders(round_: Round, cohort: Cohort) -> int:
    """Return how many of a cohort's clients may be the server's own while its noise suffices: ⌊corrupt · n⌋."""
    return math.floor(round_.corrupt * cohort.clients)


def _check_channel(config: RunConfig, round_: Round, mechanism: AnyMechanism, cohort: Cohort) -> None:
    """Raise Refused unless the cohort's channel is the one that follows from its round, but for the server's key.

    The intermediary matters most. Noise that is shared out over a sum protects no record that the server opens alone.
    The rates give the graph: a sparser one, or a lower t, opens single vectors.
    """
    channel = cohort.channel
    misfit = f"the {channel.kind} channel of cohort {cohort.cohort} does not fit its round"
    if mechanism.via != cohort.via:
        reason = f"cohort.channel.kind = {channel.kind!r}: {mechanism.name} travels via the {mechanism.via}"
        raise Refused(f"{reason}, and cohort {cohort.cohort} is served by the {cohort.via}")
    if channel.assigns != (round_.decision.kind == "assigned-action"):
        raise Refused(f"cohort.channel.kind = {channel.kind!r}: {misfit}, whose decision is {round_.decision.kind}")
    if cohort.receipts != mechanism.receipted:
        raise Refused(f"cohort.channel.receipts = {cohort.receipts}: {mechanism.name} gives {mechanism.receipted}")
    if channel.assigns and not mechanism.divisible:
        raise Refused(f"{mechanism.name} protects a whole sum, and assigned actions are opened one by one")
    try:
        own = cohort_channel(config, round_, mechanism, cohort.minimum, channel.sealed_to)
        channel.check(cohort.clients)
    except BadParameter as error:
        raise Refused(f"cohort.channel.{error.detail}") from error
    if own != channel:  # only then are the fields compared, which takes long for many actions
        same_values("cohort.channel", channel.model_dump(), own.model_dump(), f"{misfit}, which gives")
