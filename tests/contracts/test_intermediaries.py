"""Tests the promises that both intermediaries keep over HTTP, with real apps, database files and tickets."""

import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from distrust.common.errors import BadParameter
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import CohortList, Transcript
from distrust.common.protocol.messages.upload import Item, Leaving, Upload, UploadAnswer
from tests.support.cohorts import SECONDS, address
from tests.support.parties import INSPECTOR, OPERATOR, PROBLEM, Party, ShufflerParty, problem, server
from tests.support.server_lies import another, changed, leaves


def refused(answer: httpx.Response) -> list[tuple[int, str, int]]:
    assert answer.status_code == 200
    read = UploadAnswer.model_validate_json(answer.content)
    return [(item.slot, item.type.removeprefix(PROBLEM), item.status) for item in read.refused]


def test_opening_twice_is_opening_once_and_a_changed_cohort_is_a_conflict(party: Party, cohort: Cohort) -> None:
    again = party.open(cohort)
    assert (again.status_code, Cohort.model_validate_json(again.content)) == (200, cohort)
    assert problem(party.open(cohort.model_copy(update={"minimum": cohort.minimum + 1}))) == (409, "conflict")
    listed = CohortList.model_validate_json(party.get("").content).cohorts
    assert [(entry.cohort, entry.stage) for entry in listed] == [("c1", party.first)]


def test_a_listing_counts_who_has_answered_and_can_leave_out_what_is_over(party: Party, cohort: Cohort) -> None:
    def listed(path: str) -> list[tuple[str, int | None]]:
        result = CohortList.model_validate_json(party.get(path).content).cohorts
        return [(entry.stage, entry.answered) for entry in result]

    bodies = party.bodies(cohort)
    assert listed("?open=true") == [(party.first, 0)]
    party.send(cohort, {0: bodies[0], 1: bodies[1]})
    assert listed("?open=true") == listed("") == [(party.first, 2)]
    party.send(cohort, bodies)
    party.rest(cohort)
    assert party.batch().json()["state"] == "released"
    assert (listed("?open=true"), listed("")) == ([], [("done", None)])


def test_a_listing_tells_who_is_alive_and_the_seconds_until_the_deadline(party: Party, cohort: Cohort) -> None:
    def standing() -> tuple[str, int | None, float | None]:
        (entry,) = CohortList.model_validate_json(party.get("?open=true").content).cohorts
        return entry.stage, entry.alive, entry.seconds_left

    bodies, whole = party.bodies(cohort), cohort.stage_seconds
    assert standing() == (party.first, 5, FIRST_SECONDS)  # until its first message
    party.send(cohort, {slot: bodies[slot] for slot in (0, 1, 2)})
    party.clock.advance(whole / 4)
    assert standing() == (party.first, 5, 3 * whole / 4)
    party.leave(cohort, [4])
    assert standing() == (party.first, 4, 3 * whole / 4)
    party.send(cohort, {3: bodies[3]})  # all answered but the one that left: the stage is over
    if isinstance(party, ShufflerParty):
        party.batch()
        ended = party.get("").json()["cohorts"][0]
        assert (ended["stage"], "alive" in ended, "seconds_left" in ended) == ("done", False, False)
    else:
        assert standing() == ("shares", 4, whole)
        party.clock.advance(2 * whole)
        assert standing() == ("shares", 4, 0)  # until a request closes it


def test_a_listing_is_of_one_run_and_of_the_oldest_where_a_reader_wants_no_more(party: Party, cohort: Cohort) -> None:
    for name, run in (("c2", "r2"), ("c3", "r1")):
        party.open(party.cohort(name=name).model_copy(update={"run": run}))
    asked = {
        "?run=r1": ["c1", "c3"],
        "?run=r1&limit=1": ["c1"],
        "?run=r2": ["c2"],
        "?run=r": [],
        '?run=r1","round': [],
        "?limit=2": ["c1", "c2"],
        "?cohort=c3&limit=1": ["c3"],
        "?cohort=c3&run=r2": [],
        "?cohort=c": [],
    }
    for query, names in asked.items():
        assert [one["cohort"] for one in party.get(query).json()["cohorts"]] == names
    assert problem(party.get("?limit=0")) == (422, "bad-message")
    assert cohort.run == "r1"


def test_a_silent_cohort_that_is_opened_again_gets_its_first_time_again(party: Party, cohort: Cohort) -> None:
    for _ in range(3):
        party.clock.advance(0.9 * FIRST_SECONDS)
        assert party.open(cohort).status_code == 200
    assert party.batch_now().state == "waiting"


def test_a_cohort_with_a_message_gets_no_more_time_when_it_is_opened_again(party: Party, cohort: Cohort) -> None:
    party.send(cohort, {0: party.bodies(cohort)[0]})
    party.clock.advance(0.9 * cohort.stage_seconds)
    assert party.open(cohort).status_code == 200
    party.clock.advance(0.2 * cohort.stage_seconds)
    assert party.batch_now().state == "aborted"


def test_a_cohort_that_ended_without_a_release_is_not_opened_again(party: Party, cohort: Cohort) -> None:
    party.clock.advance(2 * cohort.stage_seconds)
    for _ in range(2):
        assert problem(party.open(cohort)) == (410, "aborted")
    assert party.batch_now().state == "aborted"


@pytest.mark.parametrize("path", ["", "/c1/batch", "/c1/messages"])
def test_the_operators_routes_need_the_operators_token(party: Party, cohort: Cohort, path: str) -> None:
    own = f"/{address(path[1:])}" if path else ""
    assert problem(party.client.get(f"/v1/cohorts{own}")) == (401, "unauthorized")
    answer = party.client.put(f"/v1/cohorts/{address('c1')}", json=cohort.model_dump(mode="json"))
    assert problem(answer) == (401, "unauthorized")


def test_the_token_that_the_server_holds_reads_no_transcript(party: Party, cohort: Cohort) -> None:
    """A transcript names the sender of each record. The server opens records, so it must not learn the senders."""
    party.send(cohort, party.bodies(cohort))
    path = f"/v1/cohorts/{address('c1')}/messages"
    assert problem(party.client.get(path, headers=OPERATOR)) == (401, "unauthorized")
    assert party.client.get(path, headers=INSPECTOR).json()["total"] >= 5
    assert party.get("/c1/batch").status_code == party.open(cohort).status_code == 200
    assert problem(party.client.get(f"/v1/cohorts/{address('c1')}/batch", headers=INSPECTOR)) == (401, "unauthorized")
    party.restart(inspector_token_file=None)
    for token in (OPERATOR, INSPECTOR):
        assert problem(party.client.get(path, headers=token)) == (401, "unauthorized")


def test_an_inspector_with_the_operators_token_is_refused_at_the_start(party: Party) -> None:
    """The server holds that token, and could read the sender of each record in the transcripts."""
    with pytest.raises(BadParameter, match="must not hold the operator's token") as caught:
        party.start(inspector_token_file=party.folder / "token")
    assert caught.value.field == "inspector_token_file"


def test_a_cohort_of_the_other_party_is_refused(party: Party) -> None:
    other = server.masked() if isinstance(party, ShufflerParty) else server.sealed()
    answer = party.open(other)
    assert problem(answer) == (422, "bad-parameter")
    assert answer.json()["field"] == "channel"


@pytest.mark.parametrize(("field", "value"), [("minimum", 6), ("ticket_key", bytes(31))])
def test_a_cohort_that_cannot_be_is_refused(party: Party, field: str, value: object) -> None:
    answer = party.open(party.cohort().model_copy(update={field: value}))
    assert problem(answer) == (422, "bad-parameter")
    assert answer.json()["field"] == field


def test_all_clients_answer_and_the_batch_is_the_same_bytes_for_ever(party: Party, cohort: Cohort) -> None:
    first = party.release(cohort)
    assert BatchAnswer.model_validate_json(first).lost == 0
    party.restart()
    assert party.batch().content == first


def test_a_batch_that_is_not_ready_says_when_to_come_back(party: Party, cohort: Cohort) -> None:
    answer = party.get("/c1/batch?wait=0.3")
    assert (answer.json()["state"], answer.headers["retry-after"]) == ("waiting", "1")


def test_a_repeat_is_accepted_once_and_a_changed_repeat_is_a_conflict(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    party.send(cohort, {0: bodies[0], 1: bodies[1]})
    assert party.send(cohort, {0: bodies[0], 1: bodies[1]}).json() == {"version": 3, "accepted": 2, "refused": []}
    assert refused(party.send(cohort, {0: bodies[2], 1: bodies[1]})) == [(0, "conflict", 409)]
    page = Transcript.model_validate_json(party.get("/c1/messages").content)
    assert [item.peer for item in page.messages if item.stage == party.first] == ["client 0", "client 1"]


def test_a_ticket_is_used_up_for_good_by_its_first_message(party: Party, cohort: Cohort) -> None:
    """Another message with the ticket is refused also after a restart of the service, and after the release."""
    bodies = party.bodies(cohort)
    party.send(cohort, {0: bodies[0]})
    party.restart()
    assert refused(party.send(cohort, {0: bodies[1]})) == [(0, "conflict", 409)]
    batch = party.release(cohort)
    party.restart()
    assert refused(party.send(cohort, {0: bodies[1], 1: bodies[1]})) == [(0, "conflict", 409)]
    assert party.batch().content == batch


def test_one_bad_item_never_spoils_the_others(party: Party, cohort: Cohort) -> None:
    bodies, beyond = party.bodies(cohort), cohort.clients
    upload = server.upload(cohort, party.first, {0: bodies[0], 1: bodies[1][:-1], beyond: bodies[2], 3: bodies[3]})
    forged = Item(slot=2, ticket=server.ticket(cohort, 1), body=bodies[2])
    items = [*upload.items, forged, upload.items[0]]
    upload = Upload(cohort="c1", digest=cohort.digest(), stage=upload.stage, items=items)
    answer = party.upload(upload)
    expected = [(0, "bad-message", 422), (1, "bad-message", 422), (2, "bad-ticket", 403), (beyond, "bad-message", 422)]
    assert sorted(refused(answer)) == expected
    assert answer.json()["accepted"] == 2


OTHERS: list[dict[str, Any]] = [{"run": "r2"}, {"round": 2}, {"cohort": "c9"}, {"run_digest": bytes([1] * 32)}]
NO_TICKETS = [b"", b"x", bytes(63), bytes(64), bytes(65), b"\xff" * 64]


def test_a_ticket_of_another_cohort_and_one_that_is_none_are_refused(party: Party, cohort: Cohort) -> None:
    others = [server.ticket(cohort.model_copy(update=change), 0) for change in OTHERS]
    for ticket in (*others, *NO_TICKETS):
        item = Item(slot=0, ticket=ticket, body=party.bodies(cohort)[0])
        assert refused(party.upload(uploaded(party, cohort.digest(), item))) == [(0, "bad-ticket", 403)]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"version":3}', b"\xff"])
def test_a_body_that_is_no_upload_is_a_problem_that_echoes_nothing(party: Party, cohort: Cohort, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = party.client.post(f"/v1/cohorts/{address('c1')}/{party.path}", content=raw, headers=headers)
    assert problem(answer) == (422, "bad-message")


def test_an_unknown_cohort_is_a_problem_everywhere(party: Party, cohort: Cohort) -> None:
    unknown = cohort.model_copy(update={"cohort": "c9"})
    assert problem(party.send(unknown, {0: b""})) == (404, "wrong-cohort")
    for path in ("/c9/batch", "/c9/messages", "/c9" if party.first == "report" else "/c9/stage"):
        assert problem(party.get(path)) == (404, "wrong-cohort")


def test_an_upload_sent_to_another_cohort_or_stage_is_refused_whole(party: Party, cohort: Cohort) -> None:
    for wrong in ({"cohort": "c9"}, {"stage": "unmask"}):
        upload = server.upload(cohort, party.first, party.bodies(cohort)).model_copy(update=wrong)
        answer = party.upload(upload)
        assert problem(answer) == (422, "bad-message")


def uploaded(party: Party, digest: bytes, *items: Item) -> Upload:
    """Return an upload of the first stage to cohort c1, by clients that agreed to a cohort with this digest."""
    return Upload(cohort="c1", digest=digest, stage=party.first, items=list(items))


def test_an_upload_of_clients_that_agreed_to_another_cohort_is_refused_whole_and_unread(
    party: Party, cohort: Cohort
) -> None:
    """Every field counts. An item that is looked at would be listed, and a stored one would start the deadline."""
    tree, fixed = cohort.model_dump(mode="json"), set()
    bodies, before = party.bodies(cohort), [party.get(path).content for path in ("", "/c1/messages")]
    items = [*server.upload(cohort, party.first, bodies).items, Item(slot=99, ticket=b"", body=b"")]
    for path, value in leaves(tree):
        try:
            other = Cohort.model_validate_json(json.dumps(changed(tree, path, another(str(path[-1]), value))))
        except ValidationError:
            fixed.add(path[-1])
            continue
        answer = party.upload(uploaded(party, other.digest(), *items))
        assert problem(answer) == (409, "conflict"), path
        assert answer.json()["detail"] == "the clients agreed to another cohort c1 than the one that is open here"
    assert fixed <= {"version", "kind"}  # with a single legal value
    assert [party.get(path).content for path in ("", "/c1/messages")] == before
    assert party.send(cohort, bodies).json()["accepted"] == 5


def test_a_digest_is_compared_as_soon_as_the_cohort_is_known_and_must_have_its_size(
    party: Party, cohort: Cohort
) -> None:
    for size in (0, 31, 33):
        answer = party.upload(uploaded(party, bytes(size)))
        assert problem(answer) == (422, "bad-message")
        assert answer.json()["detail"] == f"digest: {size} bytes, expected 32"
    other = Upload(cohort="c9", digest=bytes(32), stage=party.first, items=[])
    assert problem(party.upload(other, "c9")) == (404, "wrong-cohort")
    party.release(cohort)
    assert problem(party.upload(uploaded(party, bytes(32)))) == (409, "conflict")


def test_the_digest_of_a_cohort_with_long_terms_is_the_clients_too_also_after_a_restart(party: Party) -> None:
    """The intermediary keeps no such cohort in memory."""
    cohort = party.cohort(terms=json.dumps("ε" * 70_000))
    assert party.open(cohort).status_code == 200
    bodies = party.bodies(cohort)
    for _ in range(2):
        assert party.send(cohort, bodies).json()["accepted"] == 5
        assert problem(party.upload(uploaded(party, bytes(32)))) == (409, "conflict")
        party.restart()


def test_too_few_are_aborted_and_nothing_is_ever_released(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    party.send(cohort, {0: bodies[0], 1: bodies[1]})
    party.clock.advance(SECONDS)
    answer = BatchAnswer.model_validate_json(party.batch().content)
    assert (answer.state, answer.batch) == ("aborted", None)
    assert f"2 clients in stage {party.first}, at least {cohort.minimum} needed" in (answer.reason or "")
    late = party.send(cohort, {2: bodies[2]})
    assert problem(late) == (410, "aborted")
    party.restart()
    assert BatchAnswer.model_validate_json(party.batch().content) == answer


def test_a_late_message_is_refused_and_a_late_repeat_is_not(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    party.send(cohort, {slot: bodies[slot] for slot in range(4)})
    party.clock.advance(SECONDS)
    late = party.send(cohort, {4: bodies[4]})
    assert problem(late) == (409, "wrong-stage")
    assert refused(party.send(cohort, {3: bodies[3], 4: bodies[4]})) == [(4, "wrong-stage", 409)]


def test_clients_that_leave_are_not_waited_for(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    party.send(cohort, {slot: bodies[slot] for slot in range(4)})
    for _ in range(2):
        assert party.leave(cohort, [4]).json() == {"version": 3, "accepted": 1, "refused": []}
    party.rest(cohort)
    answer = BatchAnswer.model_validate_json(party.batch().content)
    assert (answer.state, answer.lost) == ("released", 1)
    seen = Transcript.model_validate_json(party.get("/c1/messages").content).messages
    assert [(one.peer, one.bytes) for one in seen if one.stage == "departed"] == [("client 4", 0)]


def test_no_client_can_send_others_away(party: Party, cohort: Cohort) -> None:
    own = server.leaving(cohort, [0])
    forged = Leaving(cohort="c1", slots=[1], tickets=own.tickets)
    answer = party.client.post(f"/v1/cohorts/{address('c1')}/departures", json=forged.model_dump(mode="json"))
    assert refused(answer) == [(1, "bad-ticket", 403)]


def test_all_clients_leaving_ends_the_cohort_at_once(party: Party, cohort: Cohort) -> None:
    party.leave(cohort, range(5))
    assert BatchAnswer.model_validate_json(party.batch().content).state == "aborted"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_cohort_whose_clients_never_say_a_word_ends_and_nothing_of_it_is_used_later(
    party: Party, cohort: Cohort, *, restarted: bool
) -> None:
    """A fleet may be killed after it took its tickets, or hold them. The cohort waits from its last opening."""
    party.clock.advance(FIRST_SECONDS - 1)
    assert party.batch_now().state == "waiting"
    if restarted:
        party.restart()
        assert party.open(cohort).status_code == 200  # as a restarted server does
        party.clock.advance(FIRST_SECONDS - 1)
        assert party.batch_now().state == "waiting"
    party.clock.advance(1)
    answer = party.batch_now()
    assert (answer.state, answer.batch, answer.lost) == ("aborted", None, 5)
    assert problem(party.send(cohort, party.bodies(cohort))) == (410, "aborted")
    assert party.batch_now() == answer


def test_a_first_message_gives_the_others_a_whole_stage(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    party.clock.advance(FIRST_SECONDS - 1)
    party.send(cohort, {0: bodies[0]})
    party.clock.advance(SECONDS - 1)
    assert party.send(cohort, {slot: bodies[slot] for slot in range(1, 5)}).json()["accepted"] == 4


def test_cohorts_do_not_mix(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    other = party.cohort(name="c2")
    party.open(other)
    party.send(cohort, {0: bodies[0]})
    messages = Transcript.model_validate_json(party.get("/c2/messages").content).messages
    assert not [item for item in messages if item.direction == "in"]
    party.clock.advance(FIRST_SECONDS)
    assert [party.get(f"/{name}/batch").json()["state"] for name in ("c1", "c2")] == ["waiting", "aborted"]


def test_the_openapi_document_names_every_route_and_problem(party: Party) -> None:
    document = party.client.get("/openapi.json").json()
    upload = document["paths"][f"/v1/cohorts/{{run}}/{{cohort}}/{party.path}"]["post"]
    assert upload["requestBody"]["content"]["application/json"]["schema"]["title"] == "Upload"
    assert {"200", "404", "409", "410", "422", "503"} <= upload["responses"].keys()
    transcript = document["paths"]["/v1/cohorts/{run}/{cohort}/messages"]["get"]
    parameters = {one["name"]: one.get("schema", {}) for one in transcript["parameters"]}
    assert set(parameters) == {"run", "cohort", "after", "limit", "each", "client"}
    assert parameters["each"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 1000}
    assert transcript["security"] == [{"inspector": []}]
