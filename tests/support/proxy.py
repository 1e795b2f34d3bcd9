"""Starts the real HAProxy in front of a service, with the configuration that the service's settings print."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from distrust.common.protocol.web.proxy import haproxy_config
from distrust.common.protocol.web.settings import ServiceSettings
from tests.support.attacks import Attacked, until

PARTIES = ("server", "shuffler", "aggregator")
HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"  # which is not on the path of every user
ATTACKERS = "127.0.0.2"  # their address, and that of no honest client


def settings_of(party: str, **fields: Any) -> ServiceSettings:
    """Return the settings of a party."""
    made: ServiceSettings = getattr(import_module(f"distrust.{party}.app"), f"{party.capitalize()}Settings")(**fields)
    return made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def accepted(config: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let HAProxy check a configuration."""
    file = folder / "haproxy.cfg"
    file.write_text(config, "utf-8")
    return subprocess.run([HAPROXY, "-c", "-f", str(file)], capture_output=True, text=True, check=False)


@contextmanager
def running(settings: ServiceSettings, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a HAProxy that listens where the settings say."""
    file, log = folder / "haproxy.cfg", folder / "haproxy.log"
    file.write_text(haproxy_config(settings), "utf-8")
    with log.open("wb") as output:
        proxy = subprocess.Popen([HAPROXY, "-db", "-f", str(file)], stderr=output)
    port = int(settings.proxy_listen.rpartition(":")[2])
    try:
        until(lambda: proxy.poll() is not None or listens(port))
        assert proxy.poll() is None, log.read_text("utf-8")
        yield proxy
    finally:
        proxy.kill()
        proxy.wait()


@contextmanager
def proxied(party: str, service: Attacked, folder: Path, **limits: Any) -> Iterator[Attacked]:
    """Yield the service as its callers reach it through a proxy. Attackers have an address of their own."""
    port = free_port()
    own = {"operator_token_file": folder / "token", "port": service.inside, "proxy_listen": f"127.0.0.1:{port}"}
    with running(settings_of(party, **{**own, **limits}), folder) as proxy:
        reached = replace(service, port=port, source=ATTACKERS, proxy=proxy.pid)
        try:
            yield reached
        finally:
            reached.close()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
