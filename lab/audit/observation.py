"""Turns an intermediary's output into a few numbers for each trial, in which an audit looks for events.

Contents in Z_m become integers in grid steps (`observed`), and these become the evidence: a sum, and where the law of
the noise is known its likelihood ratio. However little a number tells, the test stays exact: it then only sees fewer
differences between the worlds. Replicas of a mechanism side by side make one message, or one call, many trials.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from distrust.common.dp.accounting.factorization import factorization
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.noise.law import Law
from distrust.common.errors import BadParameter
from distrust.common.modular import Vector
from distrust.common.randomness import Stream
from distrust.lab.audit.setting import Setting

M = TypeVar("M", bound=Mechanism)
Observation = NDArray[np.float64]

MOST_REPLICAS = 64  # trials that one long message may hold as coordinates

LEAST = 1e-300
"""Probability that stands for 0 where a logarithm is taken."""

DIGITS = 9
"""Digits that a likelihood ratio is rounded to, so that equal ratios are equal in whatever order they were added up."""


def most_replicas(mechanism: Mechanism) -> int:
    """Return how many replicas the mechanism allows in one message, up to `MOST_REPLICAS`.

    One, where vectors lie in ℓ₁ or ℓ₂ balls, because they are clamped as a whole; and for the sphere, which has one
    answer for all coordinates.
    """
    if mechanism.joint or mechanism.norm != "linf":
        return 1
    more = range(2, MOST_REPLICAS + 1)
    return 1 + bisect_left(more, True, key=lambda replicas: not _allowed(replicated(mechanism, replicas)))


def _allowed(mechanism: Mechanism) -> bool:
    try:
        type(mechanism).model_validate(mechanism.model_dump())
    except ValidationError:
        return False
    return True


def replicated(mechanism: M, replicas: int) -> M:
    """Return the mechanism whose vectors are `replicas` vectors of this one. Each coordinate keeps the noise it has.

    The wide mechanism's own guarantee, for all coordinates that move at once, is not used: an audit tests the
    original's. Raises BadParameter where coordinates have no noise of their own.
    """
    if replicas == 1:
        return mechanism
    if mechanism.joint:
        raise BadParameter(
            "mechanism", mechanism.name, "has one answer for all coordinates: replicas need noise of their own"
        )
    return mechanism.replicated(replicas)


def observed(setting: Setting, contents: Vector, stream: Stream) -> Observation:
    """Return an adversary's observations of T trials, shape (T, pieces, D), in grid steps.

    contents  in Z_m, shape (batches, T, messages, D): sums (one message), or a trial's messages.
    stream    for the noise of mechanisms that add it here.
    """
    if setting.view == "stream":
        return _released(setting, contents, stream)
    if setting.view == "estimate":
        return _estimates(setting, contents[0, :, 0], stream)[:, np.newaxis]
    return centred(setting.mechanism, contents[0], setting.visible if setting.view == "sum" else 1)


def centred(mechanism: Mechanism, sums: Vector, clients: int) -> Observation:
    """Return sums in Z_m as integers in a window around 0 … clients · g, of the same shape.

    Counts of ones never wrap, and stay as they are.
    """
    whole = sums.astype(np.float64)
    if mechanism.width is None:
        spread = clients * mechanism.precision
        room = max(0, mechanism.modulus - spread - 1) // 2
        whole[sums > np.uint64(spread + room)] -= mechanism.modulus
    return whole


def _estimates(setting: Setting, sums: Vector, stream: Stream) -> Observation:
    """Return the analyzer's own estimates of all trials at once, shape (T, D)."""
    wide = replicated(setting.mechanism, len(sums))
    estimates = wide.estimate(sums.ravel(), setting.survivors, stream).reshape(sums.shape)
    return _steps(setting.mechanism, estimates, setting.survivors)


def _released(setting: Setting, contents: Vector, stream: Stream) -> Observation:
    """Return batches, then prefix sums, of T streams that one counter counts side by side: (T, 2 batches, D)."""
    mechanism, shape = setting.mechanism, contents[0, :, 0].shape
    counter = replicated(mechanism, len(contents[0])).counter()
    batches, prefixes = [], []
    for number, batch in enumerate(contents, 1):
        counter, out = counter.add(batch.ravel(), setting.survivors, stream)
        batches.append(_steps(mechanism, out.batch.reshape(shape), setting.survivors))
        prefixes.append(_steps(mechanism, out.prefix.reshape(shape), number * setting.survivors))
    return np.stack([*batches, *prefixes], axis=1)


def _steps(mechanism: Mechanism, estimates: NDArray[np.float64], survivors: int) -> Observation:
    steps = mechanism.precision / (mechanism.high - mechanism.low)
    return np.asarray((estimates - survivors * mechanism.low) * steps, dtype=np.float64)


def evidence_names(setting: Setting) -> tuple[str, ...]:
    """Return the names of the numbers that `evidence` computes for a trial.

    sum         of all telling coordinates; of all records.
    projection  of a secret, in place of the sum: on the direction from world 0's vector to world 1's. For Gaussian
                noise it decides as the likelihood ratio does.
    likelihood  ln of the two worlds' likelihood ratio, by the noise's own law. It is used for several coordinates,
                where a sum tells less unless noise is Gaussian, and for permuted records: the mean of their ratios.
    unnoised    of a secret: coordinates that hold world 1's value without noise, less those that hold world 0's. It
                finds noise that should have been added to more of them.
    nodes       of a stream: the nodes that hold the first batch, each less what the others tell of it, weighted by its
                noise. This decides as the likelihood ratio does, because every node has Gaussian noise of its own.
    column      of a stream behind a factorization, in place of the nodes: C times the batches, and the column of the
                first batch with that. It decides as the likelihood ratio does.
    everything  of a stream: all batches and prefixes. It finds noise that should have been added once more.
    """
    if setting.view == "stream":
        return ("column" if isinstance(setting.mechanism, PrefixFactorization) else "nodes", "everything")
    finer = setting.view == "records" or setting.telling.size > 1
    by_likelihood = ("likelihood",) if finer and likelihood_ratio(setting) is not None else ()
    return ("sum", *by_likelihood) if setting.secret is None else ("projection", *by_likelihood, "unnoised")


def evidence(setting: Setting, seen: Observation) -> NDArray[np.float64]:
    """Return a row a trial, shape (T, len(evidence_names)), of what was observed, shape (T, pieces, D)."""
    telling = seen[..., setting.telling]
    pieces = telling.sum(axis=2) if setting.secret is None else np.round(telling @ setting.direction, DIGITS)
    if setting.view == "stream":
        return np.column_stack((pieces @ _stream_weights(setting), pieces.sum(axis=1)))
    columns = {"sum": pieces.sum(axis=1), "projection": pieces.sum(axis=1)}
    names = evidence_names(setting)
    if "likelihood" in names:
        logs = _logs(setting, telling).sum(axis=2)
        columns["likelihood"] = np.round(np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1]), DIGITS)
    if "unnoised" in names:
        columns["unnoised"] = _unnoised(setting, telling)
    return np.column_stack([columns[name] for name in names])


def _stream_weights(setting: Setting) -> NDArray[np.float64]:
    """Return by what factor each batch and each prefix counts in the first evidence of a stream."""
    mechanism, count = setting.mechanism, setting.batches
    weights = np.zeros(2 * count)
    if isinstance(mechanism, PrefixFactorization):
        column = factorization(mechanism.batches).column()
        weights[:count] = [column[batch:] @ column[: count - batch] for batch in range(count)]
        return weights
    batches, prefixes = np.eye(2 * count)[:count], np.vstack((weights, np.eye(2 * count)[count:]))
    share = mechanism.own_share if isinstance(mechanism, Tree) else lambda _level: 1.0

    def node(start: int, level: int) -> NDArray[np.float64]:
        return np.asarray(prefixes[start + (1 << level)] - prefixes[start])

    def shown(start: int, level: int) -> NDArray[np.float64]:
        """Return what is known of a node that no prefix ends with: all but the numbers of the nodes at its right."""
        if not level:
            return np.asarray(batches[start])
        half = 1 << (level - 1)
        return (1 - share(level)) * (node(start, level - 1) + shown(start + half, level - 1))

    # A node with the first batch, less what is known of its children, moves by its own share of the batch. Its noise is
    # that share of its own, and what is unknown of its right child, whose variance is `hidden`.
    weights, hidden = weights + node(0, 0), 0.0
    for level in range(1, count.bit_length()):
        own, below = share(level), 1 - share(level)
        alone = node(0, level) - below * (node(0, level - 1) + shown(1 << (level - 1), level - 1))
        hidden, noise = own**2 + below**2 * hidden, own**2 + below**2 * hidden
        weights = weights + own / noise * alone
    return weights


def _logs(setting: Setting, telling: Observation) -> Observation:
    """Return ln P₁/P₀ entry by entry; coordinates with the same two values share a table."""
    clean = _clean(setting)
    logs = np.empty_like(telling)
    for pair in np.unique(clean, axis=1).T:
        alike = (clean == pair[:, np.newaxis]).all(axis=0)
        table = likelihood_ratio(setting, int(np.argmax(alike)))
        assert table is not None  # `evidence_names` found one for the first coordinate, and the law is the same
        logs[..., alike] = table.of(telling[..., alike])
    return logs


def _unnoised(setting: Setting, telling: Observation) -> Observation:
    """Return how many coordinates of a trial hold world 1's value itself, rounded up or down, less world 0's."""
    left = np.rint(telling) - _centers(setting)
    held = [((left == np.floor(value)) | (left == np.ceil(value))).sum(axis=(1, 2)) for value in _clean(setting)]
    return np.asarray(held[1] - held[0], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Ratio:
    """ln P₁(y)/P₀(y) of one telling coordinate, for y from `first` on; beyond its ends that of the nearest end."""

    first: int
    logs: NDArray[np.float64]

    def of(self, values: Observation) -> NDArray[np.float64]:
        """Return it entry by entry; other numbers count as the nearest integer."""
        logs: NDArray[np.float64] = self.logs[np.clip(np.rint(values) - self.first, 0, self.logs.size - 1).astype(int)]
        return logs


def likelihood_ratio(setting: Setting, coordinate: int = 0) -> Ratio | None:
    """Return the ratio by the law of the noise in what is seen; None where that is not known.

    coordinate  one of the telling ones, by its number among them.
    """
    law = _noise(setting)
    try:
        pmf = None if law is None else law.pmf()
    except BadParameter:  # too long for a table
        pmf = None
    if pmf is None:
        return None
    first, masses = pmf.first + int(_centers(setting)[coordinate]), pmf.masses
    clean = _clean(setting)[:, coordinate]
    both = [_likelihood(masses, float(steps), setting.mechanism.precision) for steps in clean]
    return Ratio(first, np.log(both[1]) - np.log(both[0]))


def _likelihood(masses: NDArray[np.float64], steps: float, most: int) -> NDArray[np.float64]:
    """Return the law of noise + randomized rounding of `steps`, on a support that is longer by all possible steps."""
    whole = min(int(steps), most - 1)
    chances = np.zeros(most + 1)
    chances[whole : whole + 2] = 1 - (steps - whole), steps - whole
    return np.maximum(np.convolve(masses, chances) if most < masses.size else np.convolve(chances, masses), LEAST)


def _clean(setting: Setting) -> NDArray[np.float64]:
    """Return the differing client's telling coordinates in either world, in grid steps, shape (2, telling)."""
    mechanism = setting.mechanism
    scale = mechanism.precision / (mechanism.high - mechanism.low)
    return np.clip(np.round((setting.ends[:, setting.telling] - mechanism.low) * scale, DIGITS), 0, mechanism.precision)


def _centers(setting: Setting) -> NDArray[np.float64]:
    """Return what the others' values, and bits that carry no value, add to the telling coordinates of a sum."""
    mechanism, others = setting.mechanism, setting.visible - 1
    if setting.view not in {"sum", "estimate"}:
        return np.zeros(setting.telling.size)
    step = (mechanism.high - mechanism.low) / mechanism.precision
    still = np.rint((setting.others[setting.telling] - mechanism.low) / step)
    return np.asarray(others * still + mechanism.silent_ones * setting.visible, dtype=np.float64)


def _noise(setting: Setting) -> Law | None:
    """Return the noise of one coordinate of the observation; for continuous noise the discrete law of its size."""
    mechanism = setting.mechanism
    if setting.view == "estimate":
        return mechanism.server_law()
    if setting.view in {"message", "records"}:
        return mechanism.client_law()
    law = getattr(mechanism.error(setting.visible), "law", None)
    return law if hasattr(law, "pmf") else None
