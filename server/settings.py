"""The server's settings: those of every service, where both S are, where its keys lie."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from sqlalchemy.engine import make_url

from distrust.common.web.settings import ServiceSettings
from distrust.server.service import WINDOW

Url = Annotated[str, Field(pattern=r"^https?://")]


class ServerSettings(ServiceSettings):
    """Variables DISTRUST_SHUFFLER_URL, _AGGREGATOR_URL, _EXTENSIONS, _KEYS, _WINDOW, and those of every service."""

    service: ClassVar[str] = "server"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8701
    shuffler_url: Annotated[Url, Field(description="S by permutation")] = "http://127.0.0.1:8702"
    aggregator_url: Annotated[Url, Field(description="S by secure sum")] = "http://127.0.0.1:8703"
    extensions: Annotated[
        str, Field(description="module:Name, …: classes of the operator's own that a run may name, commas between")
    ] = ""
    keys: Annotated[Path | None, Field(description="key file, mode 0600; made on first use")] = None
    window: Annotated[int, Field(ge=1, description="clients of a run in flight before another cohort is begun")] = (
        WINDOW
    )

    @property
    def key_file(self) -> Path:
        """The configured key file, or one beside the SQLite database, or below the working directory."""
        if self.keys is not None:
            return self.keys
        url = make_url(self.database_url)
        if url.get_backend_name() == "sqlite" and url.database:
            return Path(url.database).with_suffix(".keys")
        return Path(".distrust/server.keys")
