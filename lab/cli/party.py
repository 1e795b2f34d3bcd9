"""Implements `distrust serve`, `fleet` and `health`: starts one party here, or asks a service whether it is ready.

Containers call these often, so that the module imports nothing heavy.
"""

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from enum import StrEnum
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import typer
from typer.core import TyperCommand

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.extras import late
from distrust.common.inputs import NO_ADDRESS, NO_VALUE, flags_of, option, without_passwords
from distrust.common.protocol.web.tls import SPEAKS_TLS, caller_context, speaks_tls, tls_fault
from distrust.lab.cli.console import JsonOption, examples, no_option, out, say
from distrust.lab.stack.data_dir import check_target

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from distrust.client.fleet import settings
    from distrust.common.protocol.web import proxy, serve
else:
    proxy = late("distrust.common.protocol.web.proxy")
    serve = late("distrust.common.protocol.web.serve")
    settings = late("distrust.client.fleet.settings")

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TIMEOUT_SECONDS = 5.0  # for the answer to `distrust health`; a slower service counts as down
MOST_SHOWN = 2000  # bytes of an answer


class ServiceName(StrEnum):
    """Names of the services."""

    SERVER = "server"
    SHUFFLER = "shuffler"
    AGGREGATOR = "aggregator"


@app.command(
    "serve",
    epilog=examples(
        "distrust serve server",
        "DISTRUST_PORT=9001 distrust serve shuffler",
        "DISTRUST_PROXY_CERTIFICATE=mixer.pem distrust serve shuffler --proxy-config",
    ),
)
def serve_command(
    party: Annotated[ServiceName, typer.Argument(help="Which service")],
    *,
    proxy_config: Annotated[
        bool, typer.Option("--proxy-config", help="Print haproxy.cfg for a proxy in front of it, and start nothing")
    ] = False,
    target: Annotated[Path | None, typer.Option("--out", help="Write haproxy.cfg to this file instead")] = None,
) -> None:
    """Run one service, configured by DISTRUST_… variables."""
    if proxy_config:
        raise typer.Exit(_write_proxy_config(party, target))
    if target is not None:
        raise BadParameter("out", str(target), "goes with --proxy-config")
    # -P keeps the working folder off the path: what lies there is not run in our place.
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"distrust.{party.value}"])  # noqa: S606 - our own module, no shell


def _write_proxy_config(party: ServiceName, target: Path | None) -> int:
    """Print haproxy.cfg for a service with these variables, or write it to a file that any user may read."""

    def write(settings: Any) -> int:
        text = proxy.haproxy_config(settings)
        if target is None:
            sys.stdout.write(text)
            return 0
        check_target(target, "out")
        target.write_text(text, "utf-8")
        target.chmod(0o644)
        return 0

    module = importlib.import_module(f"distrust.{party.value}.app")
    return serve.with_settings(getattr(module, f"{party.value.capitalize()}Settings"), write)


class FleetCommand(TyperCommand):
    """`distrust fleet`, whose options are the settings of a fleet. The process that it becomes reads them."""

    def format_options(self, _context: object, formatter: Any) -> None:
        """Write the options."""
        with formatter.section("Options"):
            formatter.write_dl([*_fleet_options(), ("-h, --help", "Show this message and exit.")])


@app.command(
    "fleet",
    cls=FleetCommand,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog=examples(
        "distrust fleet --environment first.toml --run first",
        "DISTRUST_SERVER_URL=https://learner.example distrust fleet --environment world.toml",
    ),
)
def fleet_command(context: typer.Context) -> None:
    """Play clients in one process.

    Each option may also be a variable: --run is DISTRUST_RUN. The addresses are DISTRUST_SERVER_URL,
    DISTRUST_SHUFFLER_URL and DISTRUST_AGGREGATOR_URL, and --json is DISTRUST_REPORT.
    """
    if {"-h", "--help"} & set(context.args):
        out.print(context.get_help(), markup=False)
        return
    words = _checked_words(context)
    # -P keeps the working folder off the path: what lies there is not run in our place.
    command = [sys.executable, "-P", "-m", "distrust.client", *words]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, no shell


def _checked_words(context: typer.Context) -> list[str]:
    """Return the options, each in one word with its value.

    Refuse what is no option of a fleet, and a file that cannot be written, as the other commands do.
    """
    flags = {
        flag: field.annotation is bool
        for name, field in settings.FleetSettings.model_fields.items()
        for flag in flags_of(name)
    }
    flags |= {flag.replace("--", "--no-", 1): True for flag, switch in flags.items() if switch}
    words, checked = iter(context.args), []
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in flags:
            if not word.startswith("-"):
                context.fail(f"Got unexpected extra argument ({word})")
            raise no_option("distrust fleet", flag, flags)
        if flags[flag]:
            if equals:
                raise BadParameter(flag, value, "takes no value")
            checked.append(flag)
            continue
        given = value if equals else next(words, None)
        if given is None:
            raise BadParameter(flag, "", NO_VALUE)
        if flag in flags_of("report") and given != "-":
            check_target(Path(given), flag.removeprefix("--"))
        checked.append(f"{flag}={given}")
    return checked


def _fleet_options() -> Iterator[tuple[str, str]]:
    """Yield option with type, and meaning, of each setting of a fleet."""
    for name, field in settings.FleetSettings.model_fields.items():
        switch = field.annotation is bool
        facts = [] if switch or field.default in (None, "") or field.is_required() else [f"default: {field.default}"]
        facts += ["required"] if field.is_required() else filter(None, [_range(field.metadata)])
        meaning, shown = field.description or "", f"  [{'; '.join(facts)}]" if facts else ""
        words = option(name) if switch else f"{option(name)} {'FILE' if option(name) == '--json' else _type(field)}"
        yield words, f"{meaning[:1].upper()}{meaning[1:]}{shown}"


def _type(field: "FieldInfo") -> str:
    """Return the type of a setting's values, as the other commands show it; of one of a few words, the words."""
    if get_origin(field.annotation) is Literal:
        return f"<{'|'.join(get_args(field.annotation))}>"
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    return f"<{kinds[0].__name__.lower()}{' range' if _range(field.metadata) else ''}>"


def _range(limits: Iterable[Any]) -> str:
    """Return the range of a setting's numbers, such as 1<=x<=4096 or x>=1; empty for one without limits."""
    ends = {name: getattr(limit, name) for limit in limits for name in ("ge", "gt", "le", "lt") if hasattr(limit, name)}
    high = "".join(f"{sign}{ends[name]}" for name, sign in (("le", "<="), ("lt", "<")) if name in ends)
    if high:
        return "".join(f"{ends[name]}{sign}" for name, sign in (("ge", "<="), ("gt", "<")) if name in ends) + f"x{high}"
    return "".join(f"x{sign}{ends[name]}" for name, sign in (("ge", ">="), ("gt", ">")) if name in ends)


@app.command("health", epilog=examples("distrust health http://127.0.0.1:8701 --json -"))
def health_command(
    url: Annotated[str, typer.Argument(help="Address of a service, such as http://127.0.0.1:8701")],
    *,
    json: JsonOption = None,
) -> None:
    """Ask a service whether it is ready.

    Exits 0 when it is. For any other answer, and for none, it prints no fact, says why on stderr and exits 75.
    """
    try:
        # The standard library's client: aiohttp takes longer to import than the whole answer takes.
        address = urlsplit(url)
        host, port = address.hostname or "", address.port
        connection = {"http": HTTPConnection, "https": _https}[address.scheme](host, port, timeout=TIMEOUT_SECONDS)
    except (KeyError, ValueError) as error:
        raise BadParameter("url", without_passwords(url), NO_ADDRESS) from error
    answers: list[tuple[int, str] | Exception] = []
    # A thread, which ends with this process: the connection's own time limit begins again with each byte.
    path = f"{address.path.rstrip('/')}/readyz"
    asking = threading.Thread(target=_ask, args=(connection, path, answers), daemon=True)
    asking.start()
    asking.join(TIMEOUT_SECONDS)
    answer = answers[0] if answers else TimeoutError(f"no whole answer in {TIMEOUT_SECONDS:g} seconds")
    if isinstance(answer, OSError | HTTPException):
        closed = address.scheme == "http" and isinstance(answer, ConnectionError) and port is not None
        mistaken = SPEAKS_TLS if closed and speaks_tls(host, port or 0) else None
        raise Unavailable(f"{without_passwords(url)}: {tls_fault(answer) or mistaken or answer}") from answer
    if isinstance(answer, Exception):
        raise answer
    status, body = answer
    if status != 200:
        raise Unavailable(f"{without_passwords(url)}: {body}")
    say({"url": without_passwords(url), "ready": True}, "ready", json)


def _https(host: str, port: int | None, timeout: float) -> HTTPConnection:
    return HTTPSConnection(host, port, timeout=timeout, context=caller_context())


def _ask(connection: HTTPConnection, path: str, answers: list[tuple[int, str] | Exception]) -> None:
    """Add a service's answer, its status and the beginning of its body, or what prevents one."""
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answers.append((answer.status, answer.read(MOST_SHOWN).decode("utf-8", errors="replace")))
    except Exception as error:  # noqa: BLE001  the thread that waits raises it
        answers.append(error)
    finally:
        connection.close()
