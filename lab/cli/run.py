"""Implements `distrust run` and `demo`: plays a run over services, or in this process."""

import asyncio
import shutil
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.errors import BadParameter, RunFailed
from distrust.common.wire import check_name
from distrust.lab.cli.console import JsonOption, err, examples, out, with_options
from distrust.lab.cli.stack import DataOption, NamedServices, PortOption
from distrust.lab.play import in_process
from distrust.lab.play.progress import Progress, print_result
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, read
from distrust.lab.services.connection import check_clients, elsewhere
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.services.over_http import HttpRun
from distrust.lab.stack.data_dir import DEFAULT, DataDir, write_result
from distrust.lab.stack.stack import BASE_PORT, Stack, Urls, running_stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

InProcess = Annotated[bool, typer.Option("--in-process", help="No sockets: everything in this process")]
Name = Annotated[str | None, typer.Option("--name", help="Another name for the run than the file's")]
NoFleet = Annotated[bool, typer.Option("--no-fleet", help="Other fleets play; only create the run and watch")]
PostRegret = Annotated[bool, typer.Option("--post-regret", help="Show the server's pages the run's regret")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices(NamedServices):
    """Services that play a run: they are named by options alone, and by no variable."""

    server: Annotated[str | None, typer.Option("--server", help="Address of a running server")] = None
    shuffler: Annotated[str | None, typer.Option("--shuffler", help="Address of a running shuffler")] = None
    aggregator: Annotated[str | None, typer.Option("--aggregator", help="Address of a running aggregator")] = None
    token_file: Annotated[Path | None, typer.Option("--token-file", help="The operator's token for --server")] = None


@app.command(
    "run", epilog=examples("distrust run first.toml", "distrust run first.toml --in-process --json result.json")
)
@with_options(RunServices, "inspector_file")
def run_command(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file")],
    *,
    in_process: InProcess = False,
    json: JsonOption = None,
    name: Name = None,
    data: DataOption = DEFAULT,
    port_base: PortOption = BASE_PORT,
    services: RunServices,
    no_fleet: NoFleet = False,
    post_regret: PostRegret = False,
) -> None:
    """Play a run to its end.

    Over services that it starts on loopback, over those that run already, or in this process. Exits 0 when the run
    finished, 1 when it failed or was cancelled (the reason is on stderr), 2 for bad input, 75 for a service that is not
    there.

    --post-regret tells the server the regret of simulated clients, which it cannot know, and so about their true means.
    """
    for option, given in {**asdict(services), "no_fleet": no_fleet, "post_regret": post_regret}.items():
        if in_process and given:
            value, why = str(given) if isinstance(given, Path) else given, "--in-process plays without any"
            raise BadParameter(option.replace("_", "-"), value, f"it is for services, and {why}: leave one out")
    urls = services.all_three()
    if name is not None:
        check_name("name", name)
    with one_thread():
        run_file = read(file) if name is None else read(file).renamed(name)
    if in_process:
        result = here(run_file)
    elif urls is not None:
        result = there(run_file, urls, DataDir(data), fleet=not no_fleet, post_regret=post_regret)
    else:
        result = on_own_stack(run_file, DataDir(data), port_base, fleet=not no_fleet, post_regret=post_regret)
    deliver(result, json)


def here(file: RunFile) -> Result:
    """Play the run in this process and return its result."""
    with one_thread():
        return in_process.run(file)


def there(file: RunFile, urls: Urls, data_dir: DataDir, *, fleet: bool = True, post_regret: bool = False) -> Result:
    """Play the run over services that run already, and return its result; the fleets' logs go below `data_dir`.

    fleet        whether fleets of ours play; else fleets that are started elsewhere.
    post_regret  as in `HttpRun`.
    Raises       BadParameter for a round that clients of ours would refuse, or for a world that other fleets cannot
                 know, because its seed was drawn here.
    """
    check_players(file, fleet=fleet)
    data_dir.make()
    fleets = Fleets(file, urls, data_dir.path / "logs", data_dir.memory_file) if fleet else None
    return asyncio.run(HttpRun(file, urls, fleets, Progress(err), post_regret=post_regret).run())


def check_players(file: RunFile, *, fleet: bool) -> None:
    """Raise BadParameter where our fleets would refuse the run, or where those elsewhere cannot know its world."""
    if fleet:
        check_clients(file)
    else:
        elsewhere(file)


def on_own_stack(
    file: RunFile,
    data_dir: DataDir,
    port_base: int,
    *,
    fleet: bool = True,
    post_regret: bool = False,
    link: bool = False,
) -> Result:
    """Play the run and return its result.

    It is played over the stack that holds the folder, or over one of our own for as long as the run lasts.

    fleet        as in `there`.
    post_regret  as in `HttpRun`.
    link         whether to print the address of the run's page.
    Raises       what `there` raises, before any service starts.
    """
    urls = running_stack(data_dir)
    if urls is not None:
        _print_link(urls, file, wanted=link)
        return there(file, urls, data_dir, fleet=fleet, post_regret=post_regret)
    check_players(file, fleet=fleet)
    with Stack(data_dir, port_base, file.extensions) as stack:
        _print_link(stack.urls, file, wanted=link)
        fleets = Fleets(file, stack.urls, data_dir.path / "logs", data_dir.memory_file) if fleet else None
        return asyncio.run(HttpRun(file, stack.urls, fleets, Progress(err), stack.check, post_regret).run())


def _print_link(urls: Urls, file: RunFile, *, wanted: bool) -> None:
    if wanted:
        err.print(f"dashboard: {urls.server}/runs/{file.config.run}", markup=False)


def deliver(result: Result, json: str | None) -> None:
    """Print the closing table, or JSON on stdout; with a file name both. Then raise RunFailed for a run that failed."""
    if json != "-":
        print_result(result, out)
    if json is not None:
        write_result(result.model_dump_json(indent=2) + "\n", json)
    if result.fault is not None:
        raise RunFailed(f"run {result.run} failed: {result.fault}")


@app.command("demo", epilog=examples("distrust demo"))
def demo_command(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT, json: JsonOption = None) -> None:
    """Find the best of ten arms of real ratings that no party sees."""
    with resources.as_file(resources.files("distrust.lab") / "runs" / "demo.toml") as path:
        file = read(Path(path))
    file = file.renamed(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    config = file.config
    err.print(f"{config.arms} arms of MSLR-WEB30K ratings, at most {config.horizon:,} clients; data and logs in {data}")
    result = on_own_stack(file, DataDir(data), port_base, link=True)
    deliver(result, json)
    if json != "-":
        us, where = _our_name(), "" if data == DEFAULT else f" --data {data}"
        out.print(f"messages    {us} inspect {config.run}{where}")
        out.print(f"dashboard   {us} up{where}, then http://127.0.0.1:{BASE_PORT}/runs/{config.run}")
        out.print(f"APIs        {us} up{where}, then http://127.0.0.1:{BASE_PORT}/openapi.json")


def _our_name() -> str:
    """Return the command that starts `distrust`: its path, if the shell would not find it."""
    me, installed = Path(sys.argv[0]), shutil.which("distrust")
    known = installed is not None and Path(installed).resolve() == me.resolve()
    return "distrust" if known or me.name != "distrust" else str(me)
