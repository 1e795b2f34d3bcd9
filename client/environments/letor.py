"""Makes the tables of `mslr` and `contextual-mslr` from LETOR files, for `distrust data`.

LETOR files have lines `label qid:q 1:v 2:v …`, as MSLR-WEB10K and WEB30K are published. Features are compressed by
sign(x)·ln(1 + |x|) before they are standardized: MSLR mixes scores in [0, 1] with page lengths and click counts up to
10⁸, and without the logarithm a few giant pages would take clusters of their own.

K-means over the features makes arms; then the rows of each relevance label are counted in each cluster. It needs
scikit-learn (extra `mslr`). A principal component analysis makes contexts; it needs NumPy only.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments.contextual import COVERED
from distrust.client.environments.contextual_mslr import ContextTable
from distrust.client.environments.mslr import HIGHEST_LABEL, LABELS
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.extras import clustering, preprocessing, sampling
from distrust.common.inputs import open_file

FEATURES = 136  # of a row of MSLR
BLOCK = 1 << 22  # bytes that are read at once

STARTS = 10
"""n_init: K-means runs from this many starts and keeps the result of least inertia."""

MANY = 100_000
"""Rows above which K-means runs in single precision, and tries its starts on `SAMPLE` rows."""

SAMPLE = 20_000  # rows

INDICES = np.arange(1, FEATURES + 1)
DIGITS = np.array([len(str(index)) for index in INDICES])

BEGINNING = re.compile(rb"^[0-4][ \t]+qid:[0-9]+[ \t]", re.MULTILINE)

Points = NDArray[np.floating[Any]]


class LetorRow(NamedTuple):
    """A query-url pair: relevance label 0..4, query id, features, float64 of shape (136,); absent ones are 0."""

    label: int
    query: int
    features: NDArray[np.float64]


class LetorBlock(NamedTuple):
    """Some rows on end: labels, int64 of shape (n,), and features, float64 of shape (n, 136)."""

    labels: NDArray[np.int64]
    features: NDArray[np.float64]


def letor_blocks(path: Path, field: str = "files") -> Iterator[LetorBlock]:
    """Yield the rows of a file in blocks of some thousands. Ten times as fast where no row lacks a feature.

    field   names the file in the refusal of one that cannot be read.
    Raises  BadParameter.
    """
    for number, lines in _lines(path, field):
        block = _dense(lines) or _gathered(list(_rows(path, number, lines)))
        if len(block.labels):
            yield block


def _lines(path: Path, field: str = "files") -> Iterator[tuple[int, list[bytes]]]:
    """Yield lists of lines, each with the number of its first line."""
    number = 1
    try:
        with open_file(path, None) as file:
            while lines := file.readlines(BLOCK):
                yield number, lines
                number += len(lines)
    except OSError as error:
        raise BadParameter(field, str(path), f"cannot be read: {error.strerror}") from error


def _rows(path: Path, first: int, lines: Sequence[bytes]) -> Iterator[LetorRow]:
    for number, line in enumerate(lines, start=first):
        cells = line.decode("ascii", "replace").partition("#")[0].split()
        if cells:
            yield _letor_row(cells, f"{path} line {number}")


def _gathered(parsed: Sequence[LetorRow]) -> LetorBlock:
    features = np.array([row.features for row in parsed], dtype=np.float64).reshape(len(parsed), FEATURES)
    return LetorBlock(np.array([row.label for row in parsed], dtype=np.int64), features)


def _dense(lines: Sequence[bytes]) -> LetorBlock | None:
    """Return a block of lines that all have exactly 136 features, read at once; None for any other lines."""
    text, count = b"".join(lines), len(lines)
    regular = text.count(b":") == (FEATURES + 1) * count and len(text.split()) == (FEATURES + 2) * count
    if not regular or len(BEGINNING.findall(text)) != count:
        return None
    numbers = _numbers(text.replace(b"qid:", b"").replace(b":", b" "))
    if len(numbers) != (2 * FEATURES + 2) * count:
        return None
    table = numbers.reshape(count, -1)
    whole = np.isfinite(table).all() and (table[:, 2::2] == INDICES).all() and _spelt(text, count)
    return LetorBlock(table[:, 0].astype(np.int64), table[:, 3::2]) if whole else None


def _spelt(text: bytes, count: int) -> bool:
    """Return whether indices are digits only: 7.0, 07 and 1e2 are numbers with the right values as well."""
    raw = np.frombuffer(text, dtype=np.uint8)
    colons = np.flatnonzero(raw == ord(":")).reshape(count, FEATURES + 1)[:, 1:]
    spaces, tens = raw[colons - DIGITS - 1], raw[colons[:, INDICES >= 100] - 2]
    return bool((spaces <= ord(" ")).all() and (tens <= ord("9")).all())


def _numbers(text: bytes) -> NDArray[np.float64]:
    """Return the numbers of a text; none where one of its words is no number."""
    try:
        return np.fromstring(text, sep=" ")
    except ValueError:
        return np.zeros(0)


def _letor_row(cells: list[str], where: str) -> LetorRow:
    label, cell = cells[0], cells[1] if len(cells) > 1 else ""
    if label not in {"0", "1", "2", "3", "4"}:
        raise BadParameter(where, label, f"a line must begin with a relevance label, 0 to {HIGHEST_LABEL}")
    key, _, query = cell.partition(":")
    if key != "qid" or not (query.isascii() and query.isdigit()):
        raise BadParameter(where, cell, "the second entry must be qid:NUMBER")
    features = np.zeros(FEATURES)
    last = 0
    for cell in cells[2:]:
        index, value = _feature(cell, where)
        if index <= last:
            raise BadParameter(where, cell, f"features must be in rising order, and {last} came before")
        features[index - 1] = value
        last = index
    return LetorRow(int(label), int(query), features)


def _feature(cell: str, where: str) -> tuple[int, float]:
    key, _, text = cell.partition(":")
    if not (key.isascii() and key.isdigit() and len(key) <= 3 and 1 <= int(key) <= FEATURES):
        raise BadParameter(where, cell, f"a feature must be INDEX:VALUE with an index from 1 to {FEATURES}")
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadParameter(where, cell, "the value of a feature must be a finite number")
    return int(key), value


def build_counts(paths: Sequence[Path], clusters: int, seed: int = 0, minimum_rows: int = 1) -> NDArray[np.int64]:
    """Return counts of labels by arm, int64, shape (K, 5), K ≤ clusters: clusters below `minimum_rows` are dropped.

    Arms are numbered by the first row, in the order of the files, that falls into them: K-means numbers its clusters at
    random. The same files, seed and scikit-learn give the same table.
    Raises BadParameter on a bad line, on clusters < 2, and on fewer different rows than clusters.
    """
    scaler = preprocessing.StandardScaler(copy=False)  # before the files are read: scikit-learn may be missing
    if clusters < 2:
        raise BadParameter("clusters", clusters, "at least 2 arms are needed")
    labels, features = load_compressed(paths)
    points = scaler.fit_transform(features)
    different = _different(points, clusters)
    if different < clusters:
        raise BadParameter("clusters", clusters, f"the files have only {different} different rows")
    return _count(_clusters(points, clusters, seed), labels, minimum_rows)


def load_compressed(paths: Sequence[Path], field: str = "files") -> tuple[NDArray[np.int64], Points]:
    """Return labels and compressed features of all files, as 4-byte numbers when there are more than `MANY` rows."""
    labels: list[NDArray[np.int64]] = []
    features: list[Points] = []
    count = 0
    for block in (block for path in paths for block in letor_blocks(path, field)):
        labels.append(block.labels)
        features.append(np.sign(block.features) * np.log1p(np.abs(block.features)))
        count += len(block.labels)
        if count > MANY:
            features = [part.astype(np.float32, copy=False) for part in features]
    if not labels:
        raise BadParameter(field, ", ".join(map(str, paths)), "no rows found")
    return np.concatenate(labels), np.concatenate(features)


def _different(points: Points, enough: int) -> int:
    """Return the number of different rows, counted up to `enough`."""
    seen: set[bytes] = set()
    for row in points:
        seen.add((row + 0.0).tobytes())  # of two zeros one
        if len(seen) == enough:
            break
    return len(seen)


def _clusters(points: Points, clusters: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each row, shape (n,). May overwrite `points`."""
    if len(points) <= MANY:
        return np.asarray(clustering.KMeans(clusters, n_init=STARTS, random_state=seed).fit(points).labels_, np.int64)
    sample = points[np.sort(sampling.sample_without_replacement(len(points), SAMPLE, random_state=seed))]
    centres = clustering.KMeans(clusters, n_init=STARTS, random_state=seed).fit(sample).cluster_centers_
    fitted = clustering.KMeans(clusters, init=centres, n_init=1, random_state=seed, copy_x=False).fit(points)
    return np.asarray(fitted.labels_, dtype=np.int64)


def _count(assigned: NDArray[np.int64], labels: NDArray[np.int64], minimum_rows: int) -> NDArray[np.int64]:
    _, first, arm = np.unique(assigned, return_index=True, return_inverse=True)
    table = np.zeros((len(first), LABELS), dtype=np.int64)
    np.add.at(table, (arm, labels), 1)
    table = table[np.argsort(first)]
    kept: NDArray[np.int64] = table[table.sum(axis=1) >= minimum_rows]
    if len(kept) < 2:
        raise BadParameter("minimum_rows", minimum_rows, f"leaves {len(kept)} arms, and at least 2 are needed")
    return kept


def build_contexts(paths: Sequence[Path], fit: Sequence[Path], components: int) -> ContextTable:
    """Return a table of the rows of `paths`, reduced by a principal component analysis of the rows of `fit`.

    Features are compressed by sign(x)·ln(1 + |x|), standardized, and projected. Mean, deviation, components and radii
    are those of `fit`, which should hold other rows. Each component is divided by its deviation, so that all count
    alike. The largest weight of a component is positive. Raises BadParameter on a bad line, and for more components
    than independent features.
    """
    _, held = load_compressed(fit, "fit")
    centre = held.mean(axis=0, dtype=np.float64)
    spread = held.std(axis=0, dtype=np.float64)
    spread = np.where(spread > 0, spread, np.inf)  # a feature that never varies says nothing
    values, vectors = np.linalg.eigh(np.cov((held - centre) / spread, rowvar=False, ddof=0))
    independent = int((values > 1e-9 * values[-1]).sum()) if values[-1] > 0 else 0
    if not 1 <= components <= independent:
        allowed = f"must be from 1 to {independent}, the independent features of the held-back rows"
        raise BadParameter("components", components, allowed)
    chosen = vectors[:, ::-1][:, :components]
    chosen = chosen * np.sign(np.take_along_axis(chosen, np.abs(chosen).argmax(axis=0)[np.newaxis], axis=0))
    projection = chosen / np.sqrt(values[::-1][:components]) / spread[:, np.newaxis]
    radii = np.quantile(np.sqrt(np.cumsum(_projected(held, centre, projection) ** 2, axis=1)), COVERED, axis=0)
    labels, features = load_compressed(paths)
    return ContextTable(labels, _projected(features, centre, projection), radii)


def _projected(features: Points, centre: Floats, projection: Floats) -> Floats:
    projected: Floats = (features - centre) @ projection
    return projected
