"""Tests what `distrust inspect` prints of the parties' transcripts."""

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels import CHANNELS
from distrust.common.protocol.channels.masked import MASKED_STEPS as STEPS
from distrust.common.protocol.channels.steps import ABORTED
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import TranscriptEntry
from distrust.common.randomness import SystemStream
from distrust.lab.play import in_process
from distrust.lab.play.in_process import held
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.outline import Outline, Pages, Party, Wanted
from distrust.lab.services.transcripts import Inspection, PartyView, described, print_party_views
from distrust.server.learner.learner import Learner
from distrust.server.runs.active_run import round_message
from distrust.server.storage.keys import PublicKeys
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
OUTLINE = Outline(REPORT.number, "aggregator", REPORT.guarantee, REPORT.cohorts, bytes(32))
PARTY_VIEW = PartyView(OUTLINE, REPORT.cohorts[0], Pages(9000, BY_S), Pages(3, BY_SERVER), "masked")


def printed(width: int, party_view: PartyView = PARTY_VIEW) -> list[str]:
    text = io.StringIO()
    print_party_views([party_view], Console(file=text, width=width, color_system=None, soft_wrap=True))
    return text.getvalue().splitlines()


def rows() -> dict[str, list[str]]:
    shown = printed(400)
    cells = [[cell.strip() for cell in line.split("│")] for line in shown[: shown.index("")]]
    return {stage: rest for stage, *rest in cells if rest}


@pytest.mark.parametrize("width", [80, 120])
def test_the_parties_stand_side_by_side_in_the_terminals_width(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert all(title in lines[1] for title in ("stage", "a client sent", "the aggregator saw", "the server saw"))


def test_the_json_object_has_every_message_that_was_read_and_says_how_many_there_are() -> None:
    result = json.loads(json.dumps(described(Wanted("first", 1, None, 3), [PARTY_VIEW])))
    (cohort,) = result["cohorts"]
    assert (result["run"], result["round"], cohort["cohort"]) == ("first", 1, REPORT.cohorts[0].cohort)
    assert cohort["guarantee"]["epsilon"] == REPORT.guarantee.epsilon
    assert [one["stage"] for one in cohort["intermediary"]["messages"]] == [one.stage for one in BY_S]
    assert cohort["intermediary"]["messages"][2]["view"] == {"modulus": 997, "masked": [31]}
    assert (cohort["intermediary"]["total"], cohort["server"]["total"]) == (9000, 3)


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


def test_the_parties_explanations_stand_below_word_for_word() -> None:
    shown = "\n".join(printed(900))
    assert shown.count("why it cannot know more") == 1
    sentences = [str(held) for step in STEPS for held in (step.client, step.intermediary, step.server)]
    assert [sentence for sentence in sentences if sentence not in shown] == []
    (explained,) = described(Wanted("first", 1, None, 3), [PARTY_VIEW])["explanations"]
    assert explained["cohorts"] == [REPORT.cohorts[0].cohort]
    assert [step["stage"] for step in explained["steps"]] == [step.stage for step in STEPS]
    assert [step["server"] for step in explained["steps"]] == [str(step.server) for step in STEPS]
    assert explained["not_reached"] == []


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_field_says_what_the_party_holds_and_why_no_more(channel: str) -> None:
    for step in (*CHANNELS[channel].STEPS, ABORTED):
        for field in (step.client, step.intermediary, step.server):
            for sentence in (field.holds, field.why):
                assert re.fullmatch(r"[A-Z].{8,}\.", sentence), (step.stage, sentence)
            assert field.why not in field.holds


ABORTED_IN = {
    "keys": ("0 clients in stage keys, at least 9 needed: nothing is released", []),
    "shares": ("7 clients in stage shares, at least 9 needed: nothing is released", []),
    "masked": ("7 survivors around slot 4, at least 9 needed: nothing is released", ["confirm", "masked"]),
    "unmask": ("an unexpected error; the service's log has it", ["unmask"]),
}
"""By the stage that a cohort was aborted in: the intermediary's reason, and the stages that have statements."""


@pytest.mark.parametrize("stage", ABORTED_IN)
def test_an_aborted_cohorts_stages_end_where_it_did(stage: str) -> None:
    reason, stated = ABORTED_IN[stage]
    cohort = REPORT.cohorts[0].model_copy(update={"state": "aborted", "reason": reason})
    by_server = [
        BY_SERVER[0],
        *(seen(one, "aggregator", statement=KEY) for one in stated),
        seen("aborted", "aggregator"),
    ]
    by_s = [seen("keys"), *(seen(one, "everyone", "out") for one in stated)]
    life = ["keys", "shares", "confirm", "masked", "unmask"]
    after = [*life[life.index(stage) + 1 :], "batch", "estimate"]
    for pages in ((Pages(2, by_s), Pages(3, by_server)), (None, Pages(3, by_server))):
        party_view = PartyView(OUTLINE, cohort, *pages, "masked")
        (explained,) = described(Wanted("first", 1, None, 3), [party_view])["explanations"]
        stages = [step["stage"] for step in explained["steps"]]
        assert stages == ["cohort", "tickets", *life[: life.index(stage) + 1], "departed", "aborted"]
        assert explained["not_reached"] == after
        assert printed(400, party_view)[-2] == f"not reached: {', '.join(after)}"
        assert f"not reached: {', '.join(after)}" in Inspection([party_view])._repr_html_()


@pytest.mark.parametrize(
    ("lacking", "columns"),
    [
        ("server", ["a client sent", "the aggregator saw"]),
        ("aggregator", ["the server saw"]),
    ],
)
def test_a_missing_party_has_no_column_and_a_reason(lacking: Party, columns: list[str]) -> None:
    pages = (PARTY_VIEW.by_intermediary, None) if lacking == "server" else (None, PARTY_VIEW.by_server)
    party_view = PartyView(OUTLINE, REPORT.cohorts[0], *pages, "masked", ((lacking, "no address was given for it"),))
    shown = printed(400, party_view)
    assert [cell.strip() for cell in shown[1].split("│")] == ["stage", *columns]
    (absence,) = [line for line in shown if "is missing" in line]
    assert absence.startswith(f"the {lacking}'s column")
    assert absence.endswith("is missing: no address was given for it")
    (cohort,) = described(Wanted("first", 1, None, 3), [party_view])["cohorts"]
    assert cohort["missing"] == {lacking: "no address was given for it"}
    assert [name for name in ("intermediary", "server") if cohort[name] is None] == [
        "server" if lacking == "server" else "intermediary"
    ]


STEERING = "\x1b]52;c;cm0=\x07\x9b2J\r\u202e"
"""Writes the clipboard, clears the screen, returns to the line's begin, and turns the writing round."""


def test_a_partys_words_never_steer_the_readers_terminal_or_page() -> None:
    views = {STEERING: f"{STEERING}\n", "long": "w" * 10**6, "two": [STEERING] * 2}
    lie = seen(STEERING, f"client {STEERING}", **views)
    party_view = PartyView(OUTLINE, REPORT.cohorts[0], Pages(1, [lie]), Pages(0, []), "masked")
    shown, page = "\n".join(printed(400, party_view)), Inspection([party_view])._repr_html_()
    assert "client \ufffd]52;c;cm0=" in shown
    assert "client \ufffd]52;c;cm0=" in page
    assert [text for text in (shown, page) if set(text) & set(STEERING) - set("]52;c;cm0=2J")] == []
    assert len(shown) < 200_000


def test_a_channel_that_is_none_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadMessage, match=r"a cohort that cannot be: its channel is 'carrier pigeons'$"):
        PartyView(OUTLINE, REPORT.cohorts[0], PARTY_VIEW.by_intermediary, PARTY_VIEW.by_server, "carrier pigeons").life  # noqa: B018


def test_it_says_how_much_is_not_shown() -> None:
    assert "8 of 9,003 messages" in "\n".join(printed(80))


SIMULATED = """
run = "trial"
horizon = 3000
policy.first_batch = 4
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", means = [0.2, 0.9]SEED}
"""

ASSIGNED = """
run = "assigned"
horizon = 2000
policy = {name = "almost-free", model = "shuffled"}
mechanism = {name = "identity", via = "shuffler"}
environment = {name = "linear-sphere", seed = 3, arms = 8}
"""


def simulated(more: str = "", seed: str = ", seed = 11", text: str = SIMULATED) -> RunFile:
    return parse(text.replace("SEED", seed) + more)


def first_cohort(file: RunFile) -> Cohort:
    """Return a run's first cohort as an intermediary serves it."""
    plan = Learner(file.config).plan()
    assert plan is not None
    return round_message(file.config, bytes(32), plan, PublicKeys(bytes(32), bytes(32))).assignments[0].cohort


def test_what_simulated_clients_held_adds_up_to_what_the_run_released() -> None:
    file = simulated("[unsafe]\nnoise_seed = 3\n")
    told = held(file, first_cohort(file))
    plan = Learner(file.config).plan()
    assert plan is not None
    mechanism = plan.cohorts[0].mechanism
    rows = np.array([client["message"] for client in told["clients"]], dtype=np.uint64)
    total = rows.sum(axis=0) % np.uint64(mechanism.modulus)
    released = in_process.run(file).rounds[0].cohorts[0]
    assert mechanism.estimate(total, len(rows), SystemStream()).tolist() == released.estimate
    assert [client["slot"] for client in told["clients"]] == list(range(released.clients))
    assert {reward for client in told["clients"] for reward in client["reward"]} == {0.0, 1.0}


def test_without_a_noise_seed_no_process_can_tell_what_a_client_sent() -> None:
    file = simulated()
    told = held(file, first_cohort(file))
    assert all(set(client) == {"slot", "reward"} for client in told["clients"])


def test_held_is_refused_for_another_run_file_an_unknown_seed_and_assigned_actions() -> None:
    file = simulated()
    other = simulated(text=SIMULATED.replace("trial", "another"))
    with pytest.raises(BadParameter, match=r"must be the run file that trial\.1\.0\.1 is of"):
        held(other, first_cohort(file))
    with pytest.raises(BadParameter, match="without it no process knows what clients held"):
        held(simulated(seed=""), first_cohort(file))
    assigned = parse(ASSIGNED)
    with pytest.raises(BadParameter, match="it alone knows who played what"):
        held(assigned, first_cohort(assigned))
