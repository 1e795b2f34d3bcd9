"""Computes what changes for each party when one client's reward flips from the least to the largest value.

The mechanism and the cohort's public numbers decide all of it: no reward, message or key is looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import How, ScaledErrorLaw
from distrust.common.dp.accounting.composition import LONGEST_SUPPORT
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.accounting.profile import SHOWN_DELTA
from distrust.common.dp.accounting.techniques.hockey_stick import NOT_ZERO, least_epsilon
from distrust.common.dp.mechanisms import Mechanism, promise_of
from distrust.common.dp.noise.law import Pmf
from distrust.common.errors import BadParameter

Viewer = Literal["client", "shuffler", "aggregator", "server", "everyone"]
Change = Literal["nothing", "law", "everything", "unknown"]

MOST_BINS = 240
"""Intervals of a picture: about one for each two pixels."""

TAIL = 1e-4
"""Probability that a picture may leave out on each side of a law."""

NO_PICTURE = "The page has no law on the integers for it: the noise is continuous, of many coordinates, or too wide."

_CARRIED: dict[str, tuple[str, str, str]] = {
    # by channel: what the intermediary sees, what of it stays the same, why it cannot know more
    "masked": (
        "The client's masked number, and at the end the sum of all numbers modulo m, which it opens for the server.",
        "All that this client sends: keys, sealed shares, and the masked number, uniform modulo m with either reward.",
        "Masks agreed with neighbours hide the number, and cancel in the sum only, unless enough neighbours collude.",
    ),
    "sealed": (
        "A sealed record of fixed size.",
        "All of it: which client sends, how many bytes, and a record that it cannot open.",
        "The record is sealed to the server's key, which the shuffler does not have.",
    ),
    "dealt": (
        "The action that it assigned, and a sealed record of fixed size.",
        "All of it: which action the client plays, how many bytes it sends, and a record that it cannot open.",
        "The record is sealed to the server's key, which the shuffler does not have.",
    ),
    "bits": (
        "The bits of this client's message.",
        "Which client sends, and how many bits.",
        "Nothing hides them here: clients trust this shuffler not to collude with the server.",
    ),
}

_KEPT = {
    # what stays the same for the client itself, by intermediary
    "aggregator": "Its ticket, keys, masks and shares: they are drawn without a look at the reward.",
    "shuffler": "Its ticket, and the size of its message.",
}
_SERVED = {
    "aggregator": "Tickets, hashes of keys, the aggregator's statements, and how many clients answered.",
    "shuffler": "Tickets, the other clients' messages, and how many clients answered.",
}
_PUBLISHED = "The round's plan and its promise, and how many clients answered."


@runtime_checkable
class HasPmf(Protocol):
    """A law of integers whose probabilities are stored."""

    def pmf(self) -> Pmf: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipView:
    """One party's view of one client's reward, and the change of that view when the reward flips.

    sees, why   a sentence or two each: what the party holds of it, and why it cannot know more.
    stays       what of it is the same, or has the same law, with either reward. That a client answers must not depend
                on its reward either; nothing that this project's clients do depends on it.
    change      "nothing": one law for both rewards. "law": the law moves. "everything": the reward itself shows.
                "unknown": the law is not computed here.
    laws        the laws of the number that the party holds, with the least and with the largest reward, in grid steps;
                of vectors, those of one coordinate.
    step        one grid step in the data's units; None where the number is a message, counted in steps modulo m.
    center      where the noise has its mean, in grid steps: the sum of the other clients' rewards is counted from it.
    epsilon     in nats, at `delta`: between the two worlds, for all that the party sees. None: no ε is enough, where
                `how` is exact, or none is known, where it is a bound.
    """

    party: Viewer
    sees: str
    stays: str
    why: str
    change: Change
    laws: tuple[Pmf, Pmf] | None = None
    step: float | None = None
    center: float = 0.0
    epsilon: float | None = None
    delta: float = 0.0
    how: How = "bound"


def flip_views(mechanism: Mechanism, *, assigned: bool = False) -> list[FlipView]:
    """Return what the client, its intermediary, the server and every reader see of one flipped reward.

    The server's law counts on the noise of `floor` honest clients, as the promise does.

    assigned  whether the shuffler assigns the actions.
    """
    promise = promise_of(mechanism)
    delta = promise.delta or SHOWN_DELTA
    message = _message(mechanism, delta)
    server, everyone = _released(mechanism, message)
    return [message, _carried(mechanism, message, server, assigned=assigned), server, everyone]


def _message(mechanism: Mechanism, delta: float) -> FlipView:
    """Return the client's own view: the number that it sends, before it is masked or sealed."""
    low, high = mechanism.message_law(high=False), mechanism.message_law(high=True)
    laws = None if low is None or high is None or max(low.logs.size, high.logs.size) > LONGEST_SUPPORT else (low, high)
    sees = "Its reward, and the number that it makes of it."
    own = "It has no noise yet" if mechanism.model in {"central", "none"} else "It has this client's own noise only"
    why = f"{own}. No other party gets the number bare, unless its column says so."
    stays = _KEPT[mechanism.via]
    if laws is None:
        return FlipView(party="client", sees=sees, stays=stays, why=f"{why} {NO_PICTURE}", change="unknown")
    change: Change = "everything" if laws[0].logs.size == 1 else "law"
    view = FlipView(party="client", sees=sees, stays=stays, why=why, change=change, laws=laws)
    if mechanism.dimension > 1:  # the laws are of one coordinate, and all of them may move
        return view
    epsilon = law_pair_epsilon(*laws, delta)
    return replace(view, epsilon=None if math.isinf(epsilon) else epsilon, delta=delta, how="exact")


def _carried(mechanism: Mechanism, message: FlipView, server: FlipView, *, assigned: bool) -> FlipView:
    """Return the intermediary's view of the message. An aggregator also sees the sum, as the server does."""
    if mechanism.via == "aggregator":
        channel = "masked"
    elif mechanism.width is not None:
        channel = "bits"
    else:
        channel = "dealt" if assigned else "sealed"
    sees, stays, why = _CARRIED[channel]
    if channel == "masked":
        bare = "The sum has no noise here: clients trust the aggregator, too, to keep it secret."
        sums = bare if mechanism.model in {"central", "none"} else server.why
        return replace(server, party="aggregator", sees=sees, stays=stays, why=f"{why} {sums}")
    if channel != "bits":
        return FlipView(
            party=mechanism.via, sees=sees, stays=stays, why=why, change="nothing", epsilon=0.0, how="exact"
        )
    return FlipView(
        party=mechanism.via,
        sees=sees,
        stays=stays,
        why=why,
        change=message.change,
        laws=message.laws,
        epsilon=message.epsilon,
        delta=message.delta,
        how=message.how,
    )


def _released(mechanism: Mechanism, message: FlipView) -> tuple[FlipView, FlipView]:
    """Return the views of the server and of every reader of its estimates."""
    promise = promise_of(mechanism)
    noise = noise_law(mechanism)
    by_sum = _BySum(mechanism, noise, promise)
    stays = _SERVED[mechanism.via]
    reads = "all messages, in random order" if mechanism.via == "shuffler" else "the sum of all messages modulo m"
    if mechanism.model in {"central", "none"}:
        trusted = "Nothing hides the sum here: clients trust this server to add the noise and to keep the sum secret."
        bare = "Nothing hides the sum here: this mechanism gives no privacy, and is for comparisons."
        server = FlipView(
            party="server",
            sees=f"It sees {reads}, without noise.",
            stays=stays,
            why=trusted if mechanism.model == "central" else bare,
            change="everything",
            laws=message.laws,
            how="exact",
        )
    elif mechanism.model == "local" and mechanism.via == "shuffler":
        server = FlipView(
            party="server",
            sees="It sees all messages, in random order. The picture is of this client's message.",
            stays=stays,
            why="The noise of one message keeps the promise: no other party has to be honest.",
            change=message.change,
            laws=message.laws,
            epsilon=promise.epsilon,
            delta=promise.delta,
        )
    else:
        unlinked = mechanism.via == "shuffler" and mechanism.width is None
        why = f"The noise of at least {mechanism.floor} honest clients is in it"
        if mechanism.model == "local":
            why = "The noise of this client's message is in it, which alone keeps the promise"
        server = by_sum.view(
            "server",
            f"It sees {reads}. The picture is of the noisy sum, the other rewards held fixed.",
            stays,
            f"{why}, and messages are not linked to clients." if unlinked else f"{why}.",
        )
    adds = "The server adds its noise before it publishes."
    follows = "It is computed from what the server saw, so it tells no more than that."
    why = adds if mechanism.model == "central" else follows
    reads = (
        "The published estimate, and what the policy decides by it. Other clients are such readers: nothing else that "
        "reaches them depends on this reward."
    )
    return server, by_sum.view("everyone", reads, _PUBLISHED, why)


@dataclass(frozen=True, slots=True)
class _BySum:
    """Makes views of a noisy sum. noise: its law, in grid steps, where it is known and stored."""

    mechanism: Mechanism
    noise: Pmf | None
    promise: Guarantee

    def view(self, party: Viewer, sees: str, stays: str, why: str) -> FlipView:
        """Return the view of a party that reads the noisy sum, or what follows from it."""
        if self.mechanism.model == "none":
            return FlipView(party=party, sees=sees, stays=stays, why=why, change="everything", how="exact")
        noise = self.noise
        return FlipView(
            party=party,
            sees=sees,
            stays=stays,
            why=why if noise is not None else f"{why} {NO_PICTURE}",
            change="unknown" if noise is None else "law",
            laws=None if noise is None else (noise, moved(noise, self.mechanism.precision)),
            step=getattr(self.mechanism, "step", None),
            center=0.0 if noise is None else float(noise.masses @ noise.support),
            epsilon=self.promise.epsilon,
            delta=self.promise.delta,
        )


def noise_law(mechanism: Mechanism) -> Pmf | None:
    """Return the law of the noise in a coordinate of the sum over `floor` clients, in grid steps.

    None where there is no noise, or no law of integers that is stored.
    """
    # A local mechanism's own law is that of one message.
    law = None if mechanism.model == "local" else mechanism.privacy().law
    if law is None:
        error = mechanism.error(mechanism.floor)
        law = error.law if isinstance(error, ScaledErrorLaw) and isinstance(error.law, HasPmf) else None
    try:
        pmf = None if law is None else law.pmf()
    except BadParameter:  # longer than any that is stored
        return None
    return None if pmf is None or pmf.logs.size > LONGEST_SUPPORT else pmf


def moved(law: Pmf, steps: int) -> Pmf:
    """Return the law of the number that is larger by `steps`."""
    return Pmf(law.first + steps, law.logs, law.lost)


def law_pair_epsilon(one: Pmf, other: Pmf, delta: float) -> float:
    """Return the least ε with P ≤ e^ε Q + δ both ways for every event, rounded up in its tenth digit.

    inf where no ε below 10⁴ will do. What one law's stored support lacks counts as impossible there, which only adds.
    """
    first = min(one.first, other.first)
    size = max(one.first + one.logs.size, other.first + other.logs.size) - first
    logs = (_spread(one, first, size), _spread(other, first, size))

    def excess(epsilon: float) -> float:
        most = max(_beyond(*logs, epsilon) + one.lost, _beyond(*logs[::-1], epsilon) + other.lost)
        return math.log(max(most, NOT_ZERO) / delta)

    return least_epsilon(excess)


def _spread(pmf: Pmf, first: int, size: int) -> NDArray[np.float64]:
    """Return the log-probabilities of `first`, …, `first` + `size` - 1."""
    logs = np.full(size, -np.inf)
    logs[pmf.first - first : pmf.first - first + pmf.logs.size] = pmf.logs
    return logs


def _beyond(logs: NDArray[np.float64], others: NDArray[np.float64], epsilon: float) -> float:
    """Return Σ (P - e^ε Q)₊, without cancellation."""
    held = np.isfinite(logs)
    gaps = others[held] + epsilon - logs[held]
    above = gaps < 0
    return float(np.sum(-np.exp(logs[held][above]) * np.expm1(gaps[above])))


@dataclass(frozen=True, slots=True)
class Bins:
    """Probabilities of equal intervals of integers: interval i is `first` + i `width` … `first` + (i + 1) `width` - 1.

    masses  for each law an array of the same length.
    """

    first: int
    width: int
    masses: tuple[NDArray[np.float64], ...]


def binned(laws: Sequence[Pmf], most: int = MOST_BINS, tail: float = TAIL) -> Bins:
    """Return the probabilities of at most `most` intervals that hold all but about `tail` of each side of each law.

    An interval is a single integer where all of them fit. Wider intervals add probabilities up, and lose none.
    """
    ends = [_ends(law, tail) for law in laws]
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    width = -(-(last - first + 1) // most)
    count = -(-(last - first + 1) // width)
    return Bins(first, width, tuple(_gathered(law, first, width, count) for law in laws))


def _ends(law: Pmf, tail: float) -> tuple[int, int]:
    """Return the integers between which all but about `tail` of each side lies."""
    sums = np.cumsum(law.masses)
    low, high = np.searchsorted(sums, [tail, float(sums[-1]) - tail])
    return law.first + int(low), law.first + min(int(high), law.logs.size - 1)


def _gathered(law: Pmf, first: int, width: int, count: int) -> NDArray[np.float64]:
    """Return the law's probabilities of `count` intervals."""
    places = (law.support - first) // width
    inside = (places >= 0) & (places < count)
    masses = np.bincount(places[inside], weights=law.masses[inside], minlength=count)
    return np.asarray(masses, dtype=np.float64)
