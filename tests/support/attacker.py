"""A process that sends large bodies to a service, one after another on several connections, until its input ends.

    python -m tests.support.attacker PORT PATH BODIES SIZE

It prints `begun` when its threads have started. At the end it prints the answers that it got, on one line of JSON: the
status of each, and whether it has a Retry-After header.
"""

import contextlib
import json
import socket
import sys
import threading

HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"


def send_bodies(port: int, path: str, size: int, stopped: threading.Event, answers: list[tuple[str, bool]]) -> None:
    """Send an upload with a field of `size` bytes and read the answer, again and again until `stopped` is set."""
    raw = b'{"version":3,"cohort":"target","stage":"report","items":[],"keys":"' + b"A" * size + b'"}'
    whole = HEAD.format(path=path, size=len(raw)).encode() + raw
    while not stopped.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(whole)
            answer = connection.recv(65_536).lower()
            if answer:
                answers.append((answer.split()[1].decode(), b"retry-after" in answer))


def main() -> None:
    port, path, bodies, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    stopped, answers = threading.Event(), list[tuple[str, bool]]()
    work = (port, path, size, stopped, answers)
    threads = [threading.Thread(target=send_bodies, args=work, daemon=True) for _ in range(bodies)]
    for thread in threads:
        thread.start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join(10)
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
