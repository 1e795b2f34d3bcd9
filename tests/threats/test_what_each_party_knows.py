"""Tests the table "What each party knows" of parties.md, on all that real services sent and stored."""

import hashlib
import json
from collections.abc import Iterator

import numpy as np
import pytest

from distrust.common.modular import pack, sum_rows, unpack
from distrust.common.protocol.channels.bits import LabelledBits, PermutedBits
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.channels.sealed import REPORT_ID, Records
from distrust.common.protocol.messages.admission import token_id
from distrust.common.protocol.messages.upload import Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.common.wire import decode_blob, encode_blob
from tests.support.recording import PARTICIPATION, PARTIES, SEED, RecordedRun, Recording, keys, record_run

MECHANISMS = {
    "masked": {"name": "distributed-polya", "epsilon": 2.0, "precision": 1000},
    "sealed": {"name": "local-laplace-discrete", "epsilon": 2.0, "precision": 1000, "via": "shuffler"},
    "bits": {"name": "shuffled-binomial", "epsilon": 2.0, "delta": 1e-3, "precision": 40},
}
CLIENTS = 16


def config(run: str) -> RunConfig:
    """Return a run of one round of two cohorts, whose clients leave at every stage."""
    whole = {"run": run, "arms": 2, "horizon": 2 * CLIENTS, "policy": {"first_batch": 4}, "mechanism": MECHANISMS[run]}
    return RunConfig.model_validate({**whole, "intermediary": {"dropout": 0.3, "corrupt": 0.1}})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRun]:
    with pytest.MonkeyPatch.context() as tap:
        yield record_run(tmp_path_factory.mktemp("parties"), [config(run) for run in MECHANISMS], 0.2, tap)


@pytest.fixture(scope="module")
def recordings(recorded: RecordedRun) -> dict[str, Recording]:
    return {party: Recording.of(recorded, party) for party in PARTIES}


def test_the_runs_were_real(recorded: RecordedRun, recordings: dict[str, Recording]) -> None:
    """Every cohort was released with clients lost, and the search finds values that are in the recordings."""
    for run in MECHANISMS:
        assert [recorded.batch(cohort.cohort).state for cohort in recorded.cohorts(run)] == ["released"] * 2
        assert all(recorded.batch(cohort.cohort).lost > 0 for cohort in recorded.cohorts(run))
    masked, sealed = recorded.cohorts("masked")[0], recorded.cohorts("sealed")[0]
    assert all(recordings["aggregator"].holds(body) for body in recorded.bodies("aggregator", masked, "keys").values())
    assert all(recordings["shuffler"].holds(body) for body in recorded.bodies("shuffler", sealed, "report").values())
    content = recorded.batch(sealed.cohort).batch
    assert content is not None
    assert recordings["server"].holds(content.content.body)


# Column "reward" and column "arms' means": only the clients.


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_a_reward(recorded: RecordedRun, recordings: dict[str, Recording], party: str) -> None:
    rewards = {float(reward) for row in recorded.truth.rewards.values() for reward in row if 0 < reward < 1}
    assert len(rewards) > 3 * CLIENTS
    assert not [reward for reward in rewards if recordings[party].holds_number(reward)]


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_the_environments_means_or_seed(
    recorded: RecordedRun, recordings: dict[str, Recording], party: str
) -> None:
    assert not any(recordings[party].holds_number(float(mean)) for mean in recorded.environment.means)
    forms = (str(SEED).encode(), SEED.to_bytes(8), SEED.to_bytes(8, "little"))
    assert not any(recordings[party].holds(form) for form in forms)


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_a_clients_seed_or_private_key(
    recorded: RecordedRun, recordings: dict[str, Recording], party: str
) -> None:
    """The aggregator rebuilds lost clients' mask seeds in memory, and never writes them."""
    assert len(recorded.truth.secrets) > 6 * CLIENTS
    assert not [secret for secret in recorded.truth.secrets if recordings[party].holds(secret)]


# The client.


def test_clients_are_told_rounds_tickets_and_stages_and_never_a_sum(recorded: RecordedRun) -> None:
    stages = {"keys", "shares", "confirm", "masked", "unmask", "reports"}
    paths = {"config", "round", "tickets", "terms", "stage", "statements", "departures"} | stages
    exchanges = [exchange for exchange in recorded.exchanges if exchange.caller.startswith("fleet")]
    assert {one.url.path.rpartition("/")[2] for one in exchanges} <= paths
    answered = set().union(*(keys(json.loads(one.answer)) for one in exchanges))
    assert not answered & {"sum", "estimate", "mean", "lower", "upper", "batch", "survivors"}
    shown = [one for one in exchanges if "authorization" in {name.lower() for name in one.headers}]
    assert {(one.callee, one.url.path.rpartition("/")[2]) for one in shown} == {("server", "tickets")}


def test_no_request_to_an_intermediary_carries_a_participation_token_and_nobody_stores_one(
    recorded: RecordedRun,
) -> None:
    """An intermediary learns neither token nor name of who takes part."""
    to_intermediaries = [exchange for exchange in recorded.exchanges if exchange.callee != "server"]
    assert {one.callee for one in to_intermediaries} == {"shuffler", "aggregator"}
    for one in to_intermediaries:
        whole = str(one.url) + "".join(one.headers.values()) + one.body.decode("latin-1")
        assert PARTICIPATION not in whole
        assert token_id(PARTICIPATION) not in whole
    for path in recorded.databases.values():
        assert PARTICIPATION.encode() not in path.read_bytes()


# The shuffler.


def test_the_shuffler_holds_no_plaintext_of_a_sealed_record_and_no_key_to_it(
    recorded: RecordedRun, recordings: dict[str, Recording]
) -> None:
    """A report is its id in clear and a ciphertext. The payload never follows the id."""
    seals = [one.seal.private_bytes_raw() for one in recorded.keys.values()]
    assert seals
    assert not [key for key in seals if recordings["shuffler"].holds(key)]
    reports = [
        body for one in recorded.cohorts("sealed") for body in recorded.bodies("shuffler", one, "report").values()
    ]
    heads, payloads = [body[:REPORT_ID] for body in reports], recorded.truth.payloads
    assert not recordings["shuffler"].reads(heads, payloads)
    assert Recording([head + min(payloads) for head in heads]).reads(heads, payloads)


def test_the_shuffler_knows_who_sent_labelled_bits_and_reads_them(recorded: RecordedRun) -> None:
    """The trusted-shuffler model: only here an intermediary sees clear messages. The guarantee's assumptions say so."""
    for cohort in recorded.cohorts("bits"):
        for slot, body in recorded.bodies("shuffler", cohort, "report").items():
            ones = int.from_bytes(body).bit_count()
            assert ones == int(recorded.truth.rows[cohort.cohort][slot][0])
    assert "trusted with labelled bits" in " ".join(recorded.views["bits"].snapshot.guarantee.assumptions)


# The aggregator.


def test_the_aggregators_masked_inputs_are_not_the_inputs(recorded: RecordedRun) -> None:
    """By chance four of about 25 values below m > 16,000 agree with probability below 1e-12."""
    for cohort in recorded.cohorts("masked"):
        assert isinstance(cohort.channel, Masking)
        m, rows = cohort.channel.modulus, recorded.truth.rows[cohort.cohort]
        result = {slot: unpack(body, m, 1) for slot, body in recorded.bodies("aggregator", cohort, "masked").items()}
        assert len(result) >= cohort.minimum
        assert m > 16_000
        assert sum(bool((result[slot] == rows[slot]).all()) for slot in result) < 4


def test_the_aggregators_sum_is_the_survivors_noised_sum_modulo_m(recorded: RecordedRun) -> None:
    for cohort in recorded.cohorts("masked"):
        assert isinstance(cohort.channel, Masking)
        m, rows = cohort.channel.modulus, recorded.truth.rows[cohort.cohort]
        survivors = recorded.bodies("aggregator", cohort, "masked")
        summed = sum_rows(np.stack([rows[slot] for slot in survivors]), m)
        result = recorded.batch(cohort.cohort).batch
        assert result is not None
        assert result.content == ModularSum(body=pack(summed, m))


# The server.


def test_the_server_is_told_by_clients_which_round_and_how_many_and_nothing_else(recorded: RecordedRun) -> None:
    sent = recorded.between("fleet", "server")
    assert {one.url.path.rpartition("/")[2] for one in sent} == {"config", "round", "tickets", "keys", "statements"}
    assert set().union(*(set(one.url.params) for one in sent)) <= {"after", "wait"}
    requests = [json.loads(one.body) for one in sent if one.body]
    assert requests
    assert all(set(request) == {"version", "request", "round", "want", "keys"} for request in requests)


def test_intermediaries_tell_the_server_a_count_and_a_mixture_and_no_slot_ticket_or_order(
    recorded: RecordedRun,
) -> None:
    sent = [one for party in ("shuffler", "aggregator") for one in recorded.between("server", party)]
    lists = [one for one in sent if one.method == "GET" and one.url.path.endswith("/delivered")]
    for one in lists:  # where two batches end together: digests of cohorts, in the order of their release
        assert set(json.loads(one.answer)) <= {"version", "count", "digests"}
    told = [one for one in sent if one.method == "POST" and one.url.path.endswith("/settled")]
    for one in told:  # the server names cohorts that are over, and is answered with the same
        assert json.loads(one.answer) == json.loads(one.body)
    sent = [one for one in sent if one not in [*lists, *told]]
    assert {(one.method, one.url.path.count("/")) for one in sent} == {("PUT", 4), ("GET", 5)}
    collected = [one for one in sent if one.method == "GET"]
    assert {one.url.path.rpartition("/")[2] for one in collected} == {"batch", "statements"}
    names = set().union(*(keys(json.loads(one.answer)) for one in collected))
    answer = {"version", "cohort", "state", "batch", "reason", "lost", "delivery"}
    report = {"liars", "disputes", "statements", "stage", "digest", "over"}  # slots of liars only; here there are none
    assert names <= answer | report | {"survivors", "content", "kind", "body", "count", "checksum"}
    batches = [json.loads(one.answer)["batch"] for one in collected if one.url.path.endswith("/batch")]
    assert all(batch["liars"] == [] for batch in batches if batch)


def test_the_server_never_meets_a_message_as_a_client_sent_it(
    recorded: RecordedRun, recordings: dict[str, Recording]
) -> None:
    """The server gets no keys, shares or report ids. Masked inputs and bits are too short: they may agree by chance."""
    sent = [*recorded.between("fleet", "shuffler"), *recorded.between("fleet", "aggregator")]
    sent = [one for one in sent if one.method == "POST" and not one.url.path.endswith(("/departures", "/stage"))]
    items = [item.body for one in sent for item in Upload.model_validate_json(one.body).items]
    long = [body for body in items if len(body) > REPORT_ID]
    assert len(long) > 4 * CLIENTS
    assert not [body for body in long if recordings["server"].holds(body[:REPORT_ID])]


def test_sealed_records_reach_the_server_in_an_order_that_tells_nothing(recorded: RecordedRun) -> None:
    """The order is neither that of slots nor of arrival: 11 records or more agree with one by chance below 1e-7."""
    for cohort in recorded.cohorts("sealed"):
        result = recorded.batch(cohort.cohort).batch
        assert result is not None
        assert isinstance(result.content, Records)
        size = len(result.content.body) // result.content.count
        released = [result.content.body[at : at + size] for at in range(0, len(result.content.body), size)]
        arrived = {slot: body[REPORT_ID:] for slot, body in recorded.bodies("shuffler", cohort, "report").items()}
        assert sorted(released) == sorted(arrived.values())
        assert released != list(arrived.values())
        assert released != [arrived[slot] for slot in sorted(arrived)]
        mixed = np.bitwise_xor.reduce([list(hashlib.sha256(one).digest()) for one in arrived.values()])
        assert result.content.checksum == bytes(mixed.tolist())


def test_labelled_bits_reach_the_server_as_one_heap(recorded: RecordedRun) -> None:
    """All ones arrive, and no client's message of ones and then zeros is left in the batch: false alarm below 1e-9."""
    for cohort in recorded.cohorts("bits"):
        result = recorded.batch(cohort.cohort).batch
        assert result is not None
        assert isinstance(result.content, PermutedBits)
        assert isinstance(cohort.channel, LabelledBits)
        assert cohort.channel.width > 48
        sent = recorded.bodies("shuffler", cohort, "report")
        ones = sum(int.from_bytes(body).bit_count() for body in sent.values())
        assert int.from_bytes(result.content.body).bit_count() == ones
        assert not any(body in result.content.body for body in sent.values())


def test_a_record_that_the_server_opens_is_noised(recorded: RecordedRun) -> None:
    """Noise of scale 500 on a grid of 1000: five of 26 values are within one step of the truth with 2e-8 at most."""
    for cohort in recorded.cohorts("sealed"):
        rewards, rows = recorded.truth.rewards[cohort.cohort], recorded.truth.rows[cohort.cohort]
        bare = [slot for slot, row in rows.items() if abs(int(row[0]) - 1000 * rewards[slot]) <= 1]
        assert len(bare) < 5 < len(rows)


# All parties.


@pytest.mark.parametrize("party", PARTIES)
def test_no_ticket_is_ever_shown_by_a_transcript(recorded: RecordedRun, party: str) -> None:
    """With a ticket a reader of a transcript could send messages for a client while the cohort is open."""
    grants = [
        grant for one in recorded.between("fleet", "server") for grant in json.loads(one.answer).get("grants", [])
    ]
    raw = b"".join(_blob(grant["signatures"]) for grant in grants)
    tickets = [raw[at : at + 64] for at in range(0, len(raw), 64)]
    assert len(tickets) == 6 * CLIENTS
    shown = recorded.transcripts[party]
    assert shown.count(b'"direction":"in"') > 2
    assert not [one for one in tickets if one[:8].hex().encode() in shown or encode_blob(one[:9]).encode() in shown]


def _blob(text: str) -> bytes:
    raw = decode_blob(text)
    assert isinstance(raw, bytes)
    return raw
