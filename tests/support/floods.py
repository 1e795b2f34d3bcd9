"""The attacks of one caller without a token on a service, and what they leave of honest work's speed.

    python -m tests.support.floods FOLDER [WORD]

It prints the table of performance.md: each attack on each service, without a proxy and through one. WORD chooses
the rows whose name contains it, such as "server: eight".
"""

import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Item, Upload
from tests.support.attacker import Flood
from tests.support.attacks import Attacked, attacked
from tests.support.cohorts import address
from tests.support.honest_work import ATTACKED
from tests.support.proxy import PARTIES, proxied

INTERMEDIARIES = ("shuffler", "aggregator")
WAITED = 500  # cohorts on which an attacker waits
PAUSE_SECONDS = 0.5  # so that requests that wait have begun to

ADDRESSES = itertools.cycle(range(2, 255))  # ends of attackers' addresses

FAULTS = ",".join(["{}"] * 5400)
"""16 kB of items that are none."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to attack: connections that are made once, or a flood by another process without a pause.

    honest  connections of the honest work beside it.
    """

    connect: Callable[[Attacked], None] | None = None
    flood: Callable[[Attacked], Flood] | None = None
    parties: tuple[str, ...] = PARTIES
    honest: int = 1


def _abandon(service: Attacked) -> None:
    for _ in range(3000):
        service.connect(service.poll()).close()


def _stay(service: Attacked) -> None:
    for _ in range(600):
        service.connect(service.poll())
    time.sleep(PAUSE_SECONDS)


def _wait_on_cohorts(service: Attacked) -> None:
    for name in service.waited:
        service.connect(service.poll().replace(address("target").encode(), address(name).encode()))
    time.sleep(PAUSE_SECONDS)


def _halves_of_heads(service: Attacked) -> None:
    for _ in range(400):
        service.connect(b"GET /healthz HTTP/1.1\r\nX: ")


def _halves_of_bodies(service: Attacked) -> None:
    for _ in range(400):
        service.connect(service.upload(8000) + b"{")


def _pipeline(service: Attacked) -> None:
    for _ in range(30):
        service.connect(service.poll() * 1000)


def _leave_unread(service: Attacked) -> None:
    for _ in range(100):
        service.connect(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)


def _bodies(connections: int, size: int) -> Callable[[Attacked], Flood]:
    body = '{"version":3,"cohort":"target","stage":"report","items":[],"keys":"_"}'
    return lambda service: Flood(f"POST {service.target.upload}", connections, body, size)


def _bad_json(service: Attacked) -> Flood:
    body = f'{{"version":3,"cohort":"target","digest":"","stage":"report","items":[{FAULTS}]}}'
    return Flood(f"POST {service.target.upload}", 2, body)


def wrong_tickets(service: Attacked) -> Flood:
    """Return a flood of uploads of invented tickets, 8 kB each, for all slots. Any caller may read the digest."""
    path = service.target.upload
    cohort, _, last = path.rpartition("/")
    stage: Any = {"reports": "report"}.get(last, last)
    terms = Cohort.model_validate_json(httpx.get(f"http://127.0.0.1:{service.inside}{cohort}/terms").content)
    items = [Item(slot=slot, ticket=bytes(64), body=b"") for slot in range(ATTACKED)]
    upload = Upload(cohort=terms.cohort, digest=terms.digest(), stage=stage, items=items)
    return Flood(f"POST {path}", 8, upload.model_dump_json())


def _small_call(service: Attacked) -> Flood:
    return Flood(f"GET {service.target.poll.partition('?')[0]}", 100)


ATTACKS = {
    "3000 long polls, abandoned": Attack(_abandon),
    "600 long polls that stay": Attack(_stay),
    "waits on 500 cohorts": Attack(_wait_on_cohorts, parties=INTERMEDIARIES),
    "400 halves of a head": Attack(_halves_of_heads),
    "400 halves of a body": Attack(_halves_of_bodies),
    "30 connections, 1000 requests each": Attack(_pipeline),
    "1000 answers that are not read": Attack(_leave_unread),
    "eight bodies of 15 MB": Attack(flood=_bodies(8, 15_000_000)),
    "thirty bodies of 600 kB": Attack(flood=_bodies(30, 600_000)),
    "bad JSON of 16 kB on two connections": Attack(flood=_bad_json),
    "64 wrong tickets on eight connections": Attack(flood=wrong_tickets, parties=INTERMEDIARIES, honest=2),
    "100 connections of GET /healthz": Attack(flood=lambda _: Flood("GET /healthz", 100)),
    "100 connections of GET /openapi.json": Attack(flood=lambda _: Flood("GET /openapi.json", 100)),
    "100 connections of a small call": Attack(flood=_small_call),
}


@dataclass(frozen=True, slots=True)
class Harm:
    """The effect of an attack: how many times as long honest work took, and the answers of a flood by status."""

    slower: float
    answers: dict[str, list[int]]


def harm(service: Attacked, attack: Attack, pieces: int) -> Harm:
    """Measure pieces of honest work right before an attack, and right after it has begun.

    Through a proxy each attack comes from an address of its own, so that none is refused for an earlier one.
    """
    if service.port != service.inside:
        service.source = f"127.0.0.{next(ADDRESSES)}"
    before = service.honest_seconds(pieces, attack.honest)
    if attack.connect is not None:
        attack.connect(service)
        during = service.honest_seconds(pieces, attack.honest)
        service.hang_up()
        return Harm(during / before, {})
    assert attack.flood is not None
    flood = replace(attack.flood(service), source=service.source, port=service.port)
    command = [sys.executable, "-m", "tests.support.attacker", flood.words()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "begun\n"
        during = service.honest_seconds(pieces, attack.honest)
        printed, _ = attacker.communicate()
    return Harm(during / before, json.loads(printed))


def allow_sockets(number: int) -> None:
    """Raise this process's limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


PIECES = 40
TRIES = 2


def main() -> None:
    folder, word = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    allow_sockets(8192)
    with attacked("shuffler", _made(folder / "elsewhere")) as elsewhere:
        for party in PARTIES:
            chosen = {name: one for name, one in ATTACKS.items() if party in one.parties and word in f"{party}: {name}"}
            if chosen:
                _measure(party, _made(folder / party), elsewhere.url, chosen)


def _measure(party: str, folder: Path, shuffler: str, attacks: dict[str, Attack]) -> None:
    """Print a party's rows. The service behind the proxy is another process, whose memory is its own."""
    own = {"DISTRUST_SHUFFLER_URL": shuffler, "DISTRUST_FIRST_SECONDS": "3600"}
    behind = _made(folder / "behind")
    with (
        attacked(party, _made(folder / "direct"), **own) as direct,
        attacked(party, behind, **own) as inside,
        proxied(party, inside, behind) as through,
    ):
        for service in (direct, inside):
            service.prepare()
            if party in INTERMEDIARIES:
                service.open_waited(WAITED)
        through.fresh, through.waited = inside.fresh, inside.waited
        for name, attack in attacks.items():
            cells = (_measured(service, attack) for service in (direct, through))
            sys.stdout.write(f"| {party} | {name} | {' | '.join(cells)} |\n")
            sys.stdout.flush()


def _measured(service: Attacked, attack: Attack) -> str:
    """Return how many times as long honest work took, least and largest, and memory before and at its peak."""
    service.forget_peak()
    proxy = service.proxy_memory() if service.proxy else 0
    slower = [harm(service, attack, PIECES).slower for _ in range(TRIES)]
    before, peak = (round(number / 1e6) for number in (service.fresh, service.peak()))
    own = f"{min(slower):.2f} to {max(slower):.2f}; {before} → {peak} MB"
    return f"{own}; proxy {proxy / 1e6:.0f} → {service.proxy_peak() / 1e6:.0f} MB" if service.proxy else own


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main()
