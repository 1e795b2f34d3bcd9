"""Settings that all services share: environment variables that start with `DISTRUST_`."""

import ipaddress
import secrets
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.inputs import Watched, hide_passwords, read_token
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.storage.database import LEAST_POOL, POOL
from distrust.common.protocol.web.answers import MOST_ANSWERS
from distrust.common.protocol.web.tls import check_pair, service_context
from distrust.common.protocol.web.waiting import MOST_WAITS

HOST = r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])"
"""Pattern of a name or an address, IPv6 in brackets."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _unset_if_empty(value: Any) -> Any:
    return None if value == "" else value


PemFile = Annotated[Path | None, BeforeValidator(_unset_if_empty)]
"""A file that a variable may leave unset by an empty text, as templates of containers do."""


class ServiceSettings(BaseSettings):
    """Settings of one service; a service names itself, its port and its database in a subclass."""

    model_config = SettingsConfigDict(env_prefix="DISTRUST_", extra="ignore", frozen=True)

    service: ClassVar[str] = "service"

    host: Annotated[str, Field(description="address to listen on; beyond loopback only as operations.md says")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8000
    host_names: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*)?$",
            description="names besides localhost that callers without a token may use, commas between",
        ),
    ] = ""
    database: Annotated[str, Field(description="SQLAlchemy URL")] = ""
    pool: Annotated[int, Field(ge=LEAST_POOL, description="connections to a PostgreSQL server, all together")] = POOL
    operator_token_file: Annotated[Path | None, Field(description="file that holds the operator's token")] = None
    behind_proxy: Annotated[bool, Field(description="a proxy stands in front of this service")] = False
    tls_cert: Annotated[
        PemFile, Field(description="file with the service's certificate, and those between it and its authority")
    ] = None
    tls_key: Annotated[PemFile, Field(description="file with the certificate's key, readable by its owner only")] = None
    client_ca: Annotated[
        PemFile, Field(description="file with authorities: only callers with a certificate of theirs are served")
    ] = None
    max_body: Annotated[int, Field(ge=1024, description="bytes of the largest request body")] = 16 * 2**20
    max_bodies: Annotated[int, Field(ge=1024, description="bytes of all request bodies in memory")] = 24 * 2**20
    max_answers: Annotated[int, Field(ge=1024, description="bytes of unread long answers in memory")] = MOST_ANSWERS
    max_items: Annotated[int, Field(ge=1, description="clients' messages in one upload")] = 4096
    max_waits: Annotated[int, Field(ge=1, description="requests that wait for news at once")] = MOST_WAITS
    body_seconds: Annotated[Positive, Field(description="time for a request's body to arrive whole")] = 60.0
    idle_seconds: Annotated[int, Field(ge=1, description="time that a connection stays open without a request")] = 15
    max_connections: Annotated[
        int, Field(ge=16, description="connections that a proxy has open at once; a service twice as many")
    ] = 2560
    header_seconds: Annotated[Positive, Field(description="proxy: time for a request's head to arrive whole")] = 10.0
    caller_connections: Annotated[int, Field(ge=1, description="proxy: connections of one address at once")] = 640
    new_connections: Annotated[
        Positive, Field(description="proxy: new connections of one address in a second, over ten seconds")
    ] = 100.0
    caller_requests: Annotated[
        int, Field(ge=1, description="proxy: requests of one address, or token, in a second")
    ] = 600
    caller_pages: Annotated[
        int, Field(ge=1, description="proxy: of them, requests outside /v1: pages, documents, health, metrics")
    ] = 50
    caller_faults: Annotated[
        int, Field(ge=1, description="proxy: of them, requests that no honest client sends: bad, or without a right")
    ] = 10
    body_rate: Annotated[
        Positive, Field(description="proxy: bytes of one address in a second; then it sends no more requests")
    ] = 16.0 * 2**20
    proxy_listen: Annotated[
        str,
        Field(
            pattern=rf"^((\*|{HOST})?:\d{{1,5}})?$",
            description="proxy: address:port to listen on; unset: loopback, 1000 above the service's port",
        ),
    ] = ""
    proxy_target: Annotated[
        str,
        Field(
            pattern=rf"^({HOST}:\d{{1,5}})?$",
            description="proxy: name:port at which it reaches the service; unset: where the service listens",
        ),
    ] = ""
    proxy_certificate: Annotated[
        str,
        Field(pattern=r"^[^'\n]*$", description="proxy: PEM file with certificates and key; unset: no TLS"),
    ] = ""
    proxy_user: Annotated[
        str,
        Field(
            pattern=r"^([a-z_][a-z0-9_-]*)?$",
            description="proxy: user and group that it becomes when root has started it; unset: its starter",
        ),
    ] = ""
    proxy_chroot: Annotated[
        str,
        Field(
            pattern=r"^(/[A-Za-z0-9._/-]*)?$",
            description="proxy: folder out of which it sees no file when root has started it; unset: none",
        ),
    ] = ""
    proxy_plain: Annotated[bool, Field(description="proxy: it speaks no TLS, though the network reaches it")] = False
    min_free: Annotated[int, Field(ge=0, description="bytes of free disk below which a service is not ready")] = 2**24
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="least severe event that is logged")
    ] = "info"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield names and values for `repr`, without the passwords of addresses."""
        return hide_passwords(super().__repr_args__())

    @property
    def own_names(self) -> frozenset[str]:
        """Return the names of `host_names` in lower case, without a dot at their end."""
        return frozenset(name.removesuffix(".") for name in self.host_names.lower().split(",") if name)

    @property
    def database_url(self) -> str:
        """Return the configured database, or this service's file below the working directory."""
        return self.database or f"sqlite:///./.distrust/{self.service}.sqlite3"

    def operator_token(self) -> str | None:
        """Return the operator's token; None without a file. Raises BadParameter for a file that cannot be read."""
        path = self.operator_token_file
        return None if path is None else read_token("operator_token_file", path)

    def inspector_token(self) -> str | None:
        """Return the token that opens transcripts: the operator's."""
        return self.operator_token()

    def current_operator_token(self) -> Callable[[], str] | None:
        """Return what returns the operator's token as its file has it now; None without a file."""
        return _current("operator_token_file", self.operator_token_file, "the operator's token file")

    def current_inspector_token(self) -> Callable[[], str] | None:
        """Return what returns the token that opens transcripts as its file has it now; None: all may read them."""
        return self.current_operator_token()

    def tls(self) -> ssl.SSLContext | None:
        """Return the service's own TLS; None where it speaks plain HTTP. Raises BadParameter."""
        check_pair("tls_cert", self.tls_cert, "tls_key", self.tls_key)
        if self.tls_cert is None or self.tls_key is None:
            if self.client_ca is not None:
                raise BadParameter("client_ca", str(self.client_ca), "needs DISTRUST_TLS_CERT and DISTRUST_TLS_KEY")
            return None
        if self.behind_proxy:
            allowed = "must be unset with DISTRUST_BEHIND_PROXY: the service speaks plain HTTP to its proxy"
            raise BadParameter("tls_cert", str(self.tls_cert), allowed)
        return service_context(self.tls_cert, self.tls_key, self.client_ca)

    def check(self) -> None:
        """Raise BadParameter for a service that any caller on the network could operate, or that can take no body."""
        if self.max_bodies < self.max_body:
            raise BadParameter("max_bodies", self.max_bodies, f"must be at least max_body = {self.max_body}")
        if self.operator_token() is None and not is_loopback(self.host):
            raise BadParameter("host", self.host, "must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set")
        if self.operator_token() is None and self.behind_proxy:  # all its callers seem to be on this machine
            raise BadParameter("behind_proxy", True, "must be unset unless DISTRUST_OPERATOR_TOKEN_FILE is set")
        own = self.tls() is not None and self.client_ca is not None
        if not (own or self.behind_proxy or is_loopback(self.host)):
            own_tls = "DISTRUST_TLS_CERT, DISTRUST_TLS_KEY and DISTRUST_CLIENT_CA are set"
            raise BadParameter("host", self.host, f"must be loopback unless DISTRUST_BEHIND_PROXY=1, or {own_tls}")


class IntermediarySettings(ServiceSettings):
    """Settings of an intermediary. The server has its operator's token too, to open cohorts and collect batches.

    Transcripts show which client sent which record. The server must not learn that, so they take another token.
    """

    inspector_token_file: Annotated[
        Path | None, Field(description="file with the token that reads transcripts; unset: no caller may read them")
    ] = None

    first_seconds: Annotated[
        Positive, Field(description="time from the opening of a cohort to its first message; then the cohort ends")
    ] = FIRST_SECONDS

    dashboard_origin: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^/?#@*,\s]+(,https?://[^/?#@*,\s]+)*)?$",
            description="http(s)://host:port of the server's pages, commas between; unset: no page reads anything",
        ),
    ] = ""

    @property
    def dashboard_origins(self) -> tuple[str, ...]:
        """Return the origins whose pages may read transcripts and the list of cohorts, as browsers send them."""
        return tuple(filter(None, self.dashboard_origin.lower().split(",")))

    def inspector_token(self) -> str | None:
        """Return the token of the file. Without a file, return a token that no one has, or None without an operator's.

        Raises BadParameter when it equals the operator's token: then the server could read transcripts.
        """
        path, operators = self.inspector_token_file, self.operator_token()
        own = None if path is None else read_token("inspector_token_file", path)
        if own is not None and own == operators:
            shown = str(self.inspector_token_file)
            raise BadParameter("inspector_token_file", shown, "must not hold the operator's token")
        return own or (secrets.token_urlsafe() if operators else None)

    def current_inspector_token(self) -> Callable[[], str] | None:
        """Return what returns the token as its file has it now, as `inspector_token` does.

        It raises Unavailable also while the two files hold the same token.
        """
        first, operators = self.inspector_token(), self.current_operator_token()
        current = _current("inspector_token_file", self.inspector_token_file, "the inspector's token file")
        if first is None or current is None:
            return None if first is None else lambda: first

        def own() -> str:
            token = current()
            if operators is not None and token == operators():
                raise Unavailable("the inspector's token file holds the operator's token: no caller is admitted by it")
            return token

        return own


def _current(field: str, path: Path | None, whose: str) -> Callable[[], str] | None:
    """Return what returns the token in a file as it is now; None without a file. Raises BadParameter."""
    return None if path is None else Watched(path, lambda: read_token(field, path), whose).value


def is_loopback(host: str) -> bool:
    """Return whether this is localhost or a loopback address, without brackets."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
