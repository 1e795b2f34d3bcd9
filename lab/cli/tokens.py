"""Implements `distrust token`: makes the services' tokens, and says who may take part."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from distrust.common.errors import BadParameter
from distrust.common.protocol.messages.admission import USUAL_SHARE, Participant, read_device_key
from distrust.lab.cli.console import JsonOption, examples, say
from distrust.lab.cli.stack import DataOption, token_files
from distrust.lab.stack.data_dir import DEFAULT, DataDir, write_secret
from distrust.lab.stack.participants import Participants, check_participant
from distrust.lab.stack.stack import make_tokens

app = typer.Typer(rich_markup_mode=None, add_completion=False)

tokens = typer.Typer(
    epilog=examples(
        "distrust token --data secret",
        "distrust token participate --name hospital --share 0.1 --quota 50000 --expires 2027-01-31",
        "distrust token device device.key",
        "distrust token enroll device.key --name phone-17",
        "distrust token revoke hospital",
    ),
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(tokens, name="token")

NO_ID = "0" * 64  # until a token gives its own


def _moment(text: str | datetime) -> datetime:
    """Return when a participant expires. Raises BadParameter for a text that is no time to come."""
    try:
        moment = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except ValueError as error:
        raise BadParameter("expires", text, "must be a date or a time, such as 2027-01-31T12:00") from error
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment <= datetime.now(UTC):
        raise BadParameter("expires", str(text), "must be a time to come")
    return moment


def _share(text: str | float) -> float:
    """Return a share of a cohort. Raises BadParameter."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise BadParameter("share", text, "must be above 0 and at most 1")
    return share


NameOption = Annotated[str, typer.Option("--name", help="Its name in the list")]
QuotaOption = Annotated[int | None, typer.Option("--quota", min=1, max=10**12, help="Slots that it gets in all")]
ExpiresOption = Annotated[
    datetime | None,
    typer.Option("--expires", parser=_moment, metavar="TIME", help="When it ends; UTC where no offset is given"),
]


@tokens.callback()
def token_command(context: typer.Context, data: DataOption = DEFAULT, json: JsonOption = None) -> None:
    """Make the tokens of operator, inspector and participants.

    Without a command: the operator's and the inspector's token, and the participation token of this folder's fleets,
    once. The commands say who else may take part. A server reads their list again when it changes.
    """
    if context.invoked_subcommand is not None:
        for name, value in (("data", data), ("json", json)):
            if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
                raise BadParameter(name, str(value), f"give it behind {context.invoked_subcommand}")
        return
    data_dir = DataDir(data)
    data_dir.make()
    make_tokens(data_dir)
    files = token_files(data_dir)
    say(files, "\n".join(files.values()), json)


def _folder(data: Path, name: str) -> DataDir:
    """Return the folder of the list that a participant comes into, made if it is missing. Raises BadParameter."""
    check_participant(name)
    data_dir = DataDir(data)
    data_dir.make()
    return data_dir


@tokens.command(epilog=examples("distrust token participate --name hospital --share 0.1 --quota 50000"))
def participate(
    *,
    name: NameOption,
    quota: QuotaOption = None,
    expires: ExpiresOption = None,
    share: Annotated[
        float,
        typer.Option(
            "--share",
            parser=_share,
            metavar="C",
            help="Largest share of one cohort, within the run's corrupt; at least 1 slot",
        ),
    ] = USUAL_SHARE,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="New file for the token; else participants/NAME.token in the folder")
    ] = None,
    data: DataOption = DEFAULT,
    json: JsonOption = None,
) -> None:
    """Make a participation token: fleets with it get slots. The list keeps its SHA-256 alone."""
    data_dir = _folder(data, name)
    file = out_file or data_dir.path / "participants" / f"{name}.token"
    wanted = Participant(name=name, kind="token", id=NO_ID, quota=quota, expires=expires, share=share)
    made = Participants(data_dir).new_token(wanted, file)
    say({**_facts(made), "token_file": str(file)}, str(file), json)


@tokens.command(epilog=examples("distrust token device device.key"))
def device(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the device's private key")],
    *,
    json: JsonOption = None,
) -> None:
    """Make a device's key. The file stays on the device; the operator enrolls the public key that is printed."""
    key = Ed25519PrivateKey.generate()
    write_secret(file, key.private_bytes_raw().hex(), "FILE")
    public = key.public_key().public_bytes_raw().hex()
    say({"device_key_file": str(file), "key": public}, public, json)


@tokens.command(epilog=examples("distrust token enroll device.key --name phone-17"))
def enroll(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Public key, 64 hexadecimal digits; or the file of the private key")
    ],
    *,
    name: NameOption,
    quota: QuotaOption = None,
    expires: ExpiresOption = None,
    data: DataOption = DEFAULT,
    json: JsonOption = None,
) -> None:
    """Enroll a device: it gets one slot of a cohort, however often it asks."""
    data_dir = _folder(data, name)
    wanted = Participant(name=name, kind="device", id=_public_key(key), quota=quota, expires=expires)
    made = Participants(data_dir).enroll(wanted)
    say(_facts(made), f"{made.name} {made.id}", json)


@tokens.command(epilog=examples("distrust token revoke hospital"))
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a token or a device")],
    *,
    data: DataOption = DEFAULT,
    json: JsonOption = None,
) -> None:
    """Revoke a token or a device for good. It gets no slots from its next request on."""
    say(_facts(Participants(DataDir(data)).revoke(name)), f"{name} is revoked", json)


@tokens.command("list", epilog=examples("distrust token list --json -"))
def list_participants(*, data: DataOption = DEFAULT, json: JsonOption = None) -> None:
    """List who may take part, and with which limits."""
    known = [_facts(participant) for participant in Participants(DataDir(data)).all()]
    lines = [" ".join(f"{word}={value}" for word, value in facts.items() if value is not None) for facts in known]
    say({"participants": known}, "\n".join(lines) or "no participants", json)


def _facts(one: Participant) -> dict[str, Any]:
    """Return what the list says of a participant, and whether it gets slots now, as JSON has it."""
    # No share of a cohort limits a device, which gets one slot, and the operator's own fleets, which get all.
    unlimited = one.kind != "token" or one.own
    facts = one.model_dump(mode="json", exclude={"revoked", "share"} if unlimited else {"revoked"})
    return {**facts, "state": one.state(datetime.now(UTC))}


def _public_key(text: str) -> str:
    """Return a public key in hexadecimal digits: typed, or of a file of `distrust token device`."""
    if re.fullmatch("[0-9a-f]{64}", text.lower()):
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
        return text.lower()
    if not Path(text).is_file():
        raise BadParameter("KEY", text, "must be 64 hexadecimal digits, or a file with a device's key")
    return read_device_key("KEY", Path(text)).public_key().public_bytes_raw().hex()
