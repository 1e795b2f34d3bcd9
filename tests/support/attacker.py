"""A process that sends one request on several connections, again and again, until its input ends.

    python -m tests.support.attacker FLOOD

FLOOD is a `Flood` as JSON. The process prints `begun` when its threads have started. At the end it prints the answers
that it got, on one line of JSON: how many of each status, and whether all of them have a Retry-After header.
"""

import contextlib
import json
import socket
import sys
import threading
from dataclasses import asdict, dataclass

PAUSE_SECONDS = 0.02
"""Seconds before a connection that was refused or has ended is made again: attackers take no time of this machine."""

KIND = "Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Flood:
    """The requests of an attacker.

    line    method and path.
    body    JSON; `fill` letters, if any, stand where it has an underscore.
    source  the address from which the attacker comes.
    """

    line: str
    connections: int
    body: str = ""
    fill: int = 0
    source: str = "127.0.0.1"
    port: int = 0

    def whole(self) -> bytes:
        """Return the bytes of a request."""
        body = self.body.replace("_", "A" * self.fill, 1) if self.fill else self.body
        about = f"{KIND}Content-Length: {len(body)}\r\n" if body else ""
        return f"{self.line} HTTP/1.1\r\nHost: localhost\r\n{about}\r\n{body}".encode()

    def words(self) -> str:
        return json.dumps(asdict(self))


class Answers:
    """Counts answers by status."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}  # status: answers, those with Retry-After
        self._lock = threading.Lock()

    def add(self, head: bytes) -> None:
        with self._lock:
            counts = self.counts.setdefault(head.split()[1].decode(), [0, 0])
            counts[0] += 1
            counts[1] += b"retry-after" in head


def send(flood: Flood, raw: bytes, stopped: threading.Event, answers: Answers) -> None:
    """Send the request and read the answer, again and again, on a new connection where the last one has ended."""
    while not stopped.is_set():
        with (
            contextlib.suppress(OSError),
            socket.create_connection(
                ("127.0.0.1", flood.port), timeout=60, source_address=(flood.source, 0)
            ) as connection,
        ):
            while not stopped.is_set() and answered(connection, raw, answers):
                pass
        stopped.wait(PAUSE_SECONDS)


def answered(connection: socket.socket, raw: bytes, answers: Answers) -> bool:
    """Play one request. Return False when the connection has ended."""
    with contextlib.suppress(ConnectionError):  # a refusal may come before all of it is sent
        connection.sendall(raw)
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65_536)
        if not part:
            return False
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    head = head.lower()
    answers.add(head)
    left = int(head.partition(b"content-length: ")[2].split(b"\r")[0]) - len(body)
    while left > 0:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            return False
        left -= len(part)
    return b"connection: close" not in head


def main() -> None:
    flood, stopped, answers = Flood(**json.loads(sys.argv[1])), threading.Event(), Answers()
    work = (flood, flood.whole(), stopped, answers)
    threads = [threading.Thread(target=send, args=work, daemon=True) for _ in range(flood.connections)]
    for thread in threads:
        thread.start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join(10)
    sys.stdout.write(json.dumps(answers.counts))


if __name__ == "__main__":
    main()
