"""Tests the dashboard in a real Chromium, over real services: runs are started, watched, compared and explained."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from typer.testing import CliRunner

from distrust.common.errors import RunFailed
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.__main__ import app
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.stack.stack import Stack
from tests.support.browser import SIZES, Browser, overflow, screenshot, violations
from tests.support.http_runs import over_http
from tests.support.picked import picked
from tests.support.shown_runs import MASKED, held_stack, join, small_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_cohorts")]

SHOTS = os.environ.get("DISTRUST_SCREENSHOTS")
"""Folder for pictures of each page that is tested, at each width, for people. If unset, none are written."""


def run_file(name: str, mechanism: str, intermediary: str, leaving: float = 0.0) -> RunFile:
    """Return a small run of three arms, played by one process."""
    return parse(
        f"""
run = "{name}"
horizon = 340
[policy]
first_batch = 4
[mechanism]
{mechanism}
[intermediary]
{intermediary}
[environment]
name = "bernoulli"
means = [0.05, 0.95, 0.5]
seed = 7
[fleet]
processes = 1
dropout = {leaving}
"""
    )


LARGE = 'name = "distributed-polya"\nepsilon = 8.0'
FORM = run_file("from-the-form", LARGE, "dropout = 0.2\ncorrupt = 0.05\nminimum = 4")
OPEN = "open.1.0.1"  # a cohort without a message
SHUFFLED = run_file("shuffled", 'name = "local-laplace-discrete"\nepsilon = 8.0', "stage_seconds = 60.0")
DESERTED = run_file("deserted", LARGE, "dropout = 0.1\ncorrupt = 0.05\nminimum = 4", leaving=0.6)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with held_stack(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.fixture(scope="module")
def played(stack: Stack) -> Result:
    """Play two runs: one that finishes, whose driver posts its regret, and one that its clients leave.

    A third stays open: 12 of the 16 clients of its first cohort have a ticket.
    """
    assert join(stack, small_run("open", MASKED, stage_seconds=600.0), clients=12) == OPEN
    with pytest.raises(RunFailed, match="nothing was measured"):
        over_http(stack, DESERTED)
    return over_http(stack, SHUFFLED, post_regret=True)


@pytest.fixture(scope="module")
def browser(played: Result) -> Iterator[Browser]:
    """Yield a browser, started after the runs: Playwright keeps an event loop in this thread; runs need their own."""
    del played
    with Browser() as chromium:
        yield chromium


def token(stack: Stack) -> str:
    assert stack.urls.token is not None
    return stack.urls.token


def fill(page: Page, file: RunFile, secret: str) -> None:
    """Fill in the form of a run."""
    config = file.config
    page.get_by_label("run (needed)").fill(config.run)
    page.get_by_label("arms").fill(str(config.arms))
    page.get_by_label("horizon").fill(str(config.horizon))
    page.locator("#f-successive-elimination-policy-first_batch").fill("4")
    page.locator("#f-mechanism-epsilon").fill(str(config.mechanism.epsilon))
    for key in ("dropout", "corrupt", "minimum", "stage_seconds"):
        page.locator(f"#f-intermediary-{key}").fill(str(getattr(config.intermediary, key)))
    page.get_by_label("operator's token").fill(secret)


def test_a_run_is_started_from_the_form_played_by_a_fleet_and_watched_to_its_end(
    browser: Browser, stack: Stack
) -> None:
    with browser.page(f"{stack.urls.server}/start") as page:
        fill(page, FORM, token(stack))
        page.get_by_role("button", name="Start the run").click()
        page.wait_for_url("**/runs/from-the-form")
        expect(page.get_by_text("No client has asked for a ticket yet")).to_be_visible()
        page.evaluate("window.loadedOnce = true")
        # The fleet accepts this file's digest only, so the form must make the same configuration to the byte.
        with Fleets(FORM, stack.urls, stack.data_dir.path / "logs", stack.data_dir.memory_file) as fleets:
            expect(page.locator("h1 .badge")).to_have_text("finished", timeout=240_000)
            fleets.wait(120)
            fleets.check()
        expect(page.get_by_role("status")).to_contain_text("The run is finished.")
        expect(page.get_by_role("img", name="Confidence intervals, round by round")).to_be_visible()
        expect(page.get_by_role("row", name="1 chosen")).to_be_visible()
        assert page.evaluate("window.loadedOnce")


def server_part(tmp_path: Path, policy: str) -> Path:
    """Write a policy's first run file, and return the file that `distrust config` makes of it."""
    file = tmp_path / f"{policy}.toml"
    for words in (["init", str(file), "--policy", policy], ["config", str(file)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    file.with_suffix(".json").write_text(done.stdout)
    return file.with_suffix(".json")


def test_a_run_files_server_part_fills_the_form_to_the_byte_and_goes_nowhere_before_the_start(
    browser: Browser, stack: Stack, tmp_path: Path
) -> None:
    sent: list[str] = []

    def keep(route: Route) -> None:
        sent.append(route.request.post_data or "")
        route.fulfill(status=409, json={"title": "conflict", "status": 409, "detail": "kept here"})

    with browser.page(f"{stack.urls.server}/start", refused=[409]) as page:
        page.get_by_label("operator's token").fill("some")
        page.route("**/v1/runs", keep)
        # A seed of dp-dpe's actions has more digits than a browser's numbers.
        for policy in ("dp-dpe", "linucb", "successive-elimination", "almost-free"):
            file = server_part(tmp_path, policy)
            page.set_input_files("#load-file", file)
            expect(page.locator("#load-next")).to_contain_text(f"distrust fleet --run {policy} --server-url")
            expect(page.locator("#load-next")).to_contain_text("The environment stays on your device")
            assert len(sent) == 0
            page.get_by_role("button", name="Start the run").click()
            expect(page.locator("#f-run-error")).to_have_text("kept here")
            assert RunConfig.model_validate_json(sent.pop()) == RunConfig.model_validate_json(file.read_text())
        assert violations(page) == []


def test_files_that_the_form_cannot_take_are_refused_in_words(browser: Browser, stack: Stack, tmp_path: Path) -> None:
    whole = json.loads(server_part(tmp_path, "successive-elimination").read_text())
    policy = whole["policy"]
    toml = "it is not JSON. Of a run file, `distrust config` writes the server's part"
    strange = {
        "[1]": "it holds no table of keys",
        json.dumps(
            dict.fromkeys(map(str, range(10_000)), 0) | whole
        ): "has no field 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 9,990 more.",
        json.dumps({**whole, "x" * 90: 0}): f"has no field {'x' * 60}….",
        "[" * 262_145: "it has 262,145 bytes, and the server's part of a run file has at most 262,144.",
        json.dumps({**whole, "policy": {**policy, "x": 1}, "y": [1]}): "has no field policy.x, y",
        json.dumps({**whole, "mechanism.epsilon": 9.5}): 'has no field "mechanism.epsilon"',
        json.dumps({**whole, "horizon": 0}).replace('"horizon": 0', '"horizon": 1e400'): "horizon = Infinity: must be",
    }
    changed: list[tuple[str | None, str, object, str]] = [
        ("unsafe", "noise_seed", 1, "a run without privacy"),
        ("policy", "name", "my:Own", 'policy.name = "my:Own" is not in'),
        ("policy", "name", None, "policy.name: is required"),
        ("policy", "base", 3, "policy.base = 3: must be one of 2, 4"),
        ("mechanism", "name", "identity", "has no field mechanism.epsilon"),
        ("mechanism", "calibration", "PAPER", 'mechanism.calibration = "PAPER": must be one of exact, paper'),
        ("mechanism", "epsilon", [1], "mechanism.epsilon = [1]: must be a number"),
        ("budget", "epsilon", " ", 'budget.epsilon = " ": must be a number'),
        (None, "arms", "340", 'arms = "340": must be a whole number'),
        (None, "run", "demo-b ", 'run = "demo-b ": must match'),
        (None, "run", "x; touch /tmp/pwned #", "must match"),
        (None, "version", 99, "version = 99: must be 1"),
        (None, "budget", {}, "budget = {}: holds no key"),
    ]
    refused = [("run.toml", 'run = "first"', toml), *(("a.json", text, why) for text, why in strange.items())]
    for table, key, value, why in changed:
        inner = {key: value} if table is None else {table: {**(whole[table] or {}), key: value}}
        refused.append(("a.json", json.dumps({**whole, **inner}), why))
    with browser.page(f"{stack.urls.server}/start") as page:
        before = inputs(page)
        for name, text, why in refused:
            choose(page, name, text)
            expect(page.locator("#load-file-error")).to_contain_text(why)
            expect(page.locator("#load-next")).to_be_hidden()
            assert inputs(page) == before
        choose(page, "a.json", json.dumps({**whole, "environment": {"means": [0.125]}, "fleet": {"dropout": 0.5}}))
        expect(page.locator("#load-next")).to_be_visible()  # both tables are left on this device
        assert page.locator("#f-horizon").input_value() == str(whole["horizon"])
        assert page.locator("#load-file").input_value() == ""  # so that the next choice of this file is a change
        command = page.locator("#load-command")
        page.locator("#f-run").fill("edited")
        expect(command).to_contain_text("distrust fleet --run edited --server-url")
        page.locator("#f-run").fill("x; touch /tmp/pwned #")
        expect(command).to_be_hidden()
        assert "pwned" not in page.locator("#load-next").inner_text()
        del whole["mechanism"]["calibration"]
        choose(page, "a.json", json.dumps(whole))
        expect(command).to_be_visible()
        assert page.locator("#f-mechanism-calibration").input_value() == "exact"


def choose(page: Page, name: str, text: str) -> None:
    """Choose a file of this content for the form."""
    file: Any = {"name": name, "mimeType": "application/json", "buffer": text.encode()}
    page.locator("#load-file-error").evaluate("place => void (place.textContent = '')")
    page.set_input_files("#load-file", file)


def inputs(page: Page) -> list[list[str | bool]]:
    """Return the value of each input of the form, and whether it is shown."""
    words = "[...document.getElementById('start').elements].map((one) => [one.value ?? '', !one.closest('[hidden]')])"
    result: list[list[str | bool]] = page.evaluate(words)
    return result


def test_all_that_is_missing_is_marked_at_once_and_a_refusal_beside_its_field(browser: Browser, stack: Stack) -> None:
    marked = "[...document.querySelectorAll('[aria-invalid]')].map((one) => one.id)"
    with browser.page(f"{stack.urls.server}/start", refused=[401, 409, 422]) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.method))
        go = page.get_by_role("button", name="Start the run")
        go.click()
        assert page.evaluate(marked) == ["f-run", "f-arms", "f-horizon", "f-mechanism-epsilon", "f-token"]
        page.locator("#f-mechanism-name").select_option("tree")
        page.get_by_label("operator's token").fill("wröng")
        go.click()
        expect(page.locator("#f-token-error")).to_contain_text("This is no token: it has characters other than")
        assert page.evaluate(marked)[3:6] == [f"f-mechanism-{key}" for key in ("epsilon", "delta", "batches")]
        assert "POST" not in asked
        page.locator("#f-mechanism-name").select_option(FORM.config.mechanism.name)
        fill(page, FORM, "no token")
        go.click()
        expect(page.locator("#f-token-error")).to_contain_text("The server refused this token.")
        page.get_by_label("operator's token").fill(token(stack))
        page.locator("#f-mechanism-epsilon").fill("-1")
        page.locator("#f-run").fill("Bad Name")
        go.click()
        expect(page.locator("#f-run-error")).to_contain_text("must match")
        expect(page.locator("#f-run")).to_be_focused()
        page.locator("#f-run").fill("another")
        go.click()
        expect(page.locator("#f-mechanism-epsilon-error")).to_contain_text("= -1.0")
        assert page.locator("#f-mechanism-epsilon").get_attribute("aria-invalid") == "true"
        assert violations(page) == []
        page.locator("#f-mechanism-epsilon").fill("4")
        page.locator("#f-run").fill("shuffled")
        go.click()
        expect(page.locator("#f-run-error")).to_contain_text("exists with another configuration")


@pytest.mark.parametrize("path", picked(["/", "/runs/open", f"/runs/open/cohorts/{OPEN}"], 1, "live pages"))
def test_a_live_page_says_since_when_the_server_sends_nothing_and_stops_when_it_is_back(
    browser: Browser, stack: Stack, path: str
) -> None:
    with browser.page(stack.urls.server + path, refused=[503]) as page:
        stale = page.locator("#stale")
        expect(stale).to_be_hidden()
        page.evaluate("window.ask = window.fetch; void (window.fetch = () => Promise.reject(new TypeError()))")
        renew(page)
        sentence = r"since \d\d:\d\d:\d\d\. This page shows what was true then\."
        expect(stale).to_have_text(re.compile(rf"^The server has not answered {sentence}$"))
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(stale).to_be_in_viewport(ratio=1)
        assert violations(page) == []
        page.evaluate("void (window.fetch = window.ask)")
        renew(page)
        expect(stale).to_be_hidden()
        page.route(stack.urls.server + path, lambda route: route.fulfill(status=503, body="busy"))
        renew(page)
        expect(stale).to_have_text(re.compile(rf"^The server has refused this page \(HTTP 503\) {sentence}$"))
        page.unroute(stack.urls.server + path)
        renew(page)
        expect(stale).to_be_hidden()


def test_a_hung_server_is_told_in_eight_seconds_and_asked_again_in_ten_or_when_its_events_are_back(
    browser: Browser, stack: Stack
) -> None:
    with browser.page(stack.urls.server) as page:  # any page of this origin: the next one has a clock of ours
        page.clock.install(time=0)
        page.clock.pause_at(1000)
        page.add_init_script(SOURCES)
        page.goto(f"{stack.urls.server}/runs/open")
        page.evaluate(HANG)
        stale = page.locator("#stale")
        for back in ("rest", "events"):
            renew(page)
            page.clock.run_for(7_900)
            expect(stale).to_be_hidden()
            page.clock.run_for(200)
            expect(stale).to_contain_text("The server has not answered since")
            page.clock.run_for(22_000)
            page.evaluate("void window.giveUp(new DOMException('', 'TimeoutError'))")
            page.evaluate("window.hung = false")
            page.clock.run_for(100)
            expect(stale).to_be_visible()
            if back == "rest":
                page.clock.run_for(10_000)
            else:
                page.evaluate("for (const one of window.sources) one.dispatchEvent(new Event('open'))")
            expect(stale).to_be_hidden()
            page.clock.run_for(60_000)
            page.evaluate("window.hung = true")


HANG = """() => {
  const part = document.getElementById("live").innerHTML;
  window.hung = true;
  window.fetch = async () => (window.hung ? new Promise((_, reject) => (window.giveUp = reject)) : new Response(part));
}"""
SOURCES = """window.sources = [];
const Plain = window.EventSource;
window.EventSource = class extends Plain {
  constructor(...words) {
    super(...words);
    window.sources.push(this);
  }
};"""


def renew(page: Page) -> None:
    """Have a live page ask for its newest part now."""
    page.evaluate("void document.getElementById('live').dispatchEvent(new Event('stale'))")


def test_regret_is_shown_where_the_driver_posted_it_and_nowhere_else(
    browser: Browser, stack: Stack, played: Result
) -> None:
    with browser.page(f"{stack.urls.server}/runs/shuffled") as page:
        final = f"{played.regret.final:,.0f}" if played.regret.final.is_integer() else f"{played.regret.final:,.4g}"
        expect(page.get_by_text(f"Posted by the driver: {final} after 340 pulls.")).to_be_visible()
        expect(page.get_by_role("img", name="Regret against pulls")).to_be_visible()
        page.goto(f"{stack.urls.server}/runs/deserted")
        expect(page.get_by_text("Unknown to this server: regret needs the true means")).to_be_visible()


def test_two_runs_are_compared_by_the_keyboard_alone(browser: Browser, stack: Stack) -> None:
    with browser.page(f"{stack.urls.server}/compare") as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("shuffled")
        page.keyboard.press("Tab")
        page.keyboard.type("deserted")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?a=shuffled&b=deserted")
        expect(page.get_by_role("columnheader", name="shuffled")).to_be_visible()
        expect(page.get_by_role("columnheader", name="deserted")).to_be_visible()
        expect(page.get_by_text("The two promises do not compare: that of shuffled is of the local")).to_be_visible()


def test_aborted_cohorts_are_explained_without_javascript_too(browser: Browser, stack: Stack) -> None:
    for script in (True, False):
        with browser.page(f"{stack.urls.server}/runs/deserted", script=script) as page:
            expect(page.get_by_text("The run failed: nothing was measured")).to_be_visible()
            aborted = page.get_by_role("region", name="Aborted cohorts")
            expect(aborted.get_by_role("row").nth(1)).to_contain_text("at least")
            expect(page.get_by_text("Nothing was released of them.")).to_be_visible()


RUNS = ["/", "/runs/shuffled", "/runs/open", "/runs/deserted", "/compare?a=shuffled&b=deserted"]
PATHS = [*RUNS, "/start", "/?before=0"]


@pytest.mark.parametrize("path", picked(PATHS, 2, "pages"))
def test_a_page_is_accessible_in_light_and_dark_and_fits_every_screen(
    browser: Browser, stack: Stack, path: str
) -> None:
    with browser.page(stack.urls.server + path, refused=[422] if path == "/?before=0" else []) as page:
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == []
        for width, height in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            assert overflow(page) <= 0
            for table in page.get_by_role("region", name="Arms").all():
                assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
            if SHOTS:
                name = path.strip("/").translate(str.maketrans("/?&=", "----")) or "runs"
                screenshot(page, Path(SHOTS) / f"{name}-{width}.png")
