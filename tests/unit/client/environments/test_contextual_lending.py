"""Tests that car loan prices are learned from files of customers who follow a known logit model."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.auto_lending import AutoLending, made_up_customers, offers, read_customers
from distrust.client.environments.contextual import ContextualWorld, experience
from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.specs.contextual import LdpSgdSpec
from distrust.common.specs.linucb import LinUcbSpec
from distrust.lab.play.in_process import run
from distrust.lab.play.run_file import parse

HEADER = "Tier,Primary_FICO,Term,Amount_Approved,onemonth,Competition_rate,CarType,mp,apply"
GOOD = ["1,700,60,20000,1.4,5.5,N,390.5,1", "2,650,48,15000,1.2,6.5,U,370,0", "1,720,36,30000,0,4.5,N,900,0"]


def _price(term: int, loan: float, yearly: float, payment: float) -> float:
    """Return the present value of the payments, added payment by payment, less the loan."""
    return sum(payment / (1 + yearly / 1200) ** month for month in range(1, term + 1)) - loan


def _demand(fico: float, price: float) -> float:
    """Return P(apply) of a customer of `_data`: logit in (x, p x), with p in parts of 25,000 dollars."""
    predictor = 0.5 - (fico - 700) / 50 - (4 + (fico - 700) / 50) * price / 25_000
    return 1 / (1 + math.exp(-predictor))


def _data(path: Path, count: int) -> Path:
    rng = np.random.default_rng(1)
    lines = [HEADER]
    for _ in range(count):
        fico, term, loan = int(rng.integers(600, 800)), int(rng.choice([36, 48, 60])), int(rng.integers(5000, 40_000))
        yearly, rival, payment = round(rng.uniform(1, 5), 2), round(rng.uniform(3, 9), 2), 0.0
        payment = round(loan / term * rng.uniform(1.1, 1.6), 2)
        answer = int(rng.random() < _demand(fico, _price(term, loan, yearly, payment)))
        lines.append(f"1,{fico},{term},{loan},{yearly},{rival},{rng.choice(['N', 'U', 'R'])},{payment},{answer}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _data(tmp_path_factory.mktemp("lending") / "loans.csv", 4000)


def _world(path: Path, **table: object) -> AutoLending:
    world = build_environment(read_spec({"name": "auto-lending", "file": str(path), **table}))
    assert isinstance(world, ContextualWorld)
    assert isinstance(world, AutoLending)
    return world


def test_prices_are_the_present_value_of_the_payments_less_the_loan(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text("\n".join([HEADER, *GOOD]) + "\n", encoding="utf-8")
    rows = read_customers(path)
    expected = [_price(60, 20_000, 1.4, 390.5), _price(48, 15_000, 1.2, 370), 36 * 900 - 30_000]
    assert np.allclose(rows.prices, expected, rtol=0, atol=1e-6)
    assert rows.categories.tolist() == [0, 1, 0]
    assert rows.applied.tolist() == [1, 0, 0]
    assert rows.numbers[0].tolist() == [700, 60, 20_000, 1.4, 5.5]


def test_columns_may_come_in_any_order_and_with_others(tmp_path: Path, data: Path) -> None:
    lines = [line.split(",") for line in data.read_text("utf-8-sig").splitlines()]
    path = tmp_path / "turned.csv"
    path.write_text("\n".join(",".join(["x", *reversed(line)]) for line in lines), encoding="utf-8")
    assert (_world(path).theta == _world(data).theta).all()


def _fit_contexts(world: AutoLending, path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the contexts and answers that θ* is fitted to: each customer with the price that it was offered."""
    rows = read_customers(path)
    x, prices = world.customers, rows.prices[:, np.newaxis] / 25_000
    return np.concatenate([x, prices * x], axis=1) / math.sqrt(2), rows.applied


def test_theta_maximizes_the_penalized_likelihood(data: Path) -> None:
    """At the maximum of Σ log P - ‖θ/radius‖²/2 the gradient is zero: θ/radius² = Σ (y - μ) φ."""
    world = _world(data, radius=3)
    contexts, applied = _fit_contexts(world, data)
    theta = world.theta[0]
    gradient = (applied - 1 / (1 + np.exp(-contexts @ theta))) @ contexts - theta / 9
    assert np.abs(gradient).max() < 0.01
    assert np.linalg.norm(theta) > 2


def test_a_bound_of_theta_is_kept_by_a_larger_penalty(data: Path) -> None:
    """At the maximum in a ball, the gradient of the likelihood points outwards: it is θ times a penalty above 1."""
    world = _world(data, theta_norm=1.0)
    contexts, applied = _fit_contexts(world, data)
    theta = world.theta[0]
    assert 0.999 < np.linalg.norm(theta) <= 1
    gradient = (applied - 1 / (1 + np.exp(-contexts @ theta))) @ contexts
    penalty = float(gradient @ theta)
    assert penalty > 1
    assert np.abs(gradient - penalty * theta).max() < 0.01 * penalty
    assert (_world(data, theta_norm=1000.0).theta == _world(data).theta).all()


def test_the_population_model_is_the_customers_own(data: Path) -> None:
    """4,000 answers fit 16 numbers: P(apply) is near the law that wrote the file, at prices that it contains."""
    world = _world(data, radius=20)
    assert world.clipped == 0
    assert np.allclose(_world(data, radius=40).theta, 2 * world.theta, rtol=0.01, atol=0.1)
    rows = read_customers(data)
    inside = np.flatnonzero((rows.prices > 1000) & (rows.prices < 12_000))[:300]
    asked = offers(world.customers[inside], rows.prices[inside] / 25_000)
    fitted = world.means(asked[:, np.newaxis])[:, 0]
    truth = [_demand(fico, price) for fico, price in zip(rows.numbers[inside, 0], rows.prices[inside], strict=True)]
    assert np.abs(fitted - truth).mean() < 0.05
    assert np.abs(fitted - truth).max() < 0.15


def test_clients_are_customers_and_arms_are_prices(data: Path) -> None:
    world = _world(data)
    assert (world.arms, world.link, world.parameters, world.rewards) == (25, "logistic", "single", (0.0, 1.0))
    assert world.dimension == 2 * (5 + 3)
    assert world.weights == pytest.approx([step / 24 for step in range(25)])
    assert 100 < world.clipped <= 200  # at most the 5 % that are longer than the default radius
    met = world.contexts(400, UnsafeSeededStream(1, "loans")).features
    assert met.shape == (400, 25, 16)
    assert np.sqrt((met**2).sum(axis=-1)).max() < 1 + 1e-12
    known = {row.tobytes() for row in world.customers}
    for client in (0, 57, 399):
        x = met[client, 0, :8] * math.sqrt(2)
        assert any(np.allclose(x, np.frombuffer(row)) for row in known)
        for arm, price in enumerate(np.linspace(0, 1, 25)):
            assert np.allclose(met[client, arm] * math.sqrt(2), [*x, *(price * x)])


def test_made_up_customers_are_one_population_that_answers_by_its_stated_law() -> None:
    """Residuals of the stated law: uncorrelated with 1, p and s. 5,000 answers: 4.5 standard errors, 1 in 49,000."""
    rows, again = made_up_customers(5000), made_up_customers(5000)
    assert all((one == other).all() for one, other in zip(rows, again, strict=True))
    s, p = (rows.numbers[:, 0] - 720) / 45, rows.prices / 25_000
    rival, used = rows.numbers[:, 4], rows.categories == 1
    stated = 1.5 - 0.3 * s + 0.2 * (rival - 5.5) - (12 + 2 * s - 2 * used) * p
    chance = 1 / (1 + np.exp(-stated))
    for weight in (np.ones(5000), p, s):
        error = math.sqrt(float((weight**2 * chance * (1 - chance)).sum()))
        assert abs(float((weight * (rows.applied - chance)).sum())) < 4.5 * error
    _, shares = np.unique(rows.categories, return_counts=True)
    assert shares / 5000 == pytest.approx([0.4, 0.35, 0.25], abs=0.03)
    assert (rows.prices > 0).all()


def test_a_world_of_made_up_customers_needs_no_file_and_has_the_length_that_policies_are_told() -> None:
    """The world of figure glb-f1: its θ* is the fit itself, not one that a penalty shortened."""
    table = {"name": "auto-lending", "made_up": 20_000, "seed": 1}
    spec = read_spec({**table, "theta_norm": 80.0})
    world = build_environment(spec)
    assert isinstance(world, AutoLending)
    assert 78 < float(np.linalg.norm(world.theta)) < 80
    assert (world.theta == build_environment(read_spec(table)).theta).all()  # type: ignore[union-attr]  # AutoLending
    assert spec.policy_defaults(LdpSgdSpec)["theta_norm"] == 80
    assert "theta_norm" not in spec.policy_defaults(LinUcbSpec)
    with pytest.raises(BadParameter, match=r"made_up = 500: stands in for environment\.file"):
        build_environment(read_spec({**table, "made_up": 500, "file": "loans.csv"}))


def test_regret_is_of_revenue_and_rewards_are_answers(data: Path) -> None:
    world = _world(data)
    prices = np.linspace(0, 1, 25)
    rule = ChoiceRule(world.theta, weights=prices, link="logistic")
    seen, regrets = experience(world, rule, 3000, UnsafeSeededStream(2, "loans"))
    assert np.abs(regrets).max() < 1e-12
    assert set(np.unique(seen.rewards)) == {0.0, 1.0}
    met = world.contexts(3000, UnsafeSeededStream(2, "loans")).features
    demand = 1 / (1 + np.exp(-(met @ world.theta[0])))
    assert (seen.arms == (prices * demand).argmax(axis=1)).all()
    chosen = demand[np.arange(3000), seen.arms]
    # Hoeffding: 3,000 answers around the mean of their probabilities; false alarm rate 1e-9.
    assert abs(seen.rewards.mean() - chosen.mean()) < math.sqrt(math.log(2 / 1e-9) / 6000)
    # Without weights clients take the price at which most apply, and the company loses.
    _, lost = experience(world, ChoiceRule(world.theta), 3000, UnsafeSeededStream(2, "loans"))
    expected = (prices * demand).max(axis=1) - (prices * demand)[np.arange(3000), demand.argmax(axis=1)]
    assert np.allclose(lost, expected)
    assert lost.mean() > 0.05


def test_regret_may_be_of_the_answers_alone(data: Path) -> None:
    world = _world(data, value="apply")
    assert world.weights is None
    _, regrets = experience(world, ChoiceRule(world.theta), 500, UnsafeSeededStream(3, "loans"))
    assert np.abs(regrets).max() < 1e-12


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = _data(tmp_path / "loans.csv", 300)
    before = _world(path).theta
    assert (_world(path).theta == before).all()
    _data(path, 200)
    assert len(_world(path).customers) == 200


def test_long_contexts_are_refused_by_their_line(data: Path) -> None:
    with pytest.raises(BadParameter, match=r"line \d+ of the data has a context of length 1\.\d+") as caught:
        _world(data, long_contexts="refuse")
    assert caught.value.field == "environment.long_contexts"
    assert _world(data, long_contexts="refuse", radius=20).clipped == 0


RUN = """
run = "loans"
horizon = 200
environment = {{ name = "auto-lending", file = "{file}", seed = 1, radius = {radius} }}
policy = {{ name = "linucb", batch = 50, link = "identity" {more} }}
mechanism = {{ name = "identity" }}
"""


def test_a_run_publishes_the_values_and_names_the_shortened_contexts(data: Path) -> None:
    result = run(parse(RUN.format(file=data, radius=2.5, more="")))
    assert len(result.rounds) == 4
    for record in result.rounds:
        assert isinstance(record.decision, ContextualChoice)
        assert record.decision.weights == pytest.approx([step / 24 for step in range(25)])
    assert result.clipped == _world(data, radius=2.5).clipped > 0
    assert result.regret.final > 0
    assert "clipped" not in run(parse(RUN.format(file=data, radius=20.0, more=""))).model_dump()


def test_a_link_that_a_policy_cannot_assume_is_refused_under_the_name_of_the_world(data: Path) -> None:
    text = RUN.format(file=data, radius=2.5, more="").replace(', link = "identity"', "")
    why = r"^environment\.name = 'auto-lending': has link = 'logistic', which must be 'identity' for linucb"
    with pytest.raises(BadParameter, match=why):
        parse(text)


def test_other_values_than_the_worlds_are_refused(data: Path) -> None:
    more = f", weights = {[1.0] * 25}"
    with pytest.raises(BadParameter, match=r"policy\.weights"):
        parse(RUN.format(file=data, radius=2.5, more=more))


def _without(column: str) -> list[str]:
    place = HEADER.split(",").index(column)
    return [",".join(cell for at, cell in enumerate(line.split(",")) if at != place) for line in (HEADER, *GOOD)]


def _with(column: str, cell: str) -> list[str]:
    place, cells = HEADER.split(",").index(column), GOOD[1].split(",")
    return [HEADER, GOOD[0], ",".join([*cells[:place], cell, *cells[place + 1 :]]), GOOD[2]]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([], "line 1 lacks the columns Primary_FICO, Term", id="empty"),
        pytest.param([HEADER], "must be 1 for some", id="no-rows"),
        pytest.param(_without("mp"), "line 1 lacks the columns mp;", id="no-payment"),
        pytest.param(_without("CarType"), "line 1 lacks the columns CarType;", id="no-car"),
        pytest.param(_with("onemonth", "nan"), r"line 3, column onemonth = 'nan'", id="nan"),
        pytest.param(_with("Primary_FICO", ""), r"line 3, column Primary_FICO = ''", id="empty-cell"),
        pytest.param(_with("Competition_rate", "inf"), "line 3, column Competition_rate", id="infinite"),
        pytest.param(_with("Amount_Approved", "1e300"), "line 3, column Amount_Approved", id="huge"),
        pytest.param(_with("Term", "0"), "line 3: Term must be above 0", id="no-term"),
        pytest.param(_with("mp", "-1"), "line 3: mp must be above 0", id="negative-payment"),
        pytest.param(_with("onemonth", "-1"), "line 3: onemonth must be at least 0", id="negative-rate"),
        pytest.param(_with("apply", "2"), "line 3: apply must be 0 or 1", id="other-answer"),
        pytest.param(_with("CarType", " "), "line 3: an empty cell", id="no-type"),
        pytest.param([HEADER, GOOD[0], "2,650", GOOD[1]], "line 3, column Term is missing", id="short-line"),
        pytest.param([HEADER, GOOD[1], GOOD[2]], "must be 1 for some customers and 0 for others", id="one-answer"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    path = tmp_path / "loans.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(BadParameter, match=words) as caught:
        _world(path)
    assert "\n" not in str(caught.value)


def test_too_many_types_of_cars_are_refused(tmp_path: Path) -> None:
    lines = [f"1,700,60,20000,1.4,5.5,T{index},390.5,{index % 2}" for index in range(51)]
    path = tmp_path / "loans.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    with pytest.raises(BadParameter, match="CarType has 51 values: at most 50"):
        _world(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({}, "environment.file is missing: the file CPRM_AutoLOan_OnlineAutoLoanData.csv of", id="no-file"),
        pytest.param({}, "must be named here, or made_up given in its place", id="neither-file-nor-made-up"),
        pytest.param({"file": "/nowhere.csv"}, "No such file or directory; the file CPRM_AutoLOan", id="missing-file"),
        pytest.param({"file": "/"}, "cannot be read", id="a-folder"),
        pytest.param({"arms": 1}, "arms", id="one-price"),
        pytest.param({"value": "profit"}, "value", id="unknown-value"),
        pytest.param({"theta_norm": 0.0}, "theta_norm", id="bound-0"),
    ],
)
def test_bad_environments_are_refused_in_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(BadParameter, match=words) as caught:
        build_environment(read_spec({"name": "auto-lending", **table}))
    assert "\n" not in str(caught.value)
