"""Tests the dashboard's pages as a browser gets them: the real app, intermediaries in memory."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from distrust.common.dp.mechanisms import MECHANISMS, MechanismSpec
from distrust.common.protocol.web.app import Readers
from distrust.common.specs.policy import POLICIES
from distrust.server.app import server_app
from distrust.server.settings import ServerSettings
from tests.support.asgi import AsgiClient
from tests.support.in_memory_intermediaries import InMemoryIntermediaries


@contextmanager
def server(path: Path, **settings: Any) -> Iterator[AsgiClient]:
    app = server_app(ServerSettings(database=f"sqlite:///{path}/server.sqlite3", **settings), InMemoryIntermediaries())
    with AsgiClient(app) as asgi:
        yield asgi
    app.state.database.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AsgiClient]:
    with server(tmp_path) as asgi:
        yield asgi


def test_a_server_without_runs_says_how_to_start_one(client: AsgiClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "No run yet" in page.text
    assert "distrust run RUN.toml --server http://party.localhost" in page.text


def test_pages_forbid_scripts_styles_and_frames_of_others(client: AsgiClient) -> None:
    for path in ("/", "/static/app.css", "/static/nothing"):
        headers = client.get(path).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy == {
            "default-src": "'self'",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
            "object-src": "'none'",
        }
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_no_template_needs_what_the_policy_forbids() -> None:
    folder = Path(__file__).parents[4] / "server/dashboard/templates"
    texts = {path.name: path.read_text("utf-8") for path in folder.glob("*.html")}
    assert len(texts) >= 4
    inline = re.compile(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)")
    assert {name: result for name, text in texts.items() if (result := inline.findall(text))} == {}
    away = re.compile(r"""(?:src|href|action)=["'](?:https?:)?//""")
    assert {name: result for name, text in texts.items() if (result := away.findall(text))} == {}


def test_a_refused_page_is_a_page_and_a_refused_call_is_a_problem_document(client: AsgiClient) -> None:
    page, call = client.get("/?before=0"), client.get("/v1/runs/none")
    assert (page.status_code, page.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert "before" in page.text
    assert (call.status_code, call.headers["content-type"]) == (404, "application/problem+json")
    browsing = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    lost = client.get("/nix", headers=browsing)
    assert (lost.status_code, lost.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "404: Not Found" in lost.text
    assert "this server has no page at this address" in lost.text
    assert "default-src 'self'" in lost.headers["content-security-policy"]
    for path, accept in (("/v1/nix", browsing["Accept"]), ("/nix", "*/*"), ("/nix", "application/json")):
        problem = client.get(path, headers={"Accept": accept})
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")
        assert problem.json()["title"] == "not found"
    assert client.post("/start", headers=browsing).status_code == 405


def test_static_files_are_fetched_again_only_when_they_changed(client: AsgiClient) -> None:
    style = client.get("/static/app.css")
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    again = client.get("/static/app.css", headers={"If-None-Match": style.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/nothing").status_code == 404
    assert client.get("/static/..%2fviews.py").status_code == 404


def test_the_form_offers_every_policy_and_mechanism_with_the_keys_of_its_table(client: AsgiClient) -> None:
    page = client.get("/start").text
    options = set(re.findall(r"<option[^>]*>([^<]+)</option>", page))
    assert set(POLICIES) | set(MECHANISMS) <= options
    for name, spec in POLICIES.items():
        _, _, own = page.partition(f'data-policy="{name}"')
        own = own.partition("</fieldset>")[0].partition('<div class="policy"')[0]
        names = re.findall(r' name="(policy\.\w+)"', own)
        assert names == [f"policy.{key}" for key in spec.model_fields if key != "name"]
    for key in MechanismSpec.model_fields:
        assert f'name="mechanism.{key}"' in page


def test_each_input_of_the_form_has_a_label_a_hint_and_a_place_for_its_error(client: AsgiClient) -> None:
    page = client.get("/start").text
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    inputs = re.findall(r'<(?:input|select|textarea) id="([^"]+)"', page)
    assert len(inputs) > 60
    for one in inputs:
        assert f'<label for="{one}">' in page
        assert f'id="{one}-error"' in page
    hints = dict(re.findall(r'<span class="hint" id="([^"]+)-hint">(.*?)</span>', page))
    names = {"f-policy-name", "f-mechanism-name"}  # what they mean follows them, and changes with them
    assert [one for one in inputs if not hints.get(one) and one not in names] == []


def test_the_form_asks_for_nothing_that_only_clients_may_know_and_for_no_unsafe_switch(client: AsgiClient) -> None:
    names = set(re.findall(r' name="([\w.]+)"', client.get("/start").text))
    assert {"run", "arms", "horizon"} <= names
    assert {name.partition(".")[0] for name in names - {"viewport", "color-scheme"}} == {
        *("run", "arms", "horizon", "policy", "mechanism", "intermediary", "budget", "returning")
    }


def test_a_form_that_is_sent_without_its_script_leaves_the_token_out_of_the_address(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("operator's secret")
    with server(tmp_path, operator_token_file=token) as client:
        for path in ("/start", "/privacy"):
            secret = re.findall(r'<input [^>]*type="password"[^>]*>', client.get(path).text)
            assert len(secret) == 1
            assert " name=" not in secret[0]  # browsers send fields with a name only


def test_too_many_readers_are_refused_and_clients_are_not(client: AsgiClient) -> None:
    client.app.state.readers = Readers(0, waiting=0)
    for path in ("/", "/runs/demo", "/compare", "/runs/demo/cohorts/demo.1.0.0"):
        refused = client.get(path)
        assert refused.status_code == 503
        assert "too many readers at once" in refused.text
        assert refused.headers["content-type"].startswith("text/html")
    for path in ("rounds", "rounds/1", "ledger", "intervals"):
        assert client.get(f"/v1/runs/demo/{path}").json()["title"] == "unavailable"
    assert client.get("/v1/runs/demo").json()["title"] == "unavailable"  # a run of many arms is a long list
    for path in ("/config", "/round", "/events", "/cohorts/demo.1.0.0/keys", "/cohorts/demo.1.0.0/messages"):
        assert client.get(f"/v1/runs/demo{path}").json()["title"] == "wrong cohort"  # no such run: it was looked up
    assert client.get("/static/app.css").status_code == 200
    assert client.get("/v1/runs").status_code == 200


def test_a_server_without_a_token_answers_to_no_domain_that_a_page_may_have_resolved_to_loopback(
    client: AsgiClient, tmp_path: Path
) -> None:
    foreign = ["evil.example", "evil.example:8701", "Evil.Example.", "127.0.0.1.evil.example", "localhost.evil.org"]
    foreign += ["server:8701", "wpad", "10.0.0.1:8701", "[2001:db8::1]:8701", "[::1", "a:b:localhost", ""]
    for host in foreign:
        for method, path in (("GET", "/"), ("GET", "/v1/runs"), ("POST", "/v1/runs"), ("DELETE", "/v1/runs/demo")):
            refused = client.request(method, path, headers={"Host": host})
            assert refused.status_code == 401
            assert "answers to loopback and DISTRUST_HOST_NAMES only" in refused.json()["detail"]
    for host in ("127.0.0.1:8701", "localhost:8701", "LOCALHOST", "a.localhost", "[::1]:8701", "127.8.9.1"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    (tmp_path / "token").write_text("operator's secret")
    (tmp_path / "own").mkdir()
    with server(tmp_path / "own", operator_token_file=tmp_path / "token") as guarded:
        assert guarded.get("/", headers={"Host": "runs.example"}).status_code == 200


def test_a_server_without_a_token_answers_to_the_names_that_its_operator_lists(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="host_names"):
        ServerSettings(host_names="gate:8701")
    with server(tmp_path, host_names="gate,Runs.Example") as client:
        for host in ("gate:8701", "runs.example", "RUNS.example.:80", "localhost"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200
        for host in ("server", "a.gate", "gate.example"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 401
