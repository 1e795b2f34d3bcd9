"""Tests the pages of cohorts, open ones too, and the privacy page in a real Chromium, over real services."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, Route, expect

from distrust.client.environments import build_environment
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.services.outline import Wanted
from distrust.lab.services.transcripts import gather_held
from tests.support.browser import Browser, origin, overflow, violations
from tests.support.http_runs import in_background
from tests.support.picked import picked
from tests.support.shown_runs import MASKED, ShownRuns, held_stack, join, join_with_tickets, leave, play, small_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_cohorts")]

OPEN = "open.1.0.1"  # a cohort without a message


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownRuns]:
    with held_stack(tmp_path_factory.mktemp("cohorts")) as stack:
        played = play(stack)
        assert join(stack, small_run("open", MASKED, stage_seconds=600.0), clients=12) == OPEN
        yield played


@pytest.fixture(scope="module")
def browser(runs: ShownRuns) -> Iterator[Browser]:
    assert runs  # the runs are played before Chromium takes its share of the machine
    with Browser() as chromium:
        yield chromium


def enter(page: Page, party: str, token: str | None) -> None:
    page.fill(f"#token-{party}", token or "")
    page.press(f"#token-{party}", "Enter")
    told = page.locator(f"form.token[data-party={party}] .told")
    expect(told).not_to_have_text("Reading …")
    expect(told).not_to_be_empty()


def column(page: Page, stage: str, party: str) -> str:
    return page.locator(f".step[data-stage={stage}] .seen[data-party={party}]").inner_text()


def transcripts_read(url: str) -> float:
    """Return how often a service was asked for transcripts, by its own count."""
    metrics = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    counts = [line for line in metrics if "/messages" in line and "_count" in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)


def held(runs: ShownRuns, run: str) -> dict[str, object]:
    wanted = Wanted(run, 1, None, 1)
    return in_background(lambda: asyncio.run(gather_held(runs.stack.urls, wanted, runs.files[run]))).result()  # type: ignore[return-value,arg-type]


def test_a_masked_cohort_is_put_together_from_each_party_by_the_browser_alone(
    browser: Browser, runs: ShownRuns, tmp_path: Path
) -> None:
    urls, before = runs.stack.urls, transcripts_read(runs.stack.urls.aggregator)
    sent: list[tuple[str, str | None]] = []

    def note(request: Request) -> None:
        sent.append((origin(request.url), request.header_value("authorization")))

    with browser.page(runs.cohort("masked"), others=[urls.aggregator]) as page:
        page.on("requestfinished", note)
        assert column(page, "masked", "aggregator") == "Closed: enter the aggregator's token above."
        assert transcripts_read(urls.aggregator) == before  # the server has not asked for it either
        enter(page, "server", urls.token)
        enter(page, "aggregator", urls.inspector)
        assert transcripts_read(urls.aggregator) == before + 1
        assert column(page, "cohort", "aggregator") == "Its transcript does not keep this message."
        page.fill("#client", "3")
        assert "Client 3 sent 64 B" in column(page, "keys", "client")
        assert "Client 3, 64 B: mask key" in column(page, "keys", "aggregator")
        modulus = runs.report("masked")["mechanism"]["modulus"]
        assert f"Client 3, 1 B: modulus {modulus}, masked" in column(page, "masked", "aggregator")
        assert "statement" in column(page, "masked", "server")
        assert "survivors 16" in column(page, "batch", "server")
        assert "sum" in column(page, "estimate", "server")
        assert "known to the client only" in column(page, "masked", "client")
        file = tmp_path / "held.json"
        file.write_text(json.dumps(held(runs, "masked")))
        page.set_input_files("#held-file", file)
        expect(page.locator("form.held .told")).to_contain_text("16 simulated clients")
        world = runs.files["masked"]
        rewards = build_environment(world.environment).rewards(
            0, 16, UnsafeSeededStream(3, "masked", "masked.1.0.1", "rewards")
        )
        assert f"Client 3 held the reward {rewards[3]:g}." in column(page, "masked", "client")
        assert page.get_attribute("#worlds", "data-world") == ("second" if rewards[3] > 0.5 else "first")
        own = held(runs, "masked")["cohorts"][0]  # type: ignore[index]
        strange = [{**own, "clients": [{"slot": 0, "reward": reward}]} for reward in ("1", None, ["1"], {})]
        for content in ("<b>", "null", *(json.dumps({"cohorts": [one]}) for one in strange)):
            page.set_input_files("#held-file", [])
            expect(page.locator("form.held .told.bad")).to_have_count(0)
            buffer = {"name": "x", "mimeType": "application/json", "buffer": content.encode()}
            page.set_input_files("#held-file", buffer)  # type: ignore[arg-type]
            expect(page.locator("form.held .told.bad")).to_contain_text("cannot be used")
        assert violations(page) == []
    assert {where for where, bearer in sent if bearer == f"Bearer {urls.token}"} == {urls.server}
    assert {where for where, bearer in sent if bearer == f"Bearer {urls.inspector}"} == {urls.aggregator}


def test_a_cohort_of_bits_shows_the_shuffler_each_message_and_the_server_the_count(
    browser: Browser, runs: ShownRuns
) -> None:
    urls, known = runs.stack.urls, held(runs, "shuffled")
    ones = sum(client["message"][0] for client in known["cohorts"][0]["clients"])  # type: ignore[index]
    with browser.page(runs.cohort("shuffled"), others=[urls.shuffler], width=768, scheme="dark") as page:
        enter(page, "server", urls.token)
        enter(page, "shuffler", urls.inspector)
        assert "Client 0, " in column(page, "report", "shuffler")
        assert "ones" in column(page, "report", "shuffler")
        assert f"ones {ones}" in column(page, "batch", "server")  # the sum of the clients' values, by the lab
        assert "draws its noise from a seed" in page.inner_text("main")
        assert page.locator(".flip[data-party=shuffler] .chart svg").count() == 1
        assert overflow(page) <= 0
        assert violations(page) == []


def test_the_replay_goes_step_by_step_with_the_keyboard_and_is_announced(browser: Browser, runs: ShownRuns) -> None:
    with browser.page(runs.cohort("masked"), width=375) as page:
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.inner_text("#position") == "Step 3 of 10: Clients send public keys"
        assert page.get_attribute("#position", "role") == "status"
        assert page.locator('[aria-current="step"]').get_attribute("data-stage") == "keys"
        assert page.locator(".step .parties:visible").count() == 3
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#position").startswith("Step 2 of 10")
        page.focus("#next")
        page.keyboard.press("Enter")
        assert page.inner_text("#position").startswith("Step 3 of 10")
        page.focus("#client")
        page.keyboard.press("ArrowRight")  # moves the caret of the field
        assert page.inner_text("#position").startswith("Step 3 of 10")
        page.focus("#everything")
        page.keyboard.press("Space")
        assert page.locator(".step .parties:visible").count() == 10
        assert page.locator("[aria-current=step]").count() == 0
        page.click("#flip-button")
        assert "The reward is the highest" in page.inner_text("#flip-told")
        assert "the cards of the client, the aggregator, the server and every reader" in page.inner_text("#flip-told")
        aggregator = page.inner_text(".flip[data-party=aggregator]")
        assert "the masked number, uniform modulo m with either reward" in aggregator
        assert "Changes: the law of the sum moves by one reward" in aggregator
        assert page.get_attribute("#worlds", "data-world") == "second"
        assert overflow(page) <= 0
        assert violations(page) == []


def test_a_wrong_token_is_explained_and_forgotten(browser: Browser, runs: ShownRuns) -> None:
    urls = runs.stack.urls
    with browser.page(runs.cohort("masked"), others=[urls.aggregator], refused=[401]) as page:
        enter(page, "aggregator", urls.token)
        told = page.inner_text("form.token[data-party=aggregator] .told")
        assert told == "The aggregator refused this token. It wants the inspector's token, and not the operator's."
        assert page.evaluate("sessionStorage.length") == 0
        enter(page, "aggregator", urls.inspector)
        assert page.evaluate("Object.keys(sessionStorage)") == [f"distrust.token.{urls.aggregator}"]
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        page.reload()
        expect(page.locator("form.token[data-party=aggregator] .told")).to_contain_text("messages of this cohort")


def test_a_partys_words_are_shown_as_text(browser: Browser, runs: ShownRuns) -> None:
    urls, markup = runs.stack.urls, '<img src="x" onerror="alert(1)">'
    entry = {"number": 0, "direction": "in", "peer": markup, "stage": "keys", "bytes": 1, "hex": markup}
    told = {"total": 50_000, "next": 1, "messages": [{**entry, "view": {markup: [markup, markup]}}]}
    allowed = {"Access-Control-Allow-Origin": urls.server, "Access-Control-Allow-Headers": "Authorization"}
    asked: list[str] = []

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            asked.append(route.request.url.partition("?")[2])
        route.fulfill(json=told, headers=allowed)

    with browser.page(runs.cohort("masked"), others=[urls.aggregator]) as page:
        page.route(f"{urls.aggregator}/**", answer)
        enter(page, "aggregator", "any")
        page.evaluate("document.getElementById('client').max = '8191'")  # of a large cohort a part is read
        enter(page, "aggregator", "any")
        with page.expect_response(lambda response: response.url.endswith("client=7777")):
            page.fill("#client", "7777")
        assert asked == ["limit=1000", *(f"limit=1000&each=5&client={slot}" for slot in (0, 7777))]
        assert markup in column(page, "keys", "aggregator")
        assert page.locator("main img").count() == 0
        nested: dict[str, Any] = {
            **entry,
            "view": {"a": {"b": [1, {"c": None}]}, "d": [[1], {"e": 2}], "f": "x" * 9000},
        }
        told |= {"total": 1, "messages": [nested]}
        enter(page, "aggregator", "any")
        shown = column(page, "keys", "aggregator")
        assert 'a {"b":[1,{"c":null}]}, d [[1], {"e":2}], f xxx' in shown
        assert len(shown) < 1000
        enter(page, "server", runs.stack.urls.token)
        good = {**entry, "view": {}}
        used = [key for key in good if key != "number"]
        bad = [{**good, key: value} for key in used for value in (None, [], -1, 0.5)]
        for change in (
            *({"messages": [one]} for one in bad),
            *({"total": one} for one in (None, "1", -1, 0.5, 0)),
            {"messages": None},
        ):
            page.evaluate("document.querySelector('form.token[data-party=aggregator] .told').textContent = ''")
            told |= {"total": 1, "messages": [good], **change}
            enter(page, "aggregator", "any")
            said = page.inner_text("form.token[data-party=aggregator] .told")
            assert said == "What the aggregator answered cannot be read: it sent no transcript.", change
            assert "statement" in column(page, "masked", "server")  # one party's nonsense is told in its column
        enter(page, "aggregator", "wröng")
        assert "This is no token" in page.inner_text("form.token[data-party=aggregator] .told")
        assert page.evaluate("Object.keys(sessionStorage)") == ["distrust.token."]


def test_an_aborted_cohort_is_explained(browser: Browser, runs: ShownRuns) -> None:
    with browser.page(runs.cohort("lost")) as page:
        words = page.inner_text("section.problem")
        assert "0 clients in stage keys" in words
        assert "16 clients were asked for, and 16 took a ticket" in words
        assert "Nothing was released" in words
        assert page.locator(".step").last.get_attribute("data-stage") == "aborted"
        assert "Clients send masked numbers" in page.inner_text("#missed")
        enter(page, "server", runs.stack.urls.token)
        assert "reason" in column(page, "aborted", "server")


def test_open_cohorts_show_what_the_intermediary_tells_the_readers_browser(browser: Browser, runs: ShownRuns) -> None:
    stack = runs.stack
    aggregator = stack.urls.aggregator
    with browser.page(f"{stack.urls.server}/runs/open", others=[aggregator], refused=[401]) as page:
        row = page.locator(f"tr[data-cohort='{OPEN}']")
        expect(row.locator("[data-fact=alive]")).to_have_text("needs its token")
        expect(row.locator("[data-fact=deadline]")).to_have_text("needs its token")
        ask(page, str(stack.urls.inspector))
        expect(row.locator("[data-fact=alive]")).to_have_text("token refused")
        expect(page.locator("#standing .told")).to_contain_text("It wants the operator's token")
        ask(page, str(stack.urls.token))
        expect(row.locator("[data-fact=stage]")).to_have_text("keys")
        expect(row.locator("[data-fact=alive]")).to_have_text("12")
        expect(row.locator("[data-fact=deadline]")).to_have_text(re.compile(r"^in [1-5]\d\d s$"))
        assert violations(page) == []
        kept = page.evaluate("Object.keys(sessionStorage)")
        assert kept == [f"distrust.operator.{aggregator}"]
        page.evaluate("void (window.fetch = () => Promise.reject(new TypeError('away')))")
        expect(row.locator("[data-fact=deadline]")).to_have_text("no answer")
        expect(page.locator("#standing .told")).to_contain_text("DISTRUST_DASHBOARD_ORIGIN")
        page.reload()  # the token is still in this tab
        expect(row.locator("[data-fact=alive]")).to_have_text("12")


def ask(page: Page, secret: str) -> None:
    """Give a page the operator's token for the intermediary of its open cohorts."""
    page.fill("#token-standing", secret)
    page.press("#token-standing", "Enter")


ENTRY = {"run": "open", "round": 1, "clients": 16, "answered": 3}
TOLD = [
    # what the intermediary answers of the cohort; the stage, the alive and the deadline that the table shows
    ({"stage": "keys", "alive": 15, "seconds_left": 30.5}, ("keys", "11", r"in (30|31) s")),  # one of the 12 left
    ({"stage": "shares", "alive": 9, "seconds_left": 0.0}, ("shares", "9", "now")),
    ({"stage": "unmask"}, ("unmask", "–", "–")),  # its batch is computed
    ({"stage": "keys", "answered": None, "alive": None, "seconds_left": None}, ("keys", "–", "–")),
    ({"stage": "keys", "alive": 0}, ("keys", "0", "–")),
    (None, ("keys or shares", "not open there", "not open there")),
    *(
        told
        for bad in (
            {"stage": 7},
            {"stage": "<b>x</b>"},
            {"stage": "done"},
            {"alive": 17},
            {"alive": 1.5},
            {"alive": -1},
            {"alive": "9"},
            {"answered": 17},
            {"clients": None},
            {"seconds_left": 1e308},
            {"seconds_left": -1},
        )
        for told in (
            ({"stage": "masked", "alive": 9}, ("masked", "9", "–")),  # so that each unreadable answer is news
            ({"stage": "masked", "alive": 9, **bad}, ("(masked|keys or shares)", "unreadable", "unreadable")),
        )
    ),
]


def test_the_table_counts_the_alive_of_each_stage_and_no_nonsense(browser: Browser, runs: ShownRuns) -> None:
    stack = runs.stack
    answer = dict[str, object]()
    allowed = {"Access-Control-Allow-Origin": stack.urls.server, "Access-Control-Allow-Headers": "Authorization"}
    with browser.page(f"{stack.urls.server}/runs/open", others=[stack.urls.aggregator]) as page:
        page.route(f"{stack.urls.aggregator}/**", lambda route: route.fulfill(json=answer, headers=allowed))
        row = page.locator(f"tr[data-cohort='{OPEN}']")
        for told, shown in TOLD:
            answer["cohorts"] = [] if told is None else [{**ENTRY, "cohort": OPEN, **told}]
            ask(page, "any")
            for fact, text in zip(("stage", "alive", "deadline"), shown, strict=True):
                expect(row.locator(f"[data-fact={fact}]")).to_have_text(re.compile(f"^{text}$"))
        assert page.locator("main b").count() == 0


def test_an_open_cohorts_page_follows_it_to_its_end(browser: Browser, runs: ShownRuns) -> None:
    leaving, urls = join_with_tickets(runs.stack, small_run("followed", MASKED, stage_seconds=600.0)), runs.stack.urls
    with browser.page(f"{urls.server}/runs/followed/cohorts/{leaving.cohort}", others=[urls.aggregator]) as page:
        assert violations(page) == []
        expect(page.locator("dl [data-fact=alive]")).to_have_text("needs its token")
        ask(page, str(urls.token))
        expect(page.locator("dl [data-fact=alive]")).to_have_text("16")
        page.fill("#token-server", str(urls.token))
        page.press("#token-server", "Enter")
        expect(page.locator("form.token[data-party=server] .told")).to_contain_text("of this cohort")
        page.evaluate("window.loadedOnce = true")
        assert page.locator(".step").last.get_attribute("data-stage") == "estimate"
        leave(runs.stack, leaving)
        expect(page.locator("#news")).to_have_text("This cohort was aborted.")
        expect(page.locator("section.problem")).to_contain_text("0 clients in stage keys")
        expect(page.locator(".step").last).to_have_attribute("data-stage", "aborted")
        # The messages are read again: the server has the reason now.
        expect(page.locator(".step[data-stage=aborted] .seen[data-party=server]")).to_contain_text("reason")
        expect(page.locator("#flip-about")).to_contain_text("Nothing of this cohort is released")
        expect(page.locator("#standing")).to_be_hidden()
        assert page.evaluate("window.loadedOnce")
        assert violations(page) == []


def test_without_script_the_page_still_says_what_each_party_can_know(browser: Browser, runs: ShownRuns) -> None:
    with browser.page(runs.cohort("masked"), script=False) as page:
        assert page.locator(".step .parties:visible").count() == 10
        assert page.locator(".flip .chart svg").count() == 5  # the aggregator's masked number, and its sum
        assert not page.is_visible("#access")
    with browser.page(f"{runs.stack.urls.server}/privacy?n=70", script=False) as page:
        page.fill("#epsilon", "0.5")
        page.click("#question button")
        expect(page.locator("[data-calibration=exact] td").nth(1)).to_have_text("0.5")
        assert "n = 70" in page.inner_text("#answer")


def test_the_sliders_of_the_privacy_page_change_the_answer(browser: Browser, runs: ShownRuns) -> None:
    with browser.page(f"{runs.stack.urls.server}/privacy?n=100", width=1280, refused=[503]) as page:
        exact = page.locator("[data-calibration=exact]")
        std = exact.locator("tr", has_text="standard deviation").first
        before = std.inner_text()
        page.focus("[data-for=epsilon]")
        for _ in range(40):
            page.keyboard.press("ArrowLeft")
        value = page.input_value("#epsilon")
        assert 0.5 < float(value) < 1
        expect(exact.locator("td").nth(1)).to_have_text(value)
        assert std.inner_text() != before
        assert f"epsilon={value}" in page.url
        assert "Computed" in page.inner_text("#told")
        page.select_option("#mechanism", "shuffled-binomial")
        expect(page.locator("#answer h2")).to_contain_text("shuffled-binomial, n = 100")
        assert page.is_visible("#delta")
        page.fill("#n", "1000000")
        expect(page.locator("#answer .problem")).to_contain_text("n = 1000000: must lie in [2, 20000]")
        assert page.get_attribute("#n", "aria-invalid") == "true"
        page.fill("#n", "80")
        expect(page.locator("#answer h2")).to_contain_text("n = 80")
        assert page.get_attribute("#n", "aria-invalid") is None
        # A question without an answer leaves no figures of another question, and says so where the figures were.
        page.route("**/privacy?*", lambda route: route.fulfill(status=503, body="<p>some proxy's words</p>"))
        page.fill("#n", "81")
        expect(page.locator("#answer")).to_have_text(re.compile(r"^The server refused this question \(HTTP 503\)\."))
        page.unroute("**/privacy?*")
        page.evaluate("window.ask = window.fetch; void (window.fetch = () => Promise.reject(new TypeError()))")
        page.fill("#n", "82")
        expect(page.locator("#answer .problem")).to_contain_text("The server does not answer this question.")
        assert page.locator("#answer table").count() == 0
        assert violations(page) == []
        page.evaluate("void (window.fetch = window.ask)")
        page.click("#question button")
        expect(page.locator("#answer h2")).to_contain_text("n = 82")


@pytest.mark.parametrize(("width", "scheme"), picked([(375, "dark"), (768, "light"), (1280, "dark")], 1, "screens"))
def test_both_pages_fit_every_screen(browser: Browser, runs: ShownRuns, width: int, scheme: str) -> None:
    for url in (f"{runs.stack.urls.server}/privacy", runs.cohort("lost")):
        with browser.page(url, width=width, scheme=scheme) as page:  # type: ignore[arg-type]  "light" or "dark"
            assert overflow(page) <= 0
            assert violations(page) == []
