"""Tests the exact JSON of what crosses an intermediary. A change here is a new version of the wire."""

import hashlib
import json

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.decisions import AssignedAction
from distrust.common.errors import BadParameter, ProtocolError, TooSmall, Unavailable
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.base import Channel
from distrust.common.protocol.channels.bits import LabelledBits, PermutedBits
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.channels.sealed import Records, Sealed
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes, TicketRequest
from distrust.common.protocol.messages.status import (
    CohortEntry,
    CohortList,
    DeliveryList,
    Inbox,
    StageView,
    Statement,
    StatementList,
    Transcript,
    TranscriptEntry,
)
from distrust.common.protocol.messages.upload import (
    ActionAnswer,
    ActionRequest,
    InboxRequest,
    Item,
    Leaving,
    RefusedItem,
    Upload,
    UploadAnswer,
)
from distrust.common.protocol.web.client import from_document
from distrust.common.protocol.web.problems import render
from distrust.common.wire import Blob, Message


def cohort(channel: Channel) -> Cohort:
    return Cohort(
        run="mslr-1",
        round=2,
        cohort="mslr-1.2.0",
        clients=5,
        minimum=3,
        stage_seconds=1.5,
        run_digest=bytes(range(3)),
        ticket_key=b"\xff\xfe",
        terms="{}",
        channel=channel,
    )


COHORT = (
    '{"version":3,"run":"mslr-1","round":2,"cohort":"mslr-1.2.0","clients":5,"minimum":3,"stage_seconds":1.5,'
    '"run_digest":"AAEC","ticket_key":"__4","channel":%s,"terms":"{}"}'
)
BATCH = '{"version":3,"cohort":"c1","survivors":3,"content":%s,"liars":[],"disputes":0}'

GOLDEN: list[tuple[str, Message, str]] = [
    (
        "a request for tickets",
        TicketRequest(request="0f" * 16, round=2, want=1, keys=b"\xff\xfe"),
        '{"version":3,"request":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","round":2,"want":1,"keys":"__4"}',
    ),
    ("key hashes", KeyHashes(cohort="c1", hashes=b"\xff\xfe"), '{"version":3,"cohort":"c1","hashes":"__4"}'),
    (
        "statements",
        StatementList(cohort="c1", statements=[Statement(stage="confirm", digest=b"\xff\xfe")], over=False),
        '{"version":3,"cohort":"c1","statements":[{"stage":"confirm","digest":"__4"}],"over":false}',
    ),
    (
        "a masked cohort",
        cohort(Masking(modulus=1009, dimension=2, neighbours=4, threshold=3)),
        COHORT % '{"kind":"masked","modulus":1009,"dimension":2,"neighbours":4,"threshold":3}',
    ),
    (
        "a sealed cohort",
        cohort(Sealed(size=8, server_key=b"key")),
        COHORT % '{"kind":"sealed","size":8,"server_key":"a2V5"}',
    ),
    (
        "a cohort of dealt actions",
        cohort(AssignedRecords(size=8, server_key=b"key", deal=AssignedAction(actions=[7, 2], times=[3, 2]))),
        COHORT
        % (
            '{"kind":"dealt","size":8,"server_key":"a2V5","deal":{"actions":[7,2],"times":[3,2],'
            '"kind":"assigned-action"},"noise_seed":null}'
        ),
    ),
    (
        "a request for plays",
        ActionRequest(cohort="c1", slots=[3, 0], tickets=b"\x00\x01", claims=b"\xff\xfe"),
        '{"version":3,"cohort":"c1","slots":[3,0],"tickets":"AAE","claims":"__4"}',
    ),
    (
        "plays",
        ActionAnswer(
            cohort="c1",
            digest=b"\xff",
            slots=[3],
            plays=[4],
            refused=[RefusedItem(slot=0, type="urn:distrust:problem:bad-ticket", status=403, detail="x")],
        ),
        (
            '{"version":3,"cohort":"c1","digest":"_w","slots":[3],"plays":[4],'
            '"refused":[{"slot":0,"type":"urn:distrust:problem:bad-ticket","status":403,"detail":"x"}]}'
        ),
    ),
    (
        "a cohort of labelled bits",
        cohort(LabelledBits(labels=3, width=5)),
        COHORT % '{"kind":"bits","labels":3,"width":5}',
    ),
    (
        "an upload",
        Upload(
            cohort="c1",
            digest=b"\xff\xfe",
            stage="keys",
            items=[Item(slot=0, ticket=b"\x01" * 3, body=b""), Item(slot=7, ticket=b"t", body=b"?")],
        ),
        (
            '{"version":3,"cohort":"c1","digest":"__4","stage":"keys","items":[{"slot":0,"ticket":"AQEB","body":""},'
            '{"slot":7,"ticket":"dA","body":"Pw"}]}'
        ),
    ),
    (
        "an upload's answer",
        UploadAnswer(
            accepted=2, refused=[RefusedItem(slot=3, type="urn:distrust:problem:conflict", status=409, detail="x")]
        ),
        '{"version":3,"accepted":2,"refused":[{"slot":3,"type":"urn:distrust:problem:conflict","status":409,"detail":"x"}]}',
    ),
    (
        "a departure",
        Leaving(cohort="c1", slots=[3, 4], tickets=b"\x00\x01", keys=b"\xff\xfe"),
        '{"version":3,"cohort":"c1","slots":[3,4],"tickets":"AAE","keys":"__4"}',
    ),
    (
        "a request for inboxes",
        InboxRequest(cohort="c1", slots=[3, 0], tickets=b"\x00\x01"),
        '{"version":3,"cohort":"c1","slots":[3,0],"tickets":"AAE"}',
    ),
    (
        "a roster",
        StageView(cohort="c1", stage="shares", members=b"\x17", roster=b"keys"),
        (
            '{"version":3,"cohort":"c1","stage":"shares","members":"Fw","roster":"a2V5cw","challenge":null,'
            '"statement":null,"inboxes":null,"reason":null}'
        ),
    ),
    (
        "inboxes",
        StageView(
            cohort="c1",
            stage="confirm",
            members=b"\x17",
            challenge=b"c",
            statement=b"s",
            inboxes=[Inbox(slot=2, body=b"box")],
        ),
        (
            '{"version":3,"cohort":"c1","stage":"confirm","members":"Fw","roster":null,"challenge":"Yw","statement":"cw",'
            '"inboxes":[{"slot":2,"body":"Ym94"}],"reason":null}'
        ),
    ),
    (
        "an end",
        StageView(cohort="c1", stage="aborted", members=b"", reason="too few"),
        (
            '{"version":3,"cohort":"c1","stage":"aborted","members":"","roster":null,"challenge":null,'
            '"statement":null,"inboxes":null,"reason":"too few"}'
        ),
    ),
    ("a sum", Batch(cohort="c1", survivors=3, content=ModularSum(body=b"\x05")), BATCH % '{"kind":"sum","body":"BQ"}'),
    (
        "records",
        Batch(cohort="c1", survivors=3, content=Records(count=3, body=b"abc", checksum=b"\x00")),
        BATCH % '{"kind":"records","count":3,"body":"YWJj","checksum":"AA"}',
    ),
    (
        "records by action",
        Batch(cohort="c1", survivors=3, content=GroupedRecords(counts=[2, 0, 1], body=b"abc", checksum=b"\x00")),
        BATCH % '{"kind":"grouped","counts":[2,0,1],"body":"YWJj","checksum":"AA"}',
    ),
    (
        "bits",
        Batch(cohort="c1", survivors=3, content=PermutedBits(body=b"\x0f")),
        BATCH % '{"kind":"bits","body":"Dw"}',
    ),
    (
        "a batch that is not ready",
        BatchAnswer(cohort="c1", state="waiting"),
        '{"version":3,"cohort":"c1","state":"waiting","batch":null,"reason":null,"lost":0,"delivery":null}',
    ),
    (
        "a released batch",
        BatchAnswer(
            cohort="c1",
            state="released",
            batch=Batch(cohort="c1", survivors=3, content=ModularSum(body=b"")),
            lost=2,
            delivery=7,
        ),
        '{"version":3,"cohort":"c1","state":"released","batch":'
        + BATCH % '{"kind":"sum","body":""}'
        + ',"reason":null,"lost":2,"delivery":7}',
    ),
    (
        "a listing",
        CohortList(
            cohorts=[
                CohortEntry(
                    cohort="c1", run="r1", run_digest=b"\xff\xfe", round=1, clients=5, stage="report", answered=3
                )
            ]
        ),
        '{"version":3,"cohorts":[{"cohort":"c1","run":"r1","run_digest":"__4","round":1,"clients":5,"stage":"report","answered":3}]}',
    ),
    ("deliveries", DeliveryList(count=3, digests=b"\xff\xfe"), '{"version":3,"count":3,"digests":"__4"}'),
    (
        "a transcript",
        Transcript(
            party="shuffler",
            cohort="c1",
            total=9,
            next=1,
            messages=[
                TranscriptEntry(
                    number=0,
                    direction="in",
                    peer="client 4",
                    stage="report",
                    bytes=2,
                    view={"ones": [1, 0]},
                    hex="beef",
                )
            ],
        ),
        (
            '{"version":3,"party":"shuffler","cohort":"c1","total":9,"next":1,"messages":[{"number":0,"direction":"in",'
            '"peer":"client 4","stage":"report","bytes":2,"view":{"ones":[1,0]},"hex":"beef"}]}'
        ),
    ),
]


@pytest.mark.parametrize(("message", "text"), [pytest.param(m, t, id=name) for name, m, t in GOLDEN])
def test_a_message_is_exactly_these_bytes_both_ways(message: Message, text: str) -> None:
    assert message.model_dump_json() == text
    assert type(message).model_validate_json(text) == message


@pytest.mark.parametrize(("message", "text"), [pytest.param(m, t, id=name) for name, m, t in GOLDEN])
def test_a_field_too_many_or_of_another_type_is_refused(message: Message, text: str) -> None:
    loaded = json.loads(text)
    for broken in (loaded | {"more": 1}, loaded | {"version": 2}, loaded | {"version": "1"}):
        with pytest.raises(ValidationError):
            type(message).model_validate_json(json.dumps(broken))


def test_a_cohorts_digest_is_that_of_its_bytes() -> None:
    assigned = cohort(AssignedRecords(size=8, server_key=b"key", deal=AssignedAction(actions=[7, 2], times=[3, 2])))
    assert assigned.digest() == hashlib.sha256(assigned.model_dump_json().encode()).digest()
    assert assigned.digest().hex() == "cf265055afd24478b2584f970b05541eab348b2aaf140fd1b0f2a7c1a494e7e3"


@pytest.mark.parametrize("text", ["AB", "AA==", "A", "A A", "AA\n", "+/+/", "é"])
def test_a_blob_has_one_spelling_only(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Blob).validate_json(json.dumps(text))


PROBLEMS: list[tuple[ProtocolError, str]] = [
    (
        TooSmall(3, 5),
        (
            '{"got": 3, "need": 5, "type": "urn:distrust:problem:too-small", "title": "too small", "status": 409, '
            '"detail": "3 survivors, at least 5 needed: nothing is released"}'
        ),
    ),
    (
        BadParameter("minimum", 6, "must be at most clients = 5"),
        (
            '{"field": "minimum", "type": "urn:distrust:problem:bad-parameter", "title": "bad parameter", '
            '"status": 422, "detail": "minimum = 6: must be at most clients = 5"}'
        ),
    ),
    (
        Unavailable("disk full"),
        '{"type": "urn:distrust:problem:unavailable", "title": "unavailable", "status": 503, "detail": "disk full"}',
    ),
]


@pytest.mark.parametrize(("error", "text"), [pytest.param(e, t, id=e.code) for e, t in PROBLEMS])
def test_a_problem_document_is_exactly_these_bytes_both_ways(error: ProtocolError, text: str) -> None:
    assert bytes(render(error).body).decode() == text
    back = from_document(text.encode(), error.status)
    assert (type(back), back.detail, back.extra) == (type(error), error.detail, error.extra)


def test_every_error_of_ours_survives_its_problem_document() -> None:
    kinds = ProtocolError.__subclasses__()
    assert len(kinds) >= 12
    for kind in kinds:
        error = kind.__new__(kind)
        ProtocolError.__init__(error, "why", cohort="c1")
        back = from_document(bytes(render(error).body), kind.status)
        assert (type(back), back.detail, back.extra) == (kind, "why", {"cohort": "c1"})


CHOICE = (
    '{"kind":"contextual-choice","theta":[[0.5,-0.25]],"inverse":[[1.0,0.0,2.0]],"beta":1.5,"screen":null,"only":null}'
)
WARM_UP = '{"kind":"contextual-choice","theta":[[0.0],[0.0]],"inverse":null,"beta":0.0,"screen":null,"only":1}'
SUM = (
    '{"kind":"contextual-sum","features":2,"blocks":1,"moments":true,"residual":null,"rewards":[0.0,1.0]}',
    '{"kind":"contextual-sum","features":1,"blocks":2,"moments":false,"residual":"logistic","rewards":[0.0,1.0]}',
)


def test_a_choice_by_context_and_its_statistic_are_these_bytes() -> None:
    rule = ChoiceRule(np.array([[0.5, -0.25]]), np.array([[[1.0, 0.0], [0.0, 2.0]]]), 1.5)
    assert ContextualChoice.of(rule).model_dump_json() == CHOICE
    assert ContextualChoice.of(ChoiceRule(np.zeros((2, 1)), only=1)).model_dump_json() == WARM_UP
    statistics = (
        ContextualSum(features=2),
        ContextualSum(features=1, blocks=2, moments=False, residual="logistic"),
    )
    assert tuple(one.model_dump_json() for one in statistics) == SUM
    for text in (CHOICE, WARM_UP):
        assert ContextualChoice.model_validate_json(text).model_dump_json() == text
