"""Tests that a run's page and a comparison show what was played, also after a restart."""

import asyncio
import html
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import RegretCurve
from distrust.server.dashboard import views as dashboard_views
from distrust.server.learner import learner
from distrust.server.policies.elimination import Elimination
from tests.support.asgi import AsgiClient, words
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import ServerHarness, config, serve, unnamed
from tests.unit.server.dashboard.test_pages import server

TOKEN = "operator's secret"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
FAR = [[0.0, 0.1], [0.5, 0.5], [1.0, 0.9]]


@contextmanager
def playing(path: Path, *configs: RunConfig, quitting: dict[str, int] | None = None) -> Iterator[AsgiClient]:
    """Play runs to their ends, restart the server on its database, and yield its API and pages."""
    intermediaries = InMemoryIntermediaries()
    harness = ServerHarness(path, intermediaries)
    for one in configs:
        harness.service.create(one)
        serve(harness, one.run, InMemoryClients(intermediaries, FAR, quitting or {}))
    harness.database.close()
    token = path / "token"
    token.write_text(TOKEN)
    with server(path, keys=harness.keys.path, operator_token_file=token) as client:
        yield client


def test_the_intervals_of_each_closed_round_are_served_and_end_as_the_estimates(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=3000, mechanism={"name": "identity"})) as client:
        view = client.get("/v1/runs/demo").json()
        listed = client.get("/v1/runs/demo/intervals").json()
        parts, after = [], 0
        while after is not None:
            part = client.get("/v1/runs/demo/intervals", params={"after": after, "limit": 1}).json()
            parts, after = parts + part["rounds"], part["next"]
        page = client.get("/runs/demo").text
    assert len(parts) > 2
    assert parts == listed["rounds"]
    latest = {one["arm"]: one for round_ in listed["rounds"] for one in round_["intervals"]}
    for arm in view["snapshot"]["arms"]:
        assert {key: latest[arm["arm"]][key] for key in ("mean", "lower", "upper")} == {
            key: arm[key] for key in ("mean", "lower", "upper")
        }
    assert [one["pulls"] for one in listed["rounds"]] == sorted(one["pulls"] for one in listed["rounds"])
    drawn = re.findall(r'<line class="bar (\w+)"', page)
    assert len(drawn) == sum(len(one["intervals"]) for one in listed["rounds"])
    dropped = [arm for arm in view["snapshot"]["arms"] if not arm["active"]]
    assert dropped
    assert len(re.findall(r'<path class="fell"', page)) == len(dropped)
    for arm in dropped:
        assert f"arm {arm['arm']} was dropped after round {arm['eliminated']}" in page


def test_a_runs_page_shows_its_promise_its_arms_its_bits_and_its_ledger(tmp_path: Path) -> None:
    with playing(tmp_path, config(unsafe=None)) as client:
        view, ledger = client.get("/v1/runs/demo").json(), client.get("/v1/runs/demo/ledger").json()
        rounds = client.get("/v1/runs/demo/rounds").json()["rounds"]
        shown = words(client.get("/runs/demo").text)
    guarantee = view["snapshot"]["guarantee"]
    assert f"distributed pure DP, ε = {guarantee['epsilon']:.4g} (exact calibration)" in shown
    left = f"ε = {guarantee['alone']['epsilon']:.4g}"
    assert guarantee["alone"]["epsilon"] > 3 * guarantee["epsilon"]
    assert f"if all other clients collude {left}" in shown
    assert f"{left} if all other clients collude" in shown  # in the table of the rounds
    for arm in view["snapshot"]["arms"]:
        assert f"{arm['mean']:.4f} [{arm['lower']:.4f}, {arm['upper']:.4f}] {arm['pulls']:,}" in shown
    mechanism = rounds[-1]["mechanism"]
    bits = (mechanism["modulus"] - 1).bit_length()
    assert f"has {bits} bits in round {len(rounds)}: 1 number of a sum modulo m = {mechanism['modulus']:,}." in shown
    n, t, epsilon = (mechanism[name] for name in ("clients", "floor", "epsilon"))
    g = math.ceil(epsilon * math.sqrt(t))
    stated = math.ceil(math.log2(n * g + 2 * math.ceil(g / epsilon * math.log(2 * view["snapshot"]["horizon"])) + 1))
    assert f"By MAB Theorem 1, with its own constants, it would have {stated}." in shown
    assert f"once ε = {ledger['total']['epsilon']:.4g}" in shown
    assert "regret needs the true means, which only clients have" in shown


def test_an_aborted_cohort_and_a_failed_run_say_why(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=96), quitting={"1.1": 10**6}) as client:
        view = client.get("/v1/runs/demo").json()
        reasons = [
            cohort["reason"]
            for round_ in client.get("/v1/runs/demo/rounds").json()["rounds"]
            for cohort in round_["cohorts"]
            if cohort["state"] == "aborted"
        ]
        page = client.get("/runs/demo")
    assert reasons
    assert all(reason in words(page.text) for reason in reasons)
    assert view["state"] == "failed"
    shown = words(page.text)
    assert f"The run failed: {view['reason']}" in shown
    assert "arm chosen none: the run failed" in shown
    assert "The run failed before a round was closed: there is no interval to draw." in shown
    assert "yet" not in shown.partition("Rounds")[0]
    assert "are listed" not in shown


def test_a_page_says_how_many_aborted_cohorts_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    with playing(tmp_path, config(horizon=960), quitting={"1.1": 10**6}) as client:
        aborted = client.get("/v1/runs/demo").json()["cohorts_aborted"]
        for most in (2, 0):
            monkeypatch.setattr(dashboard_views, "COHORTS", most)
            shown.append(words(client.get("/runs/demo").text))
    assert aborted > 2
    assert f"2 of {aborted} are listed: those of the rounds below, 2 at most." in shown[0]
    assert f"0 of {aborted} are listed" in shown[1]


def test_a_run_without_privacy_says_so_first(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=96)) as client:
        shown = words(client.get("/runs/demo").text)
    assert "Its noise comes from a seed" in shown
    assert "there is no privacy" in shown


def test_two_runs_are_compared_and_unequal_promises_are_named(tmp_path: Path) -> None:
    weak = config("weak", unsafe=None, mechanism={"name": "distributed-polya", "epsilon": 4.0})
    with playing(tmp_path, config("strong", unsafe=None), weak) as client:
        page = client.get("/compare?a=strong&b=weak")
        views = [client.get(f"/v1/runs/{run}").json() for run in ("strong", "weak")]
        same = client.get("/compare?a=weak&b=weak").text
    shown = words(page.text)
    for view in views:
        assert f"ε = {view['snapshot']['guarantee']['epsilon']:.4g} (exact" in shown
    assert "The two promises are not equal: that of strong is the stronger one" in shown
    assert "This is one run, beside itself." in words(same)
    assert len(re.findall(r'class="curve (?:first|second)"', page.text)) == 2
    assert shown.count("not posted") == 2


def test_a_comparison_says_which_promises_are_equal_and_which_do_not_compare(tmp_path: Path) -> None:
    one, other = config("one", unsafe=None), config("other", unsafe=None, policy={"first_batch": 6})
    local = config("alone", unsafe=None, mechanism={"name": "local-laplace-discrete", "epsilon": 1.0})
    bare = config("bare", unsafe=None, mechanism={"name": "identity"})
    none = config("none", unsafe=None, mechanism={"name": "identity"})
    with playing(tmp_path, one, other, local, bare, none, config("seeded")) as client:
        verdict = {
            names: re.findall(r'id="verdict">([^<]+)<', client.get(f"/compare?a={names[0]}&b={names[1]}").text)[0]
            for names in (("one", "other"), ("one", "alone"), ("bare", "one"), ("bare", "none"), ("one", "seeded"))
        }
        form = client.get("/compare").text
        half = client.get("/compare?b=seeded").text
    assert "The two promises are equal" in verdict["one", "other"]
    assert "that of one is of the distributed model and that of alone is of the local model" in verdict["one", "alone"]
    assert "that of one is the stronger one" in verdict["bare", "one"]
    assert "Neither run promises privacy" in verdict["bare", "none"]
    assert "The noise of seeded comes from a seed" in verdict["one", "seeded"]
    assert "No runs are compared yet. Choose two" in words(form)
    assert re.findall(r"<option selected>([^<]+)", form) == ["seeded", "none"]
    assert re.findall(r"<option selected>([^<]+)", half) == ["none", "seeded"]


def test_unknown_runs_are_refused_as_pages(tmp_path: Path) -> None:
    with playing(tmp_path) as client:
        for path in ("/runs/none", "/compare?a=none&b=none"):
            page = client.get(path)
            assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
            assert "run none is not known here" in page.text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}"])
def test_a_hostile_name_is_escaped(tmp_path: Path, name: str) -> None:
    with playing(tmp_path) as client:
        asked = {"a": name, "b": name}
        pages = [client.get("/compare", params=asked), client.get(f"/runs/{name.replace('/', '')}")]
    for page in pages:
        assert page.status_code == 404
        assert not re.search("<script>|<img src=x|49", page.text)
    assert html.escape(name) in pages[0].text.replace("&#34;", "&quot;")


def test_a_fragment_is_the_part_that_changes_and_nothing_else(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=96)) as client:
        whole = client.get("/runs/demo").text
        part = client.get("/runs/demo", headers={"X-Fragment": "1"}).text
    assert part in whole
    assert "<html" not in part
    assert "Confidence intervals" in part


CURVE = {"version": 3, "curve": [[10, 1.5], [30, 2.0]]}


def test_a_drivers_regret_is_kept_shown_as_the_drivers_and_replaced_by_the_next(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=96)) as client:
        before = client.get("/v1/runs/demo").json()
        assert client.get("/v1/runs/demo/regret").status_code == 404
        for curve in (CURVE, CURVE, {"version": 3, "curve": [[10, 1.5], [30, 2.25]]}):
            answer = client.put("/v1/runs/demo/regret", json=curve, headers=OPERATOR)
            assert (answer.status_code, answer.json()) == (200, curve)
            assert client.get("/v1/runs/demo/regret").json() == curve
        shown = words(client.get("/runs/demo").text)
        assert client.get("/v1/runs/demo").json() == before
    assert "Posted by the driver: 2.25 after 30 pulls. The server did not compute it" in shown


def test_only_the_operator_posts_a_regret_and_only_one_that_can_be(tmp_path: Path) -> None:
    with playing(tmp_path, config(horizon=96)) as client:
        assert client.put("/v1/runs/demo/regret", json=CURVE).status_code == 401
        assert client.put("/v1/runs/none/regret", json=CURVE, headers=OPERATOR).status_code == 404
        for curve in ([], [[10, 1.0], [10, 2.0]], [[10, 2.0], [20, 1.0]], [[-1, 0.0]]):
            answer = client.put("/v1/runs/demo/regret", json={"version": 3, "curve": curve}, headers=OPERATOR)
            assert answer.status_code == 422
            assert "curve" in answer.json()["detail"]
        assert client.get("/v1/runs/demo/regret").status_code == 404


def test_a_stored_run_that_cannot_be_read_is_listed_and_its_page_says_why(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    harness.service.create(config())
    with harness.database.transaction() as connection:
        broken = json.loads(config().canonical()) | {"colour": "red"}
        connection.exec_driver_sql("UPDATE runs SET config = ?", (json.dumps(broken),))
    harness.database.close()
    with playing(tmp_path) as client:
        listed, page = client.get("/"), client.get("/runs/demo")
    assert "this server refuses the stored configuration" in listed.text
    assert page.status_code == 409
    assert "colour" in page.text


CONTEXTUAL: dict[str, Any] = {"name": "ldp-ols", "features": 2, "batch": 64}


def test_a_contextual_run_shows_its_parameters_in_place_of_arms(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    mechanism = {"name": "local-gaussian", "epsilon": 4.0, "delta": 1e-5}
    harness.service.create(config(policy=CONTEXTUAL, mechanism=mechanism, horizon=640))
    harness.database.close()
    with playing(tmp_path) as client:
        theta = client.get("/v1/runs/demo/rounds").json()["rounds"][-1]["decision"]["theta"]
        shown = words(client.get("/runs/demo").text)
    assert "Estimated parameters" in shown
    assert all(f"{value:.4f}" in shown for row in theta for value in row)
    assert "each client chooses by its own context; the server does not learn which" in shown
    assert "No client has asked for a ticket yet" in shown


def test_a_posted_regret_changes_nothing_that_the_run_does(tmp_path: Path) -> None:
    """Noise has a seed in both runs, so that they are equal to the last digit unless the curve is read."""
    ends = []
    for folder, curve in (("with", [(10, 1.0), (20, 9.0)]), ("without", None)):
        (tmp_path / folder).mkdir()
        intermediaries = InMemoryIntermediaries()
        harness = ServerHarness(tmp_path / folder, intermediaries)
        harness.service.create(config(horizon=400))
        if curve is not None:
            harness.service.keep_regret("demo", RegretCurve(curve=curve))
        ends.append(serve(harness, "demo", InMemoryClients(intermediaries, FAR)))
        harness.database.close()
    assert unnamed(ends[0]) == unnamed(ends[1])


def test_a_round_of_too_many_intervals_is_served_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "MOST_FORMED", 2)
    with playing(tmp_path, config(horizon=3000, mechanism={"name": "identity"})) as client:
        rounds = client.get("/v1/runs/demo/intervals").json()["rounds"]
        arms = [len(one["arms"]) for one in client.get("/v1/runs/demo/rounds").json()["rounds"]]
    assert [len(one["intervals"]) for one in rounds] == [0 if count > 2 else count for count in arms[: len(rounds)]]
    assert {0, 2} <= {len(record["intervals"]) for record in rounds}


def test_a_run_whose_rounds_are_too_large_for_intervals_does_not_say_that_none_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (learner, dashboard_views):
        monkeypatch.setattr(module, "MOST_FORMED", 1)
    with playing(tmp_path, config(horizon=96)) as client:
        shown = words(client.get("/runs/demo").text)
    assert "No interval is drawn: a round that forms more than 1 is served without them." in shown


def test_a_run_whose_policy_forms_no_intervals_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elimination, "latest_intervals", ())
    with playing(tmp_path, config(horizon=96)) as client:
        shown = words(client.get("/runs/demo").text)
    assert "No interval is drawn: this policy forms none." in shown


@pytest.mark.parametrize(
    ("mechanism", "stage", "via"),
    [("distributed-polya", "keys or shares", "aggregator"), ("local-laplace-discrete", "report", "shuffler")],
)
def test_open_cohorts_show_who_joined_and_the_least_that_must_answer(
    tmp_path: Path, mechanism: str, stage: str, via: str
) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    harness.service.create(config(mechanism={"name": mechanism, "epsilon": 2.0}))

    async def three_join() -> None:
        await harness.ask("demo", want=3)
        await harness.coordinator.stop()

    asyncio.run(three_join())
    (first, second, _) = harness.service.active_run("demo").pending()
    harness.database.close()
    with playing(tmp_path) as client:
        page = client.get("/runs/demo")
        shown = words(page.text)
        newest = client.app.state.reader.newest_event("demo")
        listed = words(client.get("/").text)
        waiting = client.get(f"/runs/demo/cohorts/{second.cohort}")
        joined = client.get("/v1/runs/demo/rounds/1").json()["cohorts"][0]["granted"]
    assert joined == 3
    assert re.search(r" \d[\d,]* of [\d,]+ planned ", listed)
    assert ("of a sum modulo m" in shown) == (via == "aggregator")
    assert ("No paper states bits for it: MAB Theorem 6 leaves" in shown) == (via == "shuffler")
    assert f'href="/runs/demo/cohorts/{first.cohort}"' in page.text
    assert f'href="/runs/demo/cohorts/{second.cohort}"' not in page.text  # it has no page yet, which says so
    assert f"Cohort {second.cohort} waits for clients It is planned" in words(waiting.text)
    assert (waiting.status_code, "Conflict" in waiting.text) == (409, False)
    assert f'data-events="/v1/runs/demo/events?after={newest}"' in page.text  # what the page shows is not told again
    # What only the intermediary knows is for the reader's browser to ask, there and nowhere else.
    address = {"aggregator": "http://127.0.0.1:8703", "shuffler": "http://127.0.0.1:8702"}[via]
    assert f"connect-src 'self' {address};" in page.headers["content-security-policy"]
    ask = f"ask the {via} ask the {via}"
    channel = first.channel
    shares = f" {channel.threshold} of {channel.neighbours}" if isinstance(channel, Masking) else ""
    assert f"{first.cohort} 0 {stage} {ask} 3 of {first.clients} {first.minimum}{shares}" in shown
    assert f"{second.cohort} 1 waits for clients {ask} 0 of {second.clients} {second.minimum}{shares}" in shown
    assert "No client has asked for a ticket yet" not in shown


def test_a_table_of_open_cohorts_says_how_many_more_there_are_and_a_cohorts_page_asks_for_its_own(
    tmp_path: Path,
) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    harness.service.create(config(arms=60, horizon=6000))

    async def some_join() -> None:
        await harness.ask("demo", want=3)
        await harness.coordinator.stop()

    asyncio.run(some_join())
    opened = harness.service.active_run("demo").pending()
    harness.database.close()
    assert len(opened) == 60
    with playing(tmp_path) as client:
        page = client.get("/runs/demo").text
        own = client.get(f"/runs/demo/cohorts/{opened[0].cohort}").text
    assert page.count("data-joined=") == 40
    assert "The first 40 of 60." in words(page)
    assert 'data-run="demo" data-cohort-page=""' in page
    assert f'data-run="demo" data-cohort-page="{opened[0].cohort}"' in own


@pytest.mark.parametrize("least", [5e-324, 1e-300, 1e-13, 1e308])
def test_any_regret_that_is_taken_leaves_the_pages_readable(tmp_path: Path, least: float) -> None:
    with playing(tmp_path, config(horizon=300)) as client:
        curve = {"version": 3, "curve": [[1, 0.0], [2, least]]}
        assert client.put("/v1/runs/demo/regret", json=curve, headers=OPERATOR).status_code == 200
        for path in ("/runs/demo", "/compare?a=demo&b=demo"):
            page = client.get(path)
            assert page.status_code == 200
            assert 'class="curve first"' in page.text


def test_the_page_and_the_card_of_a_run_say_what_no_theorem_covers(tmp_path: Path) -> None:
    policy = {"name": "successive-elimination", "first_batch": 2, "constants": "published-code"}
    mechanism = {"name": "distributed-polya", "epsilon": 1.0, "calibration": "paper"}
    with playing(tmp_path, config(horizon=200, policy=policy, mechanism=mechanism)) as client:
        view = RunView.model_validate_json(client.get("/v1/runs/demo").text)
        shown = words(client.get("/runs/demo").text)
    unproven = view.config.policy.unproven
    assert (
        unproven == 'constants = "published-code": p is that of each single event, and none is stated for all together'
    )
    assert f"policy successive-elimination {unproven}" in shown
    assert unproven in html.unescape(view._repr_html_())
