"""What every service is configured by: environment variables that start with `DISTRUST_`."""

import ipaddress
import secrets
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.errors import BadParameter


class ServiceSettings(BaseSettings):
    """Settings of one service; a service names itself, its port and its database in a subclass."""

    model_config = SettingsConfigDict(env_prefix="DISTRUST_", extra="ignore", frozen=True)

    service: ClassVar[str] = "service"

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8000
    database: Annotated[str, Field(description="SQLAlchemy URL")] = ""
    operator_token_file: Annotated[Path | None, Field(description="file that holds the operator's token")] = None
    max_body: Annotated[int, Field(ge=1024, description="bytes of the largest request body")] = 64 * 2**20
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def database_url(self) -> str:
        """The configured database, or this service's file below the working directory."""
        return self.database or f"sqlite:///./.distrust/{self.service}.sqlite3"

    def operator_token(self) -> str | None:
        """The operator's token, or None when none is asked for. A file that cannot be read is an error, not "none"."""
        return _token("operator_token_file", self.operator_token_file)

    def inspector_token(self) -> str | None:
        """The token that opens transcripts: the operator's."""
        return self.operator_token()

    def check(self) -> None:
        """Raise BadParameter for a service that anybody on the network could operate."""
        if self.operator_token() is None and not _loopback(self.host):
            raise BadParameter("host", self.host, "must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set")


class IntermediarySettings(ServiceSettings):
    """Settings of an S. Its operator's token is the server's too, to open cohorts and collect batches.

    Whoever reads an S's transcripts learns who sent which record. The server must not: so that takes another token.
    """

    inspector_token_file: Annotated[
        Path | None, Field(description="file with the token that reads transcripts; unset: nobody reads them")
    ] = None

    def inspector_token(self) -> str | None:
        """That of the file; without one a token that nobody holds, or none where there is no operator's either.

        Raises BadParameter where it is the operator's too, for then the server could read on.
        """
        own, operators = _token("inspector_token_file", self.inspector_token_file), self.operator_token()
        if own is not None and own == operators:
            shown = str(self.inspector_token_file)
            raise BadParameter("inspector_token_file", shown, "must not hold the operator's token")
        return own or (secrets.token_urlsafe() if operators else None)


def _token(field: str, path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text("utf-8").strip()
    except OSError as error:
        raise BadParameter(field, str(path), f"{error.strerror}") from error
    if not token:
        raise BadParameter(field, str(path), "must not be empty")
    return token


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
