"""The dashboard in a real Chromium, over real services: runs are started, watched, compared and explained."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from distrust.common.errors import RunFailed
from distrust.lab.run.fleet_processes import Fleets
from distrust.lab.run.result import Result
from distrust.lab.run.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.browser import SIZES, Browser, overflow, screenshot, violations
from tests.support.forked import forking
from tests.support.http_runs import over_http

pytestmark = pytest.mark.slow

SHOTS = os.environ.get("DISTRUST_SCREENSHOTS")
"""Folder for pictures of each page at each width, to be looked at; unset: none are written."""


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
SHUFFLED = run_file("shuffled", 'name = "local-laplace-discrete"\nepsilon = 8.0', "stage_seconds = 60.0")
DESERTED = run_file("deserted", LARGE, "dropout = 0.1\ncorrupt = 0.05\nminimum = 4", leaving=0.6)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(tmp_path_factory.mktemp("dashboard")), 0) as running:
        yield running


@pytest.fixture(scope="module")
def played(stack: Stack) -> Result:
    """Play two runs: one that finishes, whose driver posts its regret, and one that its clients leave."""
    with pytest.raises(RunFailed, match="nothing was measured"):
        over_http(stack, DESERTED)
    return over_http(stack, SHUFFLED, post_regret=True)


@pytest.fixture(scope="module")
def browser(played: Result) -> Iterator[Browser]:
    """A browser, started after the runs: Playwright keeps an event loop in this thread, and they need their own."""
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
        # The fleet insists on this file's digest: the form made the same configuration, to the byte.
        with Fleets(FORM, stack.urls, stack.data_dir.path / "logs") as fleets:
            expect(page.locator("h1 .badge")).to_have_text("finished", timeout=60_000)
            fleets.wait(20)
            fleets.check()
        expect(page.get_by_role("status")).to_contain_text("The run is finished.")
        expect(page.get_by_role("img", name="Confidence intervals, round by round")).to_be_visible()
        expect(page.get_by_role("row", name="1 chosen")).to_be_visible()
        assert page.evaluate("window.loadedOnce")


def test_each_refusal_of_the_form_stands_beside_its_field(browser: Browser, stack: Stack) -> None:
    with browser.page(f"{stack.urls.server}/start", refused=[401, 409, 422]) as page:
        fill(page, FORM, "no token")
        go = page.get_by_role("button", name="Start the run")
        go.click()
        expect(page.locator("#f-token-error")).to_contain_text("needs the operator's token")
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
        expect(page.get_by_text("The two promises are not equal")).to_be_visible()


def test_aborted_cohorts_are_explained_without_javascript_too(browser: Browser, stack: Stack) -> None:
    for script in (True, False):
        with browser.page(f"{stack.urls.server}/runs/deserted", script=script) as page:
            expect(page.get_by_text("The run failed: nothing was measured")).to_be_visible()
            aborted = page.get_by_role("region", name="Aborted cohorts")
            expect(aborted.get_by_role("row").nth(1)).to_contain_text("at least")
            expect(page.get_by_text("Nothing was released of them.")).to_be_visible()


PATHS = ["/", "/runs/shuffled", "/runs/deserted", "/compare?a=shuffled&b=deserted", "/start", "/?before=0"]


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_accessible_in_light_and_dark_and_fits_every_screen(
    browser: Browser, stack: Stack, path: str
) -> None:
    refused = [422] if path == "/?before=0" else []
    with browser.page(stack.urls.server + path, refused=refused) as page:
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == []
        for width, height in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            assert overflow(page) <= 0
            if SHOTS:
                name = path.strip("/").translate(str.maketrans("/?&=", "----")) or "runs"
                screenshot(page, Path(SHOTS) / f"{name}-{width}.png")
