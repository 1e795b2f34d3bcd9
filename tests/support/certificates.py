"""An authority of tests, and the files that services and callers have of it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from distrust.common.protocol.web.tls import CALLER_FILES, caller_context

HERE = ("localhost", "127.0.0.1")
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and of its key."""

    cert: Path
    key: Path

    def together(self) -> Path:
        """Return a file with both, as HAProxy reads them."""
        both = self.cert.with_suffix(".both.pem")
        both.touch(0o600)
        both.write_bytes(self.cert.read_bytes() + self.key.read_bytes())
        return both


@dataclass(frozen=True)
class Certificates:
    """An authority whose files lie in a folder of its own."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.ca.write_bytes(self.authority.cert_pem.bytes())  # once: services may be reading it later

    @property
    def ca(self) -> Path:
        """The file of the authority's own certificate."""
        return self.folder / "ca.pem"

    def issue(self, name: str, *hosts: str, until: datetime | None = None) -> Pair:
        """Return the files of a certificate for these names."""
        made = self.authority.issue_cert(*hosts, not_after=until)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        pair.key.touch(0o600)
        pair.key.write_bytes(made.private_key_pem.bytes())
        return pair

    def service(self, name: str = "service") -> dict[str, str]:
        """Return the variables of a service of this machine that knows its callers."""
        pair = self.issue(name, *HERE)
        files = {"DISTRUST_TLS_CERT": pair.cert, "DISTRUST_TLS_KEY": pair.key, "DISTRUST_CLIENT_CA": self.ca}
        return {variable: str(path) for variable, path in files.items()}

    def caller(self, name: str = "caller") -> dict[str, str]:
        """Return the variables of a caller that trusts this authority, and has a certificate of it."""
        pair = self.issue(name, "caller.example")
        return dict(zip(CALLER_FILES, map(str, (self.ca, pair.cert, pair.key)), strict=True))


def call_with(environment: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Let this process call services with these variables, and with no others of `CALLER_FILES`."""
    for name in CALLER_FILES:
        environment.setenv(name, variables.get(name, ""))
    caller_context.cache_clear()
