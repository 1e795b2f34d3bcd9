"""From LETOR rows to arms: K-means over the features, then the count of each relevance label in each cluster.

Features are compressed by sign(x)·ln(1 + |x|) before they are standardized. MSLR mixes scores in [0, 1] with page
lengths and click counts up to 10⁸; without the logarithm a handful of giant pages would take clusters of their own.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

from client.environments.counts import LABELS
from client.environments.letor import rows
from common.errors import BadParameter

STARTS = 10
"""n_init: K-means runs from this many starts and the one of least inertia is kept."""


def build_counts(paths: Sequence[Path], clusters: int, seed: int = 0, minimum_rows: int = 1) -> NDArray[np.int64]:
    """Counts of labels by arm, int64, shape (K, 5), K ≤ clusters: smaller clusters than `minimum_rows` are dropped.

    Arms are numbered by the first row, in the order of the files, that falls into them, so that the numbering does
    not hang on K-means' own labels. The same files, seed and scikit-learn give the same table.
    Raises BadParameter on a bad line, on clusters < 2, and on fewer different rows than clusters.
    """
    if clusters < 2:
        raise BadParameter("clusters", clusters, "at least 2 arms are needed")
    labels, features = _load(paths)
    points = StandardScaler().fit_transform(np.sign(features) * np.log1p(np.abs(features)))
    different = len(np.unique(points, axis=0))
    if different < clusters:
        raise BadParameter("clusters", clusters, f"the files have only {different} different rows")
    means = KMeans(clusters, n_init=STARTS, random_state=seed).fit(points)
    return _count(np.asarray(means.labels_, dtype=np.int64), labels, minimum_rows)


def _load(paths: Sequence[Path]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    found = [(row.label, row.features) for path in paths for row in rows(path)]
    if not found:
        raise BadParameter("file", ", ".join(map(str, paths)), "no rows found")
    return np.array([label for label, _ in found], dtype=np.int64), np.array([features for _, features in found])


def _count(assigned: NDArray[np.int64], labels: NDArray[np.int64], minimum_rows: int) -> NDArray[np.int64]:
    _, first, arm = np.unique(assigned, return_index=True, return_inverse=True)
    table = np.zeros((len(first), LABELS), dtype=np.int64)
    np.add.at(table, (arm, labels), 1)
    table = table[np.argsort(first)]
    kept: NDArray[np.int64] = table[table.sum(axis=1) >= minimum_rows]
    if len(kept) < 2:
        raise BadParameter("minimum_rows", minimum_rows, f"leaves {len(kept)} arms, and at least 2 are needed")
    return kept
