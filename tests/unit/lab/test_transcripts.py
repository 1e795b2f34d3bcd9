"""`distrust inspect`: what is printed of what the parties say they saw."""

import io
from typing import Any

import pytest
from rich.console import Console

from distrust.common.messages.status import TranscriptEntry
from distrust.lab.run.transcripts import Pages, Sight, print_sights
from tests.support.round_report import REPORT

KEY = bytes(range(32)).hex()


def seen(stage: str, peer: str = "client 7", direction: str = "in", **view: Any) -> TranscriptEntry:
    fields = {"number": 0, "direction": direction, "peer": peer, "stage": stage, "bytes": 1234, "hex": KEY}
    return TranscriptEntry.model_validate({**fields, "view": view})


BY_S = [
    seen("keys", mask_key=KEY, channel_key=KEY[::-1]),
    seen("shares", "everyone", "out", members=1000),
    seen("masked", modulus=997, masked=[31]),
    seen("departed", "client 8"),
    seen("batch", "server", "out", survivors=60, sum=[512]),
]
BY_SERVER = [
    seen("cohort", "aggregator", "out", clients=64),
    seen("batch", "aggregator", values=list(range(9)), reason="abcdef are words, and stay whole"),
    seen("estimate", "everyone", "out", sum=["7.25"]),
]
SIGHT = Sight(REPORT, REPORT.cohorts[0], Pages(9000, BY_S), Pages(3, BY_SERVER))


def printed(width: int) -> list[str]:
    text = io.StringIO()
    print_sights([SIGHT], Console(file=text, width=width, color_system=None, soft_wrap=True))
    return text.getvalue().splitlines()


def rows() -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")] for line in printed(400)]
    return {stage: rest for stage, *rest in cells if rest}


@pytest.mark.parametrize("width", [80, 120])
def test_the_parties_stand_side_by_side_in_the_terminals_width(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert all(title in lines[1] for title in ("stage", "a client sent", "the aggregator saw", "the server saw"))


def test_a_clients_bytes_stand_beside_what_the_intermediary_could_read_of_them() -> None:
    assert rows()["keys"] == [
        "client 7: 1,234 B 000102030405…",
        "mask key 000102030405…, channel key f1e1d1c1b1a1…",
        "",
    ]
    assert rows()["masked"][1] == "modulus 997, masked 31"
    assert rows()["departed"][0].startswith("client 8")


def test_what_a_party_says_itself_is_no_clients_message() -> None:
    assert rows()["shares"] == ["", "to everyone, 1,234 B: members 1000", ""]
    assert rows()["cohort"] == ["", "", "to aggregator, 1,234 B: clients 64"]
    assert rows()["estimate"][2] == "to everyone, 1,234 B: sum 7.25"


def test_the_batch_that_was_sent_stands_beside_what_the_server_read_in_it() -> None:
    assert rows()["batch"] == [
        "",
        "to server, 1,234 B: survivors 60, sum 512",
        "values [0, 1, 2, 3, 4, 5, … 3 more], reason abcdef are words, and stay whole",
    ]


def test_it_says_how_much_is_not_shown() -> None:
    assert "8 of 9,003 messages" in "\n".join(printed(80))
