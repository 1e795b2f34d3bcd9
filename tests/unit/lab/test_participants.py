"""Tests `distrust token`: who may take part, and that no token is ever printed or listed."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.protocol.messages.admission import Participant, ParticipantList, token_id
from distrust.lab.__main__ import app
from distrust.lab.stack.data_dir import DataDir
from distrust.server.runs.admission import Admission, read_participants

ENVIRONMENT = '{"name": "bernoulli", "means": [0.2, 0.8], "seed": 1}'


def run(path: Path, *words: str) -> dict[str, Any]:
    """Return what a command tells, as JSON."""
    done = CliRunner().invoke(app, ["token", *words, "--data", str(path), "--json", "-"])
    assert done.exit_code == 0, done.exception
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def refusal(path: Path, *words: str) -> str:
    error = CliRunner().invoke(app, ["token", *words, "--data", str(path)]).exception
    assert isinstance(error, ProtocolError), error
    assert "\n" not in error.detail
    return error.detail


def listed(path: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in run(path, "list")["participants"]}


def test_a_token_is_in_a_file_for_its_owner_alone_and_its_digest_in_the_list(tmp_path: Path) -> None:
    made = run(tmp_path, "participate", "--name", "some", "--quota", "5", "--expires", "2999-01-31", "--share", "0.25")
    file = Path(made["token_file"])
    token = file.read_text().strip()
    assert (stat.S_IMODE(file.stat().st_mode), len(token) >= 43) == (0o600, True)
    limits = {"quota": 5, "expires": "2999-01-31T00:00:00Z", "share": 0.25, "state": "open"}
    assert listed(tmp_path)["some"] == {"name": "some", "kind": "token", "id": token_id(token), **limits}
    whole = json.dumps(made) + DataDir(tmp_path).participants_file.read_text()
    assert token not in whole
    assert "is in the list already" in refusal(tmp_path, "participate", "--name", "some")
    assert "is there already" in refusal(tmp_path, "participate", "--name", "other", "--out", str(file))
    assert file.read_text().strip() == token


def test_a_revoked_name_stays_in_the_list(tmp_path: Path) -> None:
    run(tmp_path, "participate", "--name", "some")
    assert run(tmp_path, "revoke", "some")["state"] == "revoked"
    assert listed(tmp_path)["some"]["state"] == "revoked"
    assert "is in the list already" in refusal(tmp_path, "participate", "--name", "some")
    assert refusal(tmp_path, "revoke", "none") == "name = 'none': must be the name of a participant: some"


def test_a_device_makes_its_key_and_the_operator_enrolls_the_public_half(tmp_path: Path) -> None:
    file = tmp_path / "device.key"
    done = CliRunner().invoke(app, ["token", "device", str(file), "--json", "-"])
    told = json.loads(done.stdout)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in done.stdout
    assert run(tmp_path, "enroll", told["key"], "--name", "phone")["kind"] == "device"
    assert "is enrolled already, as phone" in refusal(tmp_path, "enroll", str(file), "--name", "again")
    assert "must be 64 hexadecimal digits" in refusal(tmp_path, "enroll", "abc", "--name", "none")
    settings = FleetSettings(environment=ENVIRONMENT, device_key_file=file)
    assert settings.options().block == 1
    key = settings.credential()
    assert not isinstance(key, str | None)
    assert key.public_key().public_bytes_raw().hex() == told["key"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--share", "0"], "share = '0': must be above 0 and at most 1"),
        (["--share", "nan"], "share = 'nan': must be above 0 and at most 1"),
        (["--expires", "2001-01-01"], "must be a time to come"),
        (["--expires", "soon"], "expires = 'soon': must be a date or a time"),
    ],
)
def test_limits_are_checked_before_anything_is_made(tmp_path: Path, words: list[str], line: str) -> None:
    assert line in refusal(tmp_path, "participate", "--name", "some", *words)
    assert list(tmp_path.iterdir()) == []


def test_the_fleets_token_is_made_once_and_anew_without_its_file(tmp_path: Path) -> None:
    run(tmp_path)
    folder = DataDir(tmp_path)
    first = folder.fleet_token()
    run(tmp_path)
    assert folder.fleet_token() == first
    folder.fleet_file.unlink()
    run(tmp_path)
    assert folder.fleet_token() != first
    assert {name: one["id"] for name, one in listed(tmp_path).items()} == {"fleet": token_id(folder.fleet_token())}


def test_no_other_participant_takes_the_name_of_the_folders_fleets_or_loses_its_place_to_them(tmp_path: Path) -> None:
    for words in (("participate", "--name", "fleet"), ("enroll", "ab" * 32, "--name", "fleet")):
        assert "is the name of this folder's own fleets" in refusal(tmp_path, *words)
    assert list(tmp_path.iterdir()) == []
    other = Participant(name="fleet", kind="device", id="ab" * 32)
    file = DataDir(tmp_path).participants_file
    file.write_text(ParticipantList(participants=(other,)).model_dump_json())
    assert "has another participant of the name fleet" in refusal(tmp_path)
    assert [participant.id for participant in read_participants(file).participants] == [other.id]


@pytest.mark.parametrize(
    "text", ["", "{", '{"participants": [{"name": "a"}]}', '{"version": 2, "participants": []}', "[1]"]
)
def test_a_damaged_list_lets_no_server_start_and_is_not_written_over(tmp_path: Path, text: str) -> None:
    file = DataDir(tmp_path).participants_file
    file.write_text(text)
    with pytest.raises(BadParameter, match=r"participants_file = .* must be a list of participants"):
        Admission(lambda: "secret", file)
    assert "is no list of participants" in refusal(tmp_path, "participate", "--name", "some")
    assert file.read_text() == text


def test_a_list_without_an_operators_token_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "participate", "--name", "some")
    file = DataDir(tmp_path).participants_file
    assert [participant.name for participant in read_participants(file).participants] == ["some"]
    with pytest.raises(BadParameter, match="needs DISTRUST_OPERATOR_TOKEN_FILE"):
        Admission(None, file)


def test_a_fleet_takes_a_token_or_a_device(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    files = {"participation_token_file": tmp_path / "token", "device_key_file": tmp_path / "token"}
    assert FleetSettings(environment=ENVIRONMENT).credential() is None
    token = FleetSettings(environment=ENVIRONMENT, participation_token_file=tmp_path / "token")
    assert token.credential() == "secret"
    with pytest.raises(BadParameter, match="one of them"):
        FleetSettings(environment=ENVIRONMENT, **files).credential()  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match="64 hexadecimal digits") as refused:
        FleetSettings(environment=ENVIRONMENT, device_key_file=tmp_path / "token").credential()
    assert "secret" not in str(refused.value)
