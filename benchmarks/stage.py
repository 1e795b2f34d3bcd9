"""Starts a real intermediary in a process of its own. The benchmark opens its cohorts and signs their tickets."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.web.client import Http, Patience
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.process import ServiceProcess, stop_all
from distrust.lab.stack.stack import LOOPBACK, choose_ports, is_ready

PATIENCE = Patience(first=0.1, longest=1.0, total=60.0)
TICKETS = Ed25519PrivateKey.generate()
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Party:
    """A running service."""

    url: str
    token: str
    pid: int

    async def open(self, cohort: Cohort) -> None:
        async with Http(PATIENCE) as http:
            await http.peer(self.url, self.token).put(f"/v1/cohorts/{cohort.address}", cohort, Cohort)

    async def batch(self, cohort: Cohort) -> Batch:
        """Wait for the released batch, and return it. Raises SystemExit if there is none."""
        async with Http(PATIENCE) as http:
            peer, answer = http.peer(self.url, self.token), None
            while answer is None or answer.state == "waiting":
                answer = await peer.get(f"/v1/cohorts/{cohort.address}/batch", BatchAnswer, {"wait": 20.0})
        if answer.batch is None:
            raise SystemExit(f"cohort {cohort.cohort} came to nothing: {answer.reason}")
        return answer.batch


@contextmanager
def party(name: str) -> Iterator[Party]:
    """Run `python -m distrust.NAME` during the block, on a free loopback port, with a fresh database."""
    with TemporaryDirectory(prefix="distrust-benchmark-") as place:
        folder = DataDir(Path(place) / "data")
        folder.make()
        folder.make_tokens()
        port = choose_ports(0, [name])[name]
        environment = {
            "DISTRUST_HOST": LOOPBACK,
            "DISTRUST_PORT": str(port),
            "DISTRUST_DATABASE": folder.database(name),
            "DISTRUST_OPERATOR_TOKEN_FILE": str(folder.token_file.resolve()),
        }
        service = ServiceProcess(name, [f"distrust.{name}"], environment, folder.log(name))
        try:
            _wait_until_ready(service, port)
            yield Party(f"http://{LOOPBACK}:{port}", folder.token(), service.pid)
        finally:
            stop_all([service])


def _wait_until_ready(service: ServiceProcess, port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_ready(port):
        service.check()
        if time.monotonic() > end:
            raise TimeoutError(f"not ready within {START_SECONDS:g} s")
        time.sleep(0.05)
