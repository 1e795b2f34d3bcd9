"""What a user insists on before it tells anything: its own largest ε, and its own floor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distrust.client.agreement import check_round
from distrust.common.crypto.parameters import neighbourhood
from distrust.common.errors import BudgetExceeded, Refused
from distrust.common.mechanisms import AnyMechanism
from distrust.common.messages.cohort import Channel, Cohort
from distrust.common.messages.round import Assignment, Round
from distrust.common.messages.run import BudgetSpec, RunConfig
from distrust.common.modular import packed_size
from distrust.common.privacy.composition import compose
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.ledger import Entry, Ledger

MAX_EPSILON, MAX_DELTA = 10.0, 1e-2  # of users whose side has declared nothing
_ROUNDING = 1e-9
_LARGEST_DELTA = 0.499  # of a budget
_SPREAD = {"distributed", "shuffle"}  # models in which a client's own noise protects nobody alone


@dataclass(frozen=True, slots=True)
class PrivacyRequirements:
    """A user's own conditions; a server cannot talk it out of them.

    max_epsilon    largest ε (nats) of a guarantee that the user computes itself from the mechanism's law.
    max_delta      largest δ of it.
    min_survivors  least floor t: the fewest among whom it hides.
    max_survivors  largest t that noise may be spread over: a server that announces an inflated n, and invents the
                   other clients, would otherwise remove the noise of the few real ones.
    allow_unsafe   play along in rounds without privacy; for experiments.
    contributions  cohorts that the user means to take part in: all of them together keep max_epsilon at max_delta.
    config_digest  SHA-256 of the only run configuration that the user takes part in; None: the one that the server
                   serves, whatever it says of d, c and the mechanism.
    """

    max_epsilon: float = MAX_EPSILON
    max_delta: float = MAX_DELTA
    min_survivors: int = 1
    max_survivors: int = 1_000_000
    allow_unsafe: bool = False
    contributions: int = 1
    config_digest: bytes | None = None

    def check(
        self, config: RunConfig, asked: Round, assignment: Assignment, agreed: Sequence[Guarantee] = ()
    ) -> Guarantee:
        """What a cohort promises. Raises Refused, in one line, unless it keeps these terms and contradicts nothing.

        config  the run's, whose digest the round names; what follows from it is computed again.

        agreed  what cohorts of the run promised that a user may have been in before. Raises BudgetExceeded when all of
                its `contributions`, at the weakest of these and this one, would overdraw. Nothing has been sent yet.
        """
        cohort, mechanism = assignment.cohort, asked.mechanism_of(assignment)
        self._check_pin(config)
        check_round(config, asked, assignment)
        _check_channel(mechanism, cohort)
        _check_deal(asked, mechanism, cohort)
        _check_graph(asked, cohort)
        _check_floor(asked, mechanism, cohort)
        if mechanism.floor < self.min_survivors:
            raise Refused(f"the noise counts on {mechanism.floor} survivors, and this user on {self.min_survivors}")
        promised = mechanism.guarantee()
        if promised.model in _SPREAD and mechanism.floor > self.max_survivors:
            told = f"the round spreads its noise over {mechanism.floor} survivors"
            raise Refused(f"{told}, and this user believes in {self.max_survivors} at most")
        self._check_guarantee(promised)
        if self.contributions > 1 and not self.allow_unsafe:
            promised = mechanism.composable()
            self._check_budget([*agreed, promised])
        if cohort.channel.kind == "dealt" and cohort.channel.noise_seed is not None and not self.allow_unsafe:
            raise Refused("the actions are dealt from a seed: whoever knows it knows who plays what")
        return promised

    def _check_pin(self, config: RunConfig) -> None:
        if self.config_digest is not None and config.digest() != self.config_digest:
            told = f"config: the digest of run {config.run} is {config.digest().hex()}"
            raise Refused(f"{told}, and this user takes part in {self.config_digest.hex()} only")

    def _check_guarantee(self, promised: Guarantee) -> None:
        if self.allow_unsafe:
            return
        if promised.kind == "renyi" and promised.delta > self.max_delta > 0:
            promised = compose(((promised, 1),), self.max_delta)  # it holds at every δ, and is shown at one
        if promised.kind == "none" or promised.epsilon is None:
            raise Refused("this round has no privacy, and this user does not take part in such rounds")
        if promised.epsilon > self.max_epsilon * (1 + _ROUNDING):
            raise Refused(f"ε = {promised.epsilon:.6g} is above this user's {self.max_epsilon:g}")
        if promised.delta > self.max_delta:
            raise Refused(f"δ = {promised.delta:.3g} is above this user's {self.max_delta:g}")

    def _check_budget(self, guarantees: Sequence[Guarantee]) -> None:
        budget = BudgetSpec(epsilon=self.max_epsilon, delta=min(self.max_delta, _LARGEST_DELTA))
        entries = tuple(Entry("a cohort", 1, 1, one) for one in guarantees)
        try:
            Ledger(self.contributions, budget, entries).check(budget)
        except BudgetExceeded as error:
            if (self.max_epsilon, self.max_delta) != (MAX_EPSILON, MAX_DELTA):
                raise
            own = (error.epsilon, self.contributions, error.budget, error.delta)
            raise BudgetExceeded(*own, limit="this user's limit") from None


def most_colluders(asked: Round, cohort: Cohort) -> int:
    """How many of a cohort's clients may be the server's own before its noise no longer suffices: ⌊corrupt · n⌋."""
    return math.floor(asked.corrupt * cohort.clients)


def _check_floor(asked: Round, mechanism: AnyMechanism, cohort: Cohort) -> None:
    """The noise may count on those who are sure to answer, and of them on the honest ones only."""
    floor, colluders = mechanism.floor, most_colluders(asked, cohort)
    if cohort.minimum < floor:
        raise Refused(f"the cohort opens at {cohort.minimum} survivors, and its noise counts on {floor}")
    if floor > max(1, cohort.minimum - colluders):
        told = f"the noise counts on {floor} honest survivors of {cohort.minimum}"
        raise Refused(f"{told}, of whom {colluders} may collude")


def _check_channel(mechanism: AnyMechanism, cohort: Cohort) -> None:
    """The mechanism must be the one that this cohort's channel carries: same S, same n, same modulus, same size.

    The same S above all: noise that is shared out over a sum hides nothing in a record that the server opens alone.
    """
    if mechanism.via != cohort.via:
        told = f"cohort.channel.kind = {cohort.channel.kind!r}: {mechanism.name} travels via the {mechanism.via}"
        raise Refused(f"{told}, and cohort {cohort.cohort} is served by the {cohort.via}")
    for field, size, needed in _sizes(mechanism, cohort.channel):
        if size != needed:
            misfit = f"the {cohort.channel.kind} channel of cohort {cohort.cohort} does not fit the mechanism"
            raise Refused(f"cohort.channel.{field} = {size!r}: {misfit}, which needs {needed!r}")


def _check_deal(asked: Round, mechanism: AnyMechanism, cohort: Cohort) -> None:
    """Assigned actions are dealt by S, from the round's own list, and opened action by action."""
    dealt = cohort.channel.deal if cohort.channel.kind == "dealt" else None
    listed = asked.decision if asked.decision.kind == "assigned-action" else None
    if dealt != listed:
        raise Refused(f"cohort.channel.deal: cohort {cohort.cohort} does not deal the actions of its round")
    if dealt is not None and dealt.plays != cohort.clients:
        raise Refused(f"cohort {cohort.cohort} deals {dealt.plays} plays to {cohort.clients} slots")
    if dealt is not None and not mechanism.divisible:
        raise Refused(f"{mechanism.name} protects a whole sum, and dealt actions are opened one by one")


def _check_graph(asked: Round, cohort: Cohort) -> None:
    """The graph is computed, never believed: a sparser graph or a lower threshold would open single vectors."""
    if cohort.channel.kind != "masked":
        return
    own = neighbourhood(cohort.clients, asked.dropout, asked.corrupt, cohort.minimum)
    told = {"neighbours": cohort.channel.neighbours, "threshold": cohort.channel.threshold}
    for (field, value), computed in zip(told.items(), own, strict=True):
        if value != computed:
            rates = f"the run's rates give k = {own[0]}, t = {own[1]}"
            raise Refused(f"cohort.channel.{field} = {value}: {rates}")


def _sizes(mechanism: AnyMechanism, channel: Channel) -> list[tuple[str, object, object]]:
    """Each size of a channel: its field, what was told, and what the mechanism's messages need."""
    match channel.kind:
        case "masked":
            return [
                ("modulus", channel.modulus, mechanism.modulus),
                ("dimension", channel.dimension, mechanism.dimension),
            ]
        case "bits":
            kind = "sealed" if mechanism.width is None else "bits"
            sizes = [("width", channel.width, mechanism.width), ("labels", channel.labels, mechanism.dimension)]
            return [("kind", channel.kind, kind), *sizes]
        case "sealed" | "dealt":
            needed = channel.kind if mechanism.width is None else "bits"
            packed = packed_size(mechanism.modulus, mechanism.dimension)
            return [("kind", channel.kind, needed), ("size", channel.size, packed)]
