"""From LETOR rows to arms: K-means over the features, then the count of each relevance label in each cluster.

Features are compressed by sign(x)·ln(1 + |x|) before they are standardized. MSLR mixes scores in [0, 1] with page
lengths and click counts up to 10⁸; without the logarithm a handful of giant pages would take clusters of their own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler
from sklearn.utils.random import sample_without_replacement

from distrust.client.environments.counts import LABELS
from distrust.client.environments.letor import blocks
from distrust.common.errors import BadParameter

Points = NDArray[np.floating[Any]]

STARTS = 10
"""n_init: K-means runs from this many starts and the one of least inertia is kept."""

MANY = 100_000
"""Rows from which on single precision has to do, and the starts are tried on a sample of `SAMPLE` rows."""

SAMPLE = 20_000


def build_counts(paths: Sequence[Path], clusters: int, seed: int = 0, minimum_rows: int = 1) -> NDArray[np.int64]:
    """Counts of labels by arm, int64, shape (K, 5), K ≤ clusters: smaller clusters than `minimum_rows` are dropped.

    Arms are numbered by the first row, in the order of the files, that falls into them, so that the numbering does
    not hang on K-means' own labels. The same files, seed and scikit-learn give the same table.
    Raises BadParameter on a bad line, on clusters < 2, and on fewer different rows than clusters.
    """
    if clusters < 2:
        raise BadParameter("clusters", clusters, "at least 2 arms are needed")
    labels, features = _load(paths)
    points = StandardScaler(copy=False).fit_transform(features)
    different = _different(points, clusters)
    if different < clusters:
        raise BadParameter("clusters", clusters, f"the files have only {different} different rows")
    return _count(_assigned(points, clusters, seed), labels, minimum_rows)


def _load(paths: Sequence[Path]) -> tuple[NDArray[np.int64], Points]:
    """Labels and compressed features of all files, a block at a time; 4 bytes a number where there are `MANY` rows."""
    labels: list[NDArray[np.int64]] = []
    features: list[Points] = []
    count = 0
    for found in (block for path in paths for block in blocks(path)):
        labels.append(found.labels)
        features.append(np.sign(found.features) * np.log1p(np.abs(found.features)))
        count += len(found.labels)
        if count > MANY:
            features = [part.astype(np.float32, copy=False) for part in features]
    if not labels:
        raise BadParameter("file", ", ".join(map(str, paths)), "no rows found")
    return np.concatenate(labels), np.concatenate(features)


def _different(points: Points, enough: int) -> int:
    """Different rows, counted up to `enough`."""
    seen: set[bytes] = set()
    for row in points:
        seen.add((row + 0.0).tobytes())  # of two zeros one
        if len(seen) == enough:
            break
    return len(seen)


def _assigned(points: Points, clusters: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each row, shape (n,). `points` may be overwritten."""
    if len(points) <= MANY:
        return np.asarray(KMeans(clusters, n_init=STARTS, random_state=seed).fit(points).labels_, dtype=np.int64)
    sample = points[np.sort(sample_without_replacement(len(points), SAMPLE, random_state=seed))]
    begun = KMeans(clusters, n_init=STARTS, random_state=seed).fit(sample).cluster_centers_
    found = KMeans(clusters, init=begun, n_init=1, random_state=seed, copy_x=False).fit(points)
    return np.asarray(found.labels_, dtype=np.int64)


def _count(assigned: NDArray[np.int64], labels: NDArray[np.int64], minimum_rows: int) -> NDArray[np.int64]:
    _, first, arm = np.unique(assigned, return_index=True, return_inverse=True)
    table = np.zeros((len(first), LABELS), dtype=np.int64)
    np.add.at(table, (arm, labels), 1)
    table = table[np.argsort(first)]
    kept: NDArray[np.int64] = table[table.sum(axis=1) >= minimum_rows]
    if len(kept) < 2:
        raise BadParameter("minimum_rows", minimum_rows, f"leaves {len(kept)} arms, and at least 2 are needed")
    return kept
