"""Prices of car loans: customers of the data set CRPM-12-001, who answer by a logit model that is fitted to them.

Source: GLB Appendix F, with the features of Ban & Keskin 2020. The data set (On-Line Auto Lending) is
handed out by the Center for Pricing and Revenue Management of Columbia University, and is not part of this package: a
run file names a copy of it. Needs scikit-learn (extra `mslr`).

The price that a customer was offered is not in the data. It is the present value of the payments less the loan:

    p = mp · Σ (1 + rate)^-τ over τ = 1..Term, less Amount_Approved; rate = onemonth/1200 a month.

`onemonth` is a yearly rate in percent: its average of 1.4 gives the 0.12 % a month of Ban & Keskin.

Where the data set is not at hand, `made_up` customers stand in for it. `made_up_customers` draws them from a population
of our own invention: nothing in it was fitted to the data set, and figures on it say nothing about car loans.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import Seed
from distrust.client.environments.contextual import (
    COVERED,
    LARGEST_ENTRY,
    Contexts,
    ContextualSpec,
    GeneralizedLinear,
    LongContexts,
    within_ball,
)
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.extras import linear_model
from distrust.common.inputs import MOST_TABLE, open_file
from distrust.common.randomness import Stream, UnsafeSeededStream, generator
from distrust.common.specs.base import PolicySpec

HIGHEST_PRICE = 25_000.0
"""Dollars. Prices are parts of it, so that they and the values of rewards lie in [0, 1]."""

FEATURES = ("Primary_FICO", "Term", "Amount_Approved", "onemonth", "Competition_rate")
"""Columns with numbers: credit score, months, dollars, prime rate and competitor's rate in percent a year."""

CATEGORY, PAYMENT, ANSWER = "CarType", "mp", "apply"
"""Columns with the type of car, one-hot encoded; the monthly payment in dollars; and 1 for customers who applied."""

MOST_CATEGORIES = 50  # types of cars, each a feature of every context; a file with more is refused

MADE_UP_SEED = 1
"""Seed of the made-up customers. They are one population, as in a file, for every seed of the environment."""

DIGITS = 6
"""Decimals of θ*. The last bits of a fit differ between processors, and answers must not."""

STEPS = 20  # of a bisection for the penalty: its logarithm to 1e-5

_OBTAINED = (
    "the file CPRM_AutoLOan_OnlineAutoLoanData.csv of the data set CRPM-12-001, which Columbia University hands out to "
    "researchers, must be named here"
)


class Customers(NamedTuple):
    """Rows of the data set.

    numbers     of FEATURES, shape (n, 5).
    categories  index of the type of car, int64, shape (n,).
    prices      imputed, in dollars, shape (n,); may lie outside [0, HIGHEST_PRICE].
    applied     0 or 1, shape (n,).
    """

    numbers: Floats
    categories: NDArray[np.int64]
    prices: Floats
    applied: NDArray[np.int64]


class Demand(NamedTuple):
    """The population model: x of each customer, shape (n, c); θ*, shape (2c,); and how many x were longer than 1."""

    customers: Floats
    theta: Floats
    clipped: int


class AutoLendingSpec(ContextualSpec):
    """`[environment] name = "auto-lending"`: an arm is a price, a reward is 1 where the customer applies for the loan.

    file           the user's copy of the data set.
    made_up        in its place, so many customers of `made_up_customers`.
    arms           K prices, evenly from 0 to 25,000 dollars.
    value          revenue: regret is of price times P(apply), and customers are offered the price of the largest such
                   product by the published parameters. apply: of P(apply) alone.
    radius         length of standardized features that becomes 1; that of 95 % of the customers when absent.
    long_contexts  what becomes of longer ones.
    theta_norm     largest ‖θ*‖, kept by a stronger penalty. Policies that have a `theta_norm` take it from here. The
                   others assume 1, at which demand hardly depends on the price. Absent: the fit as it is, and the
                   policies' widths and projections do not fit θ*.
    """

    name: Literal["auto-lending"]
    seed: Seed = None
    file: str | None = None
    made_up: Annotated[int, Field(ge=100, le=1_000_000)] | None = None
    arms: Annotated[int, Field(ge=2, le=10_000)] = 25
    value: Literal["revenue", "apply"] = "revenue"
    radius: Annotated[float, Field(gt=0, le=1e6)] | None = None
    long_contexts: LongContexts = "clip"
    theta_norm: Annotated[float, Field(gt=0, le=1e6)] | None = None

    def build(self) -> "AutoLending":
        """Return the world. Raises BadParameter: no such file, a broken one, or a long context that is refused."""
        demand = _demand(self._source(), self.radius, self.long_contexts, self.theta_norm)
        prices = np.linspace(0, 1, self.arms)
        weights = tuple(prices.tolist()) if self.value == "revenue" else None
        return AutoLending(
            name="auto-lending",
            arms=self.arms,
            theta=demand.theta[np.newaxis],
            link="logistic",
            parameters="single",
            rewards=(0.0, 1.0),
            weights=weights,
            clipped=demand.clipped,
            customers=demand.customers,
            prices=prices,
        )

    def _source(self) -> "Source":
        """Return the customers' source. Raises BadParameter without one, with two, and for a missing file."""
        if self.made_up is not None:
            if self.file is not None:
                raise BadParameter("environment.made_up", self.made_up, "stands in for environment.file: leave one out")
            return Source(made_up=self.made_up)
        if self.file is None:
            raise BadParameter("environment.file", None, f"{_OBTAINED}, or made_up given in its place")
        try:
            changed = Path(self.file).stat().st_mtime_ns
        except OSError as error:
            raise BadParameter("environment.file", self.file, f"{error.strerror}; {_OBTAINED}") from error
        return Source(Path(self.file), changed)

    def policy_defaults(self, policy: type[PolicySpec]) -> Mapping[str, object]:
        words = super().policy_defaults(policy)
        if self.theta_norm is None or not 1 <= self.theta_norm <= 100 or "theta_norm" not in policy.model_fields:
            return words
        return {**words, "theta_norm": self.theta_norm}


@dataclass(frozen=True, kw_only=True)
class AutoLending(GeneralizedLinear):
    """Customers drawn uniformly with replacement. Contexts are φ_a = (x, p_a x)/√2, so ‖x‖ ≤ 1 gives ‖φ_a‖ ≤ 1.

    customers  x, shape (n, c): standardized numbers, and the type of car, which stands for the constant as well.
    prices     p_a as parts of HIGHEST_PRICE, shape (K,).
    """

    customers: Floats
    prices: Floats

    def contexts(self, count: int, stream: Stream) -> Contexts:
        rng = generator(stream)
        payout_draws = rng.random(count)
        met = self.customers[rng.integers(0, len(self.customers), count)]
        return Contexts(offers(met[:, np.newaxis], self.prices), payout_draws)


def offers(customers: Floats, prices: Floats) -> Floats:
    """Return (x, p x)/√2 for x of shape (…, c) and prices whose shape broadcasts with "…": shape (…, 2c)."""
    times = np.broadcast_to(prices, np.broadcast_shapes(prices.shape, customers.shape[:-1]))[..., np.newaxis]
    plain = np.broadcast_to(customers, (*times.shape[:-1], customers.shape[-1]))
    both: Floats = np.concatenate([plain, times * plain], axis=-1) / np.sqrt(2)
    return both


class Source(NamedTuple):
    """The customers' source: a file, as it was when it last changed, in nanoseconds; or so many made-up ones."""

    path: Path = Path()
    changed: int = 0
    made_up: int = 0


@lru_cache(maxsize=4)
def _demand(source: Source, radius: float | None, how: LongContexts, bound: float | None) -> Demand:
    """Return the model that is fitted to the customers; it is kept while their file does not change."""
    rows = made_up_customers(source.made_up) if source.made_up else read_customers(source.path, "environment.file")
    spread = rows.numbers.std(axis=0)
    standard = (rows.numbers - rows.numbers.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    several = np.concatenate([standard, np.eye(rows.categories.max() + 1)[rows.categories]], axis=1)
    if radius is None:
        radius = float(np.quantile(np.sqrt((several * several).sum(axis=1)), COVERED))
    # The model is fitted to the shortened features, so that it is exactly the law of the contexts that clients have.
    customers, clipped = within_ball(several / radius, how, first_line=2)
    # θ of x/radius is radius times θ of x: with this penalty the radius does not change the model.
    theta = _fitted(offers(customers, rows.prices / HIGHEST_PRICE), rows.applied, radius**-2, bound)
    return Demand(customers, theta, clipped)


def _fitted(contexts: Floats, applied: NDArray[np.int64], least: float, bound: float | None) -> Floats:
    """Return θ* by logistic regression with the penalty `least` ‖θ‖²/2, or a larger one that keeps ‖θ*‖ ≤ bound."""

    def fit(penalty: float) -> Floats:
        model = linear_model.LogisticRegression(C=1 / penalty, fit_intercept=False, solver="newton-cholesky", tol=1e-8)
        model.fit(contexts, applied)
        return np.asarray(model.coef_[0], dtype=np.float64)

    theta = fit(least)
    if bound is None or np.linalg.norm(theta) <= bound:
        return _towards_zero(theta)
    # At the minimum penalty · θ = Σ (y - μ) φ, at most Σ ‖φ‖ long: that penalty over the bound is enough.
    low, high = float(np.log(least)), float(np.log(np.sqrt((contexts * contexts).sum(axis=1)).sum() / bound))
    for _ in range(STEPS):  # the norm falls as the penalty grows
        middle = (low + high) / 2
        long = np.linalg.norm(fit(float(np.exp(middle)))) > bound
        low, high = (middle, high) if long else (low, middle)
    theta = fit(float(np.exp(high)))
    theta *= min(1.0, bound / float(np.linalg.norm(theta)))  # what the solver's tolerance leaves
    return _towards_zero(theta)


def _towards_zero(theta: Floats) -> Floats:
    """Return numbers cut to DIGITS decimals: none grows, so that a bound of their length still holds."""
    cut: Floats = np.trunc(theta * 10**DIGITS) / 10**DIGITS
    return cut


def made_up_customers(count: int) -> Customers:
    """Return customers of a made-up population, the same ones for the same `count`.

    Score        normal, 720 ± 45, cut to [580, 850]; s is its standardized value.
    Contract     36, 48, 60 or 72 months; a loan whose logarithm is normal, about 23,000 dollars ± 45 %, in hundreds.
    Rates        percent a year. Prime 1.1 to 1.8; competitor 5.5 - 0.8 s ± 0.5, at least 2.5. The customer's own is the
                 competitor's plus 4 ± 4, at least 2 and at most 25, and the price follows from it.
    Type of car  new, used or a loan that is paid off: 40, 35 and 25 %.
    Answer       1 with probability 1/(1 + e^-v), v = 1.5 - 0.3 s + 0.2 (competitor - 5.5) - (12 + 2 s - 2 used) p for
                 the price p as a part of 25,000 dollars.
    """
    rng = generator(UnsafeSeededStream(MADE_UP_SEED, "auto-lending", "made-up", count))
    score = np.clip(rng.normal(720, 45, count).round(), 580, 850)
    term = rng.choice([36.0, 48.0, 60.0, 72.0], count, p=[0.2, 0.15, 0.45, 0.2])
    loan = np.clip(np.exp(rng.normal(10.05, 0.45, count)), 5_000, 80_000).round(-2)
    prime = rng.choice([1.1, 1.2, 1.3, 1.5, 1.8], count)
    s = (score - 720) / 45
    rival = np.maximum(2.5, 5.5 - 0.8 * s + rng.normal(0, 0.5, count)).round(2)
    car = rng.choice(3, count, p=[0.4, 0.35, 0.25])
    monthly = np.clip(rival + rng.normal(4, 4, count), 2, 25) / 1200
    payment = (loan * monthly / -np.expm1(-term * np.log1p(monthly))).round(2)
    prices = _imputed(np.stack([score, term, loan, prime, rival, payment], axis=1))
    slope = 12 + 2 * s - 2 * (car == 1)
    chance = 1.5 - 0.3 * s + 0.2 * (rival - 5.5) - slope * prices / HIGHEST_PRICE
    answers = rng.random(count) < 1 / (1 + np.exp(-chance))
    numbers = np.stack([score, term, loan, prime, rival], axis=1)
    return Customers(numbers, car.astype(np.int64), prices, answers.astype(np.int64))


def read_customers(path: Path, field: str = "file") -> Customers:
    """Return the rows of a file: CSV with a header, with the columns that this module names, in any order.

    Raises BadParameter, in the name of `field`: no such file, a column that is missing, a cell that is empty or no
    number, a term, payment or loan that is not above 0, an answer that is not 0 or 1, only one answer. The message
    names the line.
    """
    try:
        with io.TextIOWrapper(open_file(path, MOST_TABLE), encoding="utf-8-sig", newline="") as file:
            return _customers(csv.DictReader(file), path, field)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadParameter(field, str(path), f"cannot be read ({error}); {_OBTAINED}") from error


def _customers(reader: "csv.DictReader[str]", path: Path, field: str) -> Customers:
    columns = (*FEATURES, PAYMENT, ANSWER)
    missing = [name for name in (*columns, CATEGORY) if name not in (reader.fieldnames or ())]
    if missing:
        raise BadParameter(field, str(path), f"line 1 lacks the columns {', '.join(missing)}; {_OBTAINED}")
    numbers: list[list[float]] = []
    kinds: list[str] = []
    for row in reader:
        kinds.append((row[CATEGORY] or "").strip())
        numbers.append([_number(row[name], name, f"{path} line {reader.line_num}") for name in columns])
        fault = "an empty cell" if not kinds[-1] else _fault(dict(zip(columns, numbers[-1], strict=True)))
        if fault:
            raise BadParameter(field, str(path), f"line {reader.line_num}: {fault}")
    table = np.array(numbers, dtype=np.float64).reshape(-1, len(columns))
    answers = table[:, -1].astype(np.int64)
    if len(set(answers.tolist())) < 2:
        raise BadParameter(field, str(path), f"{ANSWER} must be 1 for some customers and 0 for others")
    names, categories = np.unique(np.array(kinds, dtype=object), return_inverse=True)
    if len(names) > MOST_CATEGORIES:
        raise BadParameter(field, str(path), f"{CATEGORY} has {len(names)} values: at most {MOST_CATEGORIES}")
    return Customers(table[:, : len(FEATURES)], categories, _imputed(table), answers)


def _imputed(table: Floats) -> Floats:
    """Return the prices of rows: FEATURES, then payments, in columns. Σ (1+r)^-τ is (1 - (1+r)^-Term)/r."""
    terms, loans, rates = table[:, 1], table[:, 2], table[:, 3] / 1200
    safe = np.where(rates == 0, 1.0, rates)
    factors = np.where(rates == 0, terms, -np.expm1(-terms * np.log1p(safe)) / safe)
    return np.asarray(table[:, len(FEATURES)] * factors - loans)


def _number(cell: str | None, name: str, where: str) -> float:
    try:
        value = float(cell or "")
    except ValueError:
        value = np.nan
    if not abs(value) <= LARGEST_ENTRY:
        raise BadParameter(f"{where}, column {name}", cell, f"must be a number of at most {LARGEST_ENTRY:g}")
    return value


def _fault(row: dict[str, float]) -> str:
    """Return what is wrong with the numbers of a line; empty if nothing is."""
    if row[ANSWER] not in {0.0, 1.0}:
        return f"{ANSWER} must be 0 or 1"
    wrong = [name for name in ("Term", "Amount_Approved", PAYMENT) if row[name] <= 0]
    if wrong:
        return f"{wrong[0]} must be above 0"
    return "" if row["onemonth"] >= 0 else "onemonth must be at least 0"
