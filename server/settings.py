"""Settings of the server: environment variables that start with `DISTRUST_`."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.protocol.web.tls import caller_context
from distrust.common.wire import Via
from distrust.server.runs.service import WINDOW
from distrust.server.storage.keys import folder_for

Url = Annotated[str, Field(pattern=r"^https?://")]
ReadersUrl = Annotated[str, Field(pattern=r"^(https?://[^/?#@*,;\s]+)?$")]


class ServerSettings(ServiceSettings):
    """Variables of the server, and those of every service.

    They are DISTRUST_SHUFFLER_URL, _AGGREGATOR_URL, _SHUFFLER_READERS_URL, _AGGREGATOR_READERS_URL, _CALCULATOR,
    _EXTENSIONS, _KEYS, _PARTICIPANTS_FILE and _WINDOW.
    """

    service: ClassVar[str] = "server"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8701
    shuffler_url: Annotated[Url, Field(description="the shuffler")] = "http://127.0.0.1:8702"
    aggregator_url: Annotated[Url, Field(description="the aggregator")] = "http://127.0.0.1:8703"
    extensions: Annotated[
        str, Field(description="module:Name, …: classes of the operator's own that a run may name, commas between")
    ] = ""
    keys: Annotated[
        Path | None, Field(description="folder of the key files of open runs, mode 0700; made on first use")
    ] = None
    participants_file: Annotated[
        Path | None, Field(description="list of participation tokens and devices; unset: the operator's fleets alone")
    ] = None
    window: Annotated[int, Field(ge=1, description="clients of a run in flight before another cohort is begun")] = (
        WINDOW
    )

    shuffler_readers_url: Annotated[
        ReadersUrl, Field(description="the shuffler, as the browsers of readers reach it; unset: shuffler_url")
    ] = ""
    aggregator_readers_url: Annotated[
        ReadersUrl, Field(description="the aggregator, as the browsers of readers reach it; unset: aggregator_url")
    ] = ""
    calculator: Annotated[
        Literal["operator", "open"], Field(description="who may have the privacy page compute, which costs CPU")
    ] = "operator"

    def check(self) -> None:
        """Raise BadParameter also for files by which this server could not call an intermediary over TLS."""
        super().check()
        if any(url.startswith("https:") for url in (self.shuffler_url, self.aggregator_url)):
            caller_context()

    def readers_url(self, party: Via) -> str:
        """Return the origin of an intermediary for readers' browsers: scheme, host and port, and no password."""
        inner = {"shuffler": self.shuffler_url, "aggregator": self.aggregator_url}
        outer = {"shuffler": self.shuffler_readers_url, "aggregator": self.aggregator_readers_url}
        parts = urlsplit(outer[party] or inner[party])
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def key_folder(self) -> Path:
        """Return the configured folder, or the one that belongs to the database."""
        return self.keys or folder_for(self.database_url)
