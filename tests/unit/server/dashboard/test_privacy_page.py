"""Tests that the privacy page shows the calculator's figures, within bounds, to permitted callers."""

import html
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import MechanismFigures, Report, labelled, report_on, six_digits
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter, Unavailable
from distrust.server.dashboard import calculator
from distrust.server.dashboard.calculator import DEFAULTS, CpuAccount, OneAtATime, question
from tests.support.asgi import AsgiClient, words
from tests.unit.server.dashboard.test_pages import server as pages

TOKEN = "operator's secret"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


@contextmanager
def server(path: Path, **settings: Any) -> Iterator[AsgiClient]:
    token = path / "token"
    token.write_text(TOKEN)
    with pages(path, operator_token_file=token, **settings) as client:
        yield client


SHOWN = ["distributed-polya", "central-gaussian", "local-sphere", "identity", "tree", "shuffled-binomial"]


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_has_the_calculators_figures(tmp_path: Path, name: str) -> None:
    asked = {"mechanism": name, "n": "60", "epsilon": "0.7", "delta": "1e-5", "dropout": "0.2", "batches": "16"}
    _, query = question(DEFAULTS | asked)
    sides = [side for side in report_on(name, query).sides.values() if isinstance(side, MechanismFigures)]
    with server(tmp_path, calculator="open") as client:
        page = client.get("/privacy", params=asked)
    shown = words(page.text)
    for side in sides:
        guarantee, profile = side.promise.guarantee, side.promise.profile
        assert f"ε {labelled(guarantee.epsilon, guarantee.how)} δ" in shown
        how = labelled(profile.approximate.epsilon, profile.approximate.how)
        assert f"ε at δ = {profile.delta:g} {how} bits a client {side.bits:,}" in shown
        assert f"if all other clients collude {side.promise.left()}" in shown
        assert f"standard deviation {six_digits(side.error.std)}" in shown
    assert page.text.count('data-calibration="exact"') == 1
    assert f"n = 60, t = {query.min_honest}" in shown
    crowd = MECHANISMS[name].model in {"shuffle", "distributed"}
    assert ("The promise counts on t honest clients" in shown) is crowd
    assert {"local-sphere": "on no other party", "identity": "Nothing is promised"}.get(name, "") in shown
    assert ("The promise counts on the server" in shown) is (MECHANISMS[name].model == "central")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("n", "20001", "must lie in [2, 20000]"),
        ("n", "1e30", "n = 1e30: must lie in [2, 20000]"),
        ("n", "9" * 3000, f"n = {'9' * 40}…: must be a whole number of at most 40 characters"),
        ("n", "0" * 40 + "500", "must be a whole number of at most 40 characters"),
        ("n", "1.5", "n = 1.5: must be a whole number"),
        ("n", "1e999", "n = 1e999: must be a whole number"),
        ("epsilon", "nan", "ε = nan: must be a finite number"),
        ("epsilon", "<script>alert(1)</script>", "must be a number"),
        ("epsilon", "-1", "ε = -1: must lie in [0.0001, 50]"),
        ("dropout", "0.5", "dropout = 0.5: must lie in [0, 1/2)"),
        ("mechanism", "none<b>", "must be one of"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_field(tmp_path: Path, field: str, value: str, sentence: str) -> None:
    with server(tmp_path, calculator="open") as client:
        page = client.get("/privacy", params={field: value})
    result = re.search(r'<p class="problem" data-field="(\w+)">(.*?)</p>', page.text, re.DOTALL)
    assert result is not None
    assert (result[1], page.status_code) == (field, 200)
    assert sentence in html.unescape(result[2])
    assert "mechanism." not in result[2]
    assert "<script>alert" not in page.text
    assert "<b>" not in page.text


def test_only_the_operator_may_have_the_server_compute_unless_the_settings_open_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def counted(name: str, query: PrivacyQuery) -> Any:
        computed.append(name)
        return report_on(name, query)

    monkeypatch.setattr(calculator, "report_on", counted)
    asked = {"n": "47"}
    with server(tmp_path) as client:
        for headers in ({}, {"Authorization": "Bearer guess"}):
            page = client.get("/privacy", params=asked, headers=headers)
            assert "computes for its operator only" in words(page.text)
            assert "data-calibration" not in page.text
        assert computed == []
        assert 'data-calibration="exact"' in client.get("/privacy", params=asked, headers=OPERATOR).text
        assert computed == ["distributed-polya"]
        assert 'data-calibration="exact"' in client.get("/privacy", params=asked, headers=OPERATOR).text
        assert computed == ["distributed-polya"]  # an answer is kept


def test_the_part_that_changes_is_fetched_alone(tmp_path: Path) -> None:
    with server(tmp_path, calculator="open") as client:
        part = client.get("/privacy?n=50", headers={"X-Fragment": "1"}).text
    assert "<html" not in part
    assert "<form" not in part
    assert 'data-calibration="exact"' in part


def test_every_mechanism_is_on_the_page_and_takes_the_pages_fields() -> None:
    for name in MECHANISMS:
        result, query = question(DEFAULTS | {"mechanism": name, "n": "40"})
        assert result == name
        query.spec(name, "exact")


def test_readers_get_a_burst_of_cpu_and_then_its_share_and_the_operator_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    account = CpuAccount(2.0, 0.1, 0.5, lambda: now[0])
    account.spend(1.5)
    account.check()  # 0.5 s are left, and a question takes no more
    account.spend(0.5)
    with pytest.raises(Unavailable, match="try again in 5 s"):
        account.check()
    now[0] = 4.5
    with pytest.raises(Unavailable, match="try again in 1 s"):
        account.check()
    now[0] = 5.5
    account.check()
    now[0] = 1e6  # it holds no more than the burst
    account.check()
    account.spend(2.0)
    with pytest.raises(Unavailable):
        account.check()
    monkeypatch.setattr(calculator, "_readers", account)
    asked = {"n": "61", "epsilon": "0.77"}
    with server(tmp_path, calculator="open") as client:
        assert "use `distrust privacy` on your own machine" in html.unescape(client.get("/privacy", params=asked).text)
        assert 'data-calibration="exact"' in client.get("/privacy", params=asked, headers=OPERATOR).text
        assert 'data-calibration="exact"' in client.get("/privacy", params=asked).text  # kept: it costs no more


def test_readers_never_get_more_than_the_burst_and_its_share_whatever_they_ask() -> None:
    dice, now, spent = random.Random(3), [0.0], 0.0
    account = CpuAccount(30.0, 0.1, 15.0, lambda: now[0])
    for _ in range(3000):
        now[0] += dice.expovariate(1.0)
        try:
            account.check()
        except Unavailable:
            continue
        seconds = dice.choice((0.01, 1.0, 15.0))
        account.spend(seconds)
        spent += seconds
        assert spent <= 30 + 0.1 * now[0] + 1e-6
    assert spent > 0.9 * (15 + 0.1 * now[0])


def test_a_question_that_is_refused_in_the_end_is_paid_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(name: str, query: PrivacyQuery) -> Report:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        raise BadParameter("epsilon", query.epsilon, f"is too small for {name}")

    monkeypatch.setattr(calculator, "report_on", refusing)
    account = CpuAccount(0.01, 0.0001, 0.01)
    name, query = question(DEFAULTS | {"n": "62"})
    with pytest.raises(BadParameter):
        calculator.answered(name, query, account)
    with pytest.raises(Unavailable):
        calculator.answered(name, query, account)


def test_one_value_is_computed_at_a_time_and_those_beyond_the_places_are_refused() -> None:
    begun, go = threading.Event(), threading.Event()
    cache: OneAtATime[int] = OneAtATime(2, waiting=1)

    def slow() -> int:
        begun.set()
        assert go.wait(30)
        return 7

    other = threading.Thread(target=cache.get, args=("a", slow))
    other.start()
    assert begun.wait(30)
    with pytest.raises(Unavailable, match="try again"):
        cache.get("b", lambda: 8)
    go.set()
    other.join(30)
    assert cache.get("a", lambda: 0) == 7  # kept
    with pytest.raises(BadParameter):
        cache.get("c", lambda: question(DEFAULTS | {"n": "x"}))  # type: ignore[arg-type,return-value]
    assert [cache.get(key, lambda: 1) for key in ("d", "e")] == [1, 1]  # a failed one gave its place back
    assert cache.get("a", lambda: 2) == 2  # the oldest was dropped
