"""Tests that the page of a cohort shows public numbers and laws, and no party's messages."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.dp.calculator.flip import binned, flip_views
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.protocol.channels import CHANNELS
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StatementList
from distrust.common.protocol.web.problems import bad_fields
from distrust.server.app import server_app
from distrust.server.dashboard import templates
from distrust.server.dashboard.laws import FLIPPED, Drawn, flip_chart, law_chart, stairs
from distrust.server.settings import ServerSettings
from tests.support.asgi import AsgiClient, words
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.round_report import REPORT
from tests.support.server_harness import ServerHarness, config, serve

REWARDS = [[0.0, 0.1], [0.5, 0.5], [1.0, 0.9]]
PATH = "/runs/demo/cohorts/demo.1.0.1"


HOSTILE = "<script>alert(1)</script> says the intermediary"


class Watched(InMemoryIntermediaries):
    """Intermediaries that count what the server asks of them, and give a reason in markup for what they abort."""

    asked = 0

    async def collect(self, cohort: Cohort, *, opening: bool = False) -> BatchAnswer:
        self.asked += 1
        answer = await super().collect(cohort, opening=opening)
        return answer.model_copy(update={"reason": HOSTILE}) if answer.state == "aborted" else answer

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        self.asked += 1
        return await super().statements(cohort, after)


@contextmanager
def played(path: Path, *, quitting: dict[str, int] | None = None, **more: Any) -> Iterator[AsgiClient]:
    """Play the run `demo` to its end, and yield its pages."""
    intermediaries = Watched()
    harness = ServerHarness(path, intermediaries)
    harness.service.create(config(horizon=96, **{"unsafe": None, **more}))
    serve(harness, "demo", InMemoryClients(intermediaries, REWARDS, quitting or {}))
    harness.database.close()
    urls = {"shuffler_url": "http://shuffler.example:8702", "aggregator_url": "http://aggregator.inner:1"}
    readers = {"aggregator_readers_url": "https://aggregator.example"}
    settings = ServerSettings(database=f"sqlite:///{path}/server.sqlite3", **urls, **readers)
    before = intermediaries.asked
    app = server_app(settings, intermediaries)
    with AsgiClient(app) as client:
        yield client
        assert (intermediaries.asked, len(intermediaries.opened)) == (before, len(set(intermediaries.opened)))
    app.state.database.close()


@pytest.mark.parametrize(
    ("mechanism", "channel", "address"),
    [
        ({"name": "distributed-polya", "epsilon": 2.0}, "masked", "https://aggregator.example"),
        ({"name": "local-laplace-discrete", "epsilon": 2.0}, "sealed", "http://shuffler.example:8702"),
        (
            {"name": "shuffled-binomial", "epsilon": 2.0, "delta": 1e-3, "precision": 4},
            "bits",
            "http://shuffler.example:8702",
        ),
    ],
)
def test_a_cohorts_page_has_a_column_for_each_party_and_may_reach_its_own_intermediary_only(
    tmp_path: Path, mechanism: dict[str, Any], channel: str, address: str
) -> None:
    with played(tmp_path, mechanism=mechanism) as client:  # which also asserts that the intermediary was not asked
        page = client.get(PATH)
    assert page.status_code == 200
    rules = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert rules["connect-src"] == f"'self' {address}"
    via = "aggregator" if channel == "masked" else "shuffler"
    assert re.findall(r'class="step" data-stage="(\w+)"', page.text) == [step.stage for step in CHANNELS[channel].STEPS]
    for party in ("client", via, "server"):
        assert page.text.count(f'<div class="seen" data-party="{party}"></div>') == len(CHANNELS[channel].STEPS)
    shown = words(page.text)
    for step in CHANNELS[channel].STEPS:
        assert all(str(text) in shown for text in (step.title, step.client, step.intermediary, step.server))
    assert "Not reached" not in shown


def test_the_pictures_of_a_flipped_reward_are_the_mechanisms_laws(tmp_path: Path) -> None:
    with played(tmp_path) as client:
        page = client.get(PATH).text
        report = client.get("/v1/runs/demo/rounds/1").json()
    mechanism = PrivacyQuery(clients=3, epsilon=1.0).planned("distributed-polya", "exact")
    mechanism = type(mechanism).model_validate(report["mechanism"])
    views = flip_views(mechanism)
    for view, name in zip(views, ("the client", "the aggregator", "the server", "every reader"), strict=True):
        chart = flip_chart(view, f"What {name} sees of one client")
        assert chart is None or str(chart) in page
    shown = words(page)
    epsilon = report["guarantee"]["epsilon"]
    for view in views:
        assert f"{view.sees} Stays the same: {view.stays} Changes: " in shown
    assert "Changes: the law of the sum moves by one reward." in shown
    assert f"ε ≤ {epsilon:.4g}: what it sees is at most e^{epsilon:.4g}" in shown
    assert f"each of the {mechanism.modulus:,} numbers has the probability 1/{mechanism.modulus:,}" in shown


def test_an_aborted_cohort_is_explained_and_its_reason_is_escaped(tmp_path: Path) -> None:
    with played(tmp_path, quitting={"1.1": 10**6}) as client:
        rounds = client.get("/v1/runs/demo/rounds").json()["rounds"]
        lost = next(one for round_ in rounds for one in round_["cohorts"] if one["state"] == "aborted")
        page = client.get(f"/runs/demo/cohorts/{quote(lost['cohort'])}").text
    shown = words(page)
    assert "Why this cohort was aborted" in shown
    assert f"Reason: {HOSTILE}" in html.unescape(page)
    assert lost["reason"] == HOSTILE
    assert "<script>alert" not in page
    assert f"{lost['clients']} clients were asked for, and {lost['granted']} took a ticket." in shown
    assert "Nothing was released: the server got no batch" in shown
    stages = re.findall(r'class="step" data-stage="(\w+)"', page)
    assert stages == ["cohort", "tickets", "keys", "departed", "aborted"]
    missed = [step.title for step in CHANNELS["masked"].STEPS if step.stage not in stages]
    assert len(missed) == 6
    assert f"may have a message of one. {' '.join(missed)} " in shown


@pytest.mark.parametrize(
    ("arm", "decision", "shown"),
    [
        (None, ContextualChoice(theta=[[0.5, 0.5]]), "chosen on each client's device"),
        (None, ContextualChoice(theta=[[0.5, 0.5]], only=4), "4, for all clients"),
        (None, AssignedAction(actions=[0, 1], times=[3, 2]), "assigned by the shuffler"),
        (0, REPORT.decision, "0"),
    ],
)
def test_the_page_says_by_which_party_the_arm_is_chosen(arm: int | None, decision: Decision, shown: str) -> None:
    parts: Any = templates.get_template("parts.html").module
    assert html.unescape(parts.arm_played(arm, decision)).strip() == shown


def test_a_run_with_a_noise_seed_says_that_no_promise_holds(tmp_path: Path) -> None:
    with played(tmp_path, unsafe={"noise_seed": 1}) as client:
        assert "draws its noise from a seed" in words(client.get(PATH).text)


def test_unknown_cohorts_and_those_of_other_runs_are_refused_as_pages(tmp_path: Path) -> None:
    with played(tmp_path) as client:
        for path in ("/runs/demo/cohorts/none", "/runs/none/cohorts/demo.1.0.1", "/runs/demo/cohorts/<b>x"):
            page = client.get(path)
            assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
            assert "<b>" not in page.text


def test_the_address_that_readers_get_is_an_origin_without_a_password() -> None:
    inner = {"shuffler_url": "http://me:secret@shuffler:8702/path?x", "aggregator_url": "http://[::1]:8703"}
    settings = ServerSettings(**inner)
    assert settings.readers_url("shuffler") == "http://shuffler:8702"
    assert settings.readers_url("aggregator") == "http://[::1]:8703"
    for bad in ("http://a; script-src *", "http://a/path", "http://me@a", "*"):
        with pytest.raises(ValidationError):
            ServerSettings(aggregator_readers_url=bad)


def test_settings_are_shown_and_refused_without_the_passwords_of_their_addresses() -> None:
    secret = "s3cr@t:/?#"
    url = f"http://me:{secret}@shuffler:8702"
    database = f"postgresql://distrust:{secret}@db.example/server?password={secret}&x=1"
    settings = ServerSettings(shuffler_url=url, database=database)
    for shown in (repr(settings), str(settings), f"{settings!r:>9}"):
        assert "s3cr" not in shown
        assert "http://me:***@shuffler:8702" in shown
        assert "postgresql://distrust:***@db.example/server?password=***&x=1" in shown
    assert settings.shuffler_url == url
    for long in ("", "x" * 100):
        with pytest.raises(ValidationError) as caught:
            ServerSettings(aggregator_url=f"htp://me:{long}{secret}@a")
        refused = bad_fields(caught.value, ServerSettings).detail
        assert "aggregator_url = 'htp://me:***@a'" in refused
        assert "s3cr" not in refused


def test_the_stairs_of_a_picture_are_the_laws_exact_probabilities() -> None:
    mechanism = PrivacyQuery(clients=400, epsilon=0.5, dropout=0.1).planned("distributed-polya", "exact")
    assert isinstance(mechanism, GridMechanism)
    server = flip_views(mechanism)[2]
    assert server.laws is not None
    assert server.step == mechanism.step
    drawn = Drawn("t", server.laws, FLIPPED, "x", mechanism.step, server.center)
    bins = binned(server.laws)
    for law, outline in zip(server.laws, stairs(drawn, bins), strict=True):
        masses = dict(zip(law.support.tolist(), law.masses.tolist(), strict=True))
        assert len(outline) == 2 * len(bins.masses[0])
        for (x, low), (end, high) in zip(outline[::2], outline[1::2], strict=True):
            first, last = round(x / mechanism.step + 0.5), round(end / mechanism.step - 0.5)
            assert last - first + 1 == bins.width
            assert low == high == pytest.approx(sum(masses.get(k, 0.0) for k in range(first, last + 1)), rel=1e-9)
    apart = [sum(x * p for x, p in outline) / sum(p for _, p in outline) for outline in stairs(drawn, bins)]
    assert apart[1] - apart[0] == pytest.approx(1, abs=2 * bins.width * mechanism.step)  # one whole reward
    svg = str(law_chart(drawn))
    assert svg.count('class="curve first"') == svg.count('class="curve second"') == 1
    assert "lowest reward: mean" in svg


def test_a_picture_escapes_its_words() -> None:
    views = flip_views(PrivacyQuery(clients=40, epsilon=1.0).planned("local-laplace-discrete", "exact"))
    chart = flip_chart(views[0], '"><script>alert(1)</script>')
    assert chart is not None
    assert "<script>" not in chart
