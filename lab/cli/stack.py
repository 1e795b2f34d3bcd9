"""Implements `distrust up` and `inspect`: starts the services on loopback; shows each party's messages."""

import asyncio
import json as json_text
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distrust.common.errors import BadParameter
from distrust.common.extras import late
from distrust.common.inputs import MOST_TOKEN, check_address
from distrust.lab.cli.console import JsonOption, examples, out, say, with_options
from distrust.lab.stack.data_dir import DEFAULT, DataDir, write_result
from distrust.lab.stack.stack import BASE_PORT, NAMES, Stack, Urls

if TYPE_CHECKING:
    from distrust.lab.play import run_file
    from distrust.lab.services import outline, transcripts
else:
    outline = late("distrust.lab.services.outline")
    run_file = late("distrust.lab.play.run_file")
    transcripts = late("distrust.lab.services.transcripts")

app = typer.Typer(rich_markup_mode=None, add_completion=False)

LAST_PORT = 65_000  # that may be the first of three

DataOption = Annotated[Path, typer.Option("--data", help="Folder for databases, logs and the operator's token")]


def _port(word: str | int) -> int:
    """Return the first port. Raises BadParameter."""
    port = int(word) if str(word).isascii() and str(word).isdecimal() else -1
    if not 0 <= port <= LAST_PORT:
        raise BadParameter("port-base", word, f"must be a whole number from 0 to {LAST_PORT}")
    return port


PortOption = Annotated[
    int,
    typer.Option(
        "--port-base",
        parser=_port,
        metavar="PORT",
        help=f"First of three ports, up to {LAST_PORT}; 0: free ones",
    ),
]

ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="DISTRUST_SERVER_URL", help="Address of a running server")
]
ShufflerOption = Annotated[
    str | None, typer.Option("--shuffler", envvar="DISTRUST_SHUFFLER_URL", help="Address of a running shuffler")
]
AggregatorOption = Annotated[
    str | None, typer.Option("--aggregator", envvar="DISTRUST_AGGREGATOR_URL", help="Address of a running aggregator")
]
OperatorFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="DISTRUST_OPERATOR_TOKEN_FILE", help="The operator's token for --server"),
]
InspectorFile = Annotated[
    Path | None,
    typer.Option(
        "--inspector-token-file",
        envvar="DISTRUST_INSPECTOR_TOKEN_FILE",
        help="The inspector's token for --shuffler and --aggregator",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedServices:
    """Services that are named on the command line, and the files of the caller's tokens."""

    server: ServerOption = None
    shuffler: ShufflerOption = None
    aggregator: AggregatorOption = None
    token_file: OperatorFile = None
    inspector_file: InspectorFile = None

    @property
    def given(self) -> list[str]:
        """Return the names of the services that have an address."""
        return [name for name in NAMES if getattr(self, name) is not None]

    def urls(self) -> Urls:
        """Return addresses and tokens. Raises BadParameter for what is no address, and for a file without a token."""
        for name in self.given:
            check_address(name, getattr(self, name))
        tokens = _token("token-file", self.token_file), _token("inspector-token-file", self.inspector_file)
        return Urls(self.server or "", self.shuffler or "", self.aggregator or "", *tokens)

    def all_three(self) -> Urls | None:
        """Return addresses and tokens as `urls`; None without an address. Raises BadParameter for only some of them."""
        for name in NAMES:
            if self.given and name not in self.given:
                raise BadParameter(name, None, "--server, --shuffler and --aggregator are given together")
        return self.urls() if self.given else None


LOOK_SECONDS = 0.5
RoundOption = Annotated[int | None, typer.Option("--round", min=1, help="Which round; else the cohort's, or the first")]
CohortOption = Annotated[str | None, typer.Option("--cohort", help="Only this cohort")]
HeldOption = Annotated[
    Path | None,
    typer.Option("--held", metavar="FILE", help="Run file of a simulated run: print as JSON what its clients held"),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Messages shown of each stage")]


@app.command("up", epilog=examples("distrust up", "distrust up --data /srv/distrust --port-base 9000"))
def up_command(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT, json: JsonOption = None) -> None:
    """Start the three services on loopback, until Ctrl-C.

    Their addresses are printed when all three are ready.
    """
    with Stack(DataDir(data), port_base) as stack:
        urls, data_dir = stack.urls, stack.data_dir
        lines = (
            f"dashboard   {urls.server}/",
            f"server      {urls.server}/  (its API: /openapi.json)",
            f"shuffler    {urls.shuffler}/",
            f"aggregator  {urls.aggregator}/",
            f"operator's token in {data_dir.token_file}, the inspector's in {data_dir.inspector_file}",
            f"participation token of fleets in {data_dir.fleet_file}",
            f"logs in {data_dir.path / 'logs'}; Ctrl-C stops",
        )
        addresses = {name: getattr(urls, name) for name in NAMES}
        say({**addresses, **token_files(data_dir), "logs": str(data_dir.path / "logs")}, "\n".join(lines), json)
        sys.stdout.flush()
        while True:
            stack.check()
            time.sleep(LOOK_SECONDS)


def token_files(data_dir: DataDir) -> dict[str, str]:
    """Return where the tokens are; the tokens themselves are not printed."""
    return {
        "operator_token_file": str(data_dir.token_file),
        "inspector_token_file": str(data_dir.inspector_file),
        "participation_token_file": str(data_dir.fleet_file),
    }


@app.command(
    "inspect",
    epilog=examples(
        "distrust inspect first --round 1 --limit 1",
        "distrust inspect first --cohort first.1.0.1 --json -",
        "distrust inspect first --server https://learner.example --aggregator https://sums.example \\",
        "    --shuffler https://mixer.example --token-file operator.token --inspector-token-file inspector.token",
    ),
)
@with_options(NamedServices)
def inspect_command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name")],
    *,
    round_number: RoundOption = None,
    cohort: CohortOption = None,
    limit: LimitOption = 3,
    held: HeldOption = None,
    json: JsonOption = None,
    data: DataOption = DEFAULT,
    services: NamedServices,
) -> None:
    """Print a run's messages side by side, as each party saw them.

    A table below says what each party holds in each stage, and why it cannot know more, or that nothing hides it. That
    of an aborted cohort ends at the stage in which it was aborted, and names those that it did not reach.

    It asks the services at the addresses given, one of them or more; a party that does not show its transcript has no
    column, and the reason stands below. Without an address it asks the services of the data folder. If they do not run,
    it reads their databases as they stand: it starts no service, and writes and locks nothing.

    --data wins over addresses that come from variables.
    """
    wanted = outline.wanted_of(run, round_number, cohort, limit)
    typed = [  # the enumeration of sources has no public name in typer, which has its own copy of click
        name for name in ("data", *NAMES) if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if "data" in typed and len(typed) > 1:
        raise BadParameter("data", str(data), f"leave it out, or --{typed[1]}: a data folder has all addresses")
    where = services.urls() if "data" not in typed and services.given else DataDir(data)
    if held is not None:
        sys.stdout.write(
            json_text.dumps(asyncio.run(transcripts.gather_held(where, wanted, run_file.read(held)))) + "\n"
        )
        return
    party_views = asyncio.run(transcripts.gather(where, wanted))
    if json != "-":
        transcripts.print_party_views(party_views, out)
    if json is not None:
        write_result(
            json_text.dumps(transcripts.described(wanted, party_views), indent=2, ensure_ascii=False) + "\n", json
        )


def _token(option: str, path: Path | None) -> str | None:
    """Return the token in a file, which may be a pipe: another program may print the token."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            token = file.read(MOST_TOKEN + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(option, str(path), f"cannot be read: {error}") from error
    if not token.isprintable() or " " in token or len(token) > MOST_TOKEN:
        why = f"must hold one token of at most {MOST_TOKEN} signs, without spaces and control characters"
        raise BadParameter(option, str(path), why)
    return token
