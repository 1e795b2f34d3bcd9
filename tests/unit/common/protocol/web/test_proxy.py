"""Tests that a proxy's configuration is made from the service's settings, and refuses what would open the service."""

import re
import stat
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from typer.testing import CliRunner

from distrust.common.errors import BadParameter
from distrust.common.protocol.web import intermediary
from distrust.common.protocol.web.proxy import STREAMS, WAITING_PATHS, haproxy_config
from distrust.lab.cli.party import app
from tests.support.certificates import Certificates
from tests.support.proxy import PARTIES, accepted, settings_of

TOKEN_FILE = Path("/nowhere/operator.token")
ANYWHERE = {
    "proxy_listen": "*:443",
    "proxy_plain": True,
    "proxy_target": "localhost:8702",
    "operator_token_file": TOKEN_FILE,
}


@pytest.mark.slow
@pytest.mark.parametrize("party", PARTIES)
def test_haproxy_accepts_the_configuration_of_each_party(party: str, tmp_path: Path) -> None:
    certificate = str(Certificates(tmp_path).issue("mixer", "mixer.example").together())
    unprivileged = {"proxy_user": "daemon", "proxy_chroot": str(tmp_path)}
    for fields in ({}, ANYWHERE, {**ANYWHERE, "proxy_certificate": certificate, **unprivileged}, {"host": "::1"}):
        checked = accepted(haproxy_config(settings_of(party, **fields)), tmp_path)
        assert (checked.returncode, "WARNING" in checked.stderr) == (0, False), checked.stderr


def test_a_proxy_that_the_network_reaches_needs_an_operators_token_which_it_does_not_read() -> None:
    """A service without a token trusts whom it takes for a caller on this machine: behind a proxy all callers are."""
    for listen in ("*:443", ":443", "10.0.0.1:443", "[::]:443", "mixer.example:443"):
        with pytest.raises(BadParameter, match="must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set"):
            haproxy_config(settings_of("shuffler", proxy_listen=listen))
        own = {"proxy_listen": listen, "operator_token_file": Path("/nowhere"), "proxy_plain": True}
        config = haproxy_config(settings_of("shuffler", **own))
        assert f"bind {listen}\n" in config
        assert "nowhere" not in config
    assert "bind 127.0.0.1:9702\n" in haproxy_config(settings_of("shuffler"))


def test_a_proxy_that_root_starts_becomes_another_user_where_the_settings_name_one() -> None:
    """No other has a user of its own: one without rights could not start it."""
    config = haproxy_config(settings_of("shuffler", proxy_user="haproxy", proxy_chroot="/var/lib/haproxy"))
    (whole,) = re.findall(r"^global\n((?: +.*\n)+)", config, re.MULTILINE)
    assert {"user haproxy", "group haproxy", "chroot /var/lib/haproxy"} <= {
        line.partition("#")[0].strip() for line in whole.splitlines()
    }
    assert not re.search(r"^ +(user|group|chroot) ", haproxy_config(settings_of("shuffler", **ANYWHERE)), re.MULTILINE)


def test_a_proxy_that_the_network_reaches_has_tls_unless_its_operator_wants_none() -> None:
    reached = {"proxy_listen": "*:443", "operator_token_file": TOKEN_FILE}
    with pytest.raises(BadParameter, match=r"DISTRUST_PROXY_CERTIFICATE is set, or DISTRUST_PROXY_PLAIN=1"):
        haproxy_config(settings_of("shuffler", **reached))
    assert "bind *:443 ssl crt '/mixer.pem' " in haproxy_config(
        settings_of("shuffler", **reached, proxy_certificate="/mixer.pem")
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"port": 65_000}, "proxy_listen = '127.0.0.1:66000'"),
        ({"proxy_listen": "127.0.0.1:99999"}, "proxy_listen = '127.0.0.1:99999'"),
        ({"port": 0}, "proxy_target = '127.0.0.1:0'"),
        ({"proxy_target": "mixer:65536"}, "proxy_target = 'mixer:65536'"),
    ],
)
def test_a_port_that_is_none_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadParameter, match=f"{named}: must have a port from 1 to 65535"):
        haproxy_config(settings_of("shuffler", **fields))


@pytest.mark.parametrize("party", PARTIES)
def test_the_paths_that_wait_for_the_proxy_are_those_that_wait_at_the_service(party: str) -> None:
    module = import_module(f"distrust.{party}.app")
    routers = [one for one in vars(module).values() if isinstance(one, APIRouter)]
    routers += [] if party == "server" else [intermediary.router]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    waiting = {route.path for route in routes if any(one.name == "wait" for one in route.dependant.query_params)}
    streaming = {route.path for route in routes if route.response_class is StreamingResponse}
    assert waiting
    assert all(re.search(WAITING_PATHS, re.sub(r"{\w+}", "x", path)) for path in waiting)
    assert all(re.search(STREAMS, re.sub(r"{\w+}", "x", path)) for path in streaming)
    assert not any(re.search(WAITING_PATHS, f"/v1/{path}") for path in ("x", "runs/x", "cohorts/x/x/reports"))


def test_no_address_has_all_connections_or_all_places() -> None:
    """Fewer than four addresses leave connections to others."""
    for fields in ({"caller_connections": 641}, {"max_connections": 2559}, {"max_waits": 384}):
        with pytest.raises(BadParameter, match=r"caller_connections = .*: must be at most"):
            haproxy_config(settings_of("shuffler", **fields))
    more = {"caller_connections": 3000, "max_connections": 12_000, "max_waits": 3000}
    assert "sc0_conn_cur gt 3000 " in haproxy_config(settings_of("shuffler", **more))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "server shuffler 127.0.0.1:8702 maxconn 768  #"),
        ({"host": "0.0.0.0"}, "server shuffler 127.0.0.1:8702 maxconn 768  #"),
        ({"host": "::"}, "server shuffler [::1]:8702 maxconn 768  #"),
        ({"proxy_target": "mixer:1"}, "server shuffler mixer:1 maxconn 768 resolvers names resolve-opts"),
    ],
)
def test_a_proxy_reaches_the_service_where_it_listens_and_looks_a_name_up_again(
    fields: dict[str, Any], line: str
) -> None:
    config = haproxy_config(settings_of("shuffler", **fields))
    assert line in config
    assert ("resolvers names" in config) == ("proxy_target" in fields)
    allowed = config.count("resolve-opts allow-dup-ip")  # each lane of the gate has the address of the same name
    assert allowed == config.count(f" {fields['proxy_target']} maxconn") if "proxy_target" in fields else not allowed


@pytest.mark.parametrize(
    "fields",
    [
        {"proxy_listen": ":80\n    stats enable"},
        {"proxy_listen": "8702"},
        {"proxy_target": "mixer:1 backup"},
        {"proxy_target": ":1"},
        {"proxy_user": "root\n    stats enable"},
        {"proxy_chroot": "relative"},
        {"proxy_chroot": "/a uid 0"},
        {"proxy_target": "*:8702"},
        {"header_seconds": "inf"},
        {"body_rate": "inf"},
        {"new_connections": "nan"},
        {"proxy_certificate": "a' crt '/etc/other.pem"},
        {"proxy_certificate": "a.pem\n    stats enable"},
    ],
)
def test_no_setting_writes_lines_of_its_own(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings_of("shuffler", **fields)


def test_the_command_prints_the_configuration_or_writes_it_for_the_proxys_user(tmp_path: Path) -> None:
    target, own = tmp_path / "haproxy.cfg", {"DISTRUST_MAX_BODY": "4096", "DISTRUST_HEADER_SECONDS": "2.5"}
    printed = CliRunner().invoke(app, ["serve", "shuffler", "--proxy-config"], env=own)
    written = CliRunner().invoke(app, ["serve", "shuffler", "--proxy-config", "--out", str(target)], env=own)
    assert (printed.exit_code, written.exit_code, written.output) == (0, 0, "")
    assert target.read_text("utf-8") == printed.output
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert "{ req.body_size gt 4096 }" in printed.output
    assert "timeout http-request 2500ms" in printed.output


def test_what_no_proxy_can_have_is_one_line_that_names_the_variable() -> None:
    for own in ({"DISTRUST_PROXY_LISTEN": "*:443"}, {"DISTRUST_PROXY_LISTEN": "443"}):
        refused = CliRunner().invoke(app, ["serve", "aggregator", "--proxy-config"], env=own)
        assert refused.exit_code == 2
        assert refused.output.startswith("distrust aggregator: DISTRUST_PROXY_LISTEN = '")
        assert refused.output.count("\n") == 1
