"""Connects to services that are up, for a notebook: runs, results, ledgers, and what each party saw of a cohort.

A call returns when the service has answered. In a notebook, where an event loop runs already, it uses a new thread.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError
from rich.console import Console

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.errors import BadMessage, BadParameter, BudgetExceeded, Refused, Unavailable
from distrust.common.explain import first
from distrust.common.extras import late
from distrust.common.inputs import as_typed, check_address, without_passwords
from distrust.common.protocol.messages.status import CohortView
from distrust.common.protocol.run.listing import RunList, RunView, Tombstone
from distrust.common.protocol.run.progress import LedgerView, Listed, RoundReport, RunLine
from distrust.common.protocol.web.client import Http, Patience, Peer
from distrust.common.wire import check_name
from distrust.lab.play.progress import Progress
from distrust.lab.play.result import CohortResult, Result
from distrust.lab.play.run_file import RunFile, Source, load
from distrust.lab.services.fleet_processes import Fleets, fleet_environment
from distrust.lab.services.outline import Wanted, wanted_of
from distrust.lab.services.over_http import HttpRun, create
from distrust.lab.services.parties import MOST_READ
from distrust.lab.services.replay import all_rounds, finished, result_of
from distrust.lab.services.transcripts import Inspection, gather
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import Stack, Urls, running_stack
from distrust.server.learner.learner import Learner

if TYPE_CHECKING:
    from distrust.client.fleet import settings as fleet_settings
else:
    fleet_settings = late("distrust.client.fleet.settings")

Answer = TypeVar("Answer")

PATIENCE = Patience(first=0.2, longest=1.0, total=5.0)
LOOK_SECONDS = 0.5  # between two looks at a run
SILENT = Console(quiet=True)


def _path(run: str) -> str:
    return f"/v1/runs/{check_name('run', run)}"


@dataclass(frozen=True, slots=True)
class Connection:
    """Services that are up: their addresses and the caller's tokens, which are not shown. `connect` makes one.

    Every call raises Unavailable when a service does not answer, Unauthorized without the token that it needs,
    BadParameter for what cannot be a run's name, WrongCohort for a run that the server does not know.

    data_dir  the folder in which fleets that `run` starts note which clients have taken part.
    """

    urls: Urls
    data_dir: DataDir = field(default=DataDir(DEFAULT), repr=False)

    def runs(self) -> Listed[RunLine]:
        """Return a line for each run of the server, oldest first."""
        return Listed(self._ask(lambda server: server.get("/v1/runs", RunList)).runs)

    def view(self, run: str) -> RunView:
        """Return a run's state: its configuration, estimates, clients and cohorts."""
        path = _path(run)
        return self._ask(lambda server: server.get(path, RunView))

    def rounds(self, run: str) -> Listed[RoundReport]:
        """Return every round of a run, with its cohorts."""
        check_name("run", run)
        return Listed(self._ask(lambda server: all_rounds(server, run)))

    def ledger(self, run: str) -> LedgerView:
        """Return the cost of each round to its clients, and the most that a client has spent."""
        path = f"{_path(run)}/ledger"
        return self._ask(lambda server: server.get(path, LedgerView))

    def start(self, source: Source, *, unsafe: Mapping[str, Any] | None = None) -> RunView:
        """Create a run, which fleets started elsewhere play, and return it. Needs the operator's token.

        source, unsafe  as `distrust.run` takes them. The server gets the configuration alone: the true means stay here.
        Raises          BadParameter for a world whose seed was drawn here, which no other fleet knows.
        """
        file = elsewhere(self._loaded(source, unsafe))
        return self._ask(lambda server: create(server, file))

    def wait(self, run: str, seconds: float | None = None) -> RunView:
        """Return a run when it is finished.

        seconds  to wait at most; None: as long as it takes.
        Raises   RunFailed when it failed or was cancelled, Unavailable when it still runs after so long.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            view = self.view(run)
            if view.state != "running":
                return finished(view)
            if end is not None and time.monotonic() + LOOK_SECONDS > end:
                raise Unavailable(f"run {run} still runs after {seconds:g} seconds")
            time.sleep(LOOK_SECONDS)

    def result(self, source: Source, *, unsafe: Mapping[str, Any] | None = None) -> Result:
        """Wait for a run that `start` created, and return its result.

        source  the run file that it was started with: regret is counted in its world, which the server does not know.
        Raises  RunFailed, ReplayDiffers when the server's rounds do not lead to what it says it learned.
        """
        file = elsewhere(self._loaded(source, unsafe))
        view = self.wait(file.config.run)
        if view.digest != file.config.digest():
            raise BadParameter("source", file.config.run, "the server's run of this name has another configuration")
        return self._ask(lambda server: result_of(server, file, view))

    def run(self, source: Source, *, unsafe: Mapping[str, Any] | None = None) -> Result:
        """Play a run to its end with fleets of this machine, and return its result. Needs the operator's token.

        The fleets note which clients have taken part in the services' data folder, or, where the services were named by
        their addresses, in .distrust below the working directory.

        source, unsafe  as `distrust.run` takes them, which plays the same run in process.
        Raises          RunFailed, Unavailable when a service or every fleet is gone, Conflict for a name in use.
        """
        file = self._loaded(source, unsafe)
        check_clients(file)
        for name in ("shuffler", "aggregator"):
            if not getattr(self.urls, name):
                raise BadParameter(name, None, f"give the {name}'s address: fleets of this machine call it")
        with tempfile.TemporaryDirectory(prefix="distrust-logs-") as logs:
            fleets = Fleets(file, self.urls, Path(logs), self.data_dir.memory_file)
            return done(HttpRun(file, self.urls, fleets, Progress(SILENT)).run())

    def cancel(self, run: str) -> RunView:
        """Stop a run for good and return it. Needs the operator's token."""
        path = _path(run)
        return self._ask(lambda server: server.delete(path, RunView))

    def prune(self, run: str) -> Tombstone:
        """Delete what a finished run left at all three services, and return what is left. Needs the operator's token.

        Raises Conflict for a run that is not over; Unavailable where a service is away: the same call goes on then.
        """
        path = f"{_path(run)}/data"
        return self._ask(lambda server: server.delete(path, Tombstone))

    def inspect(
        self, subject: "Subject", *, round_number: int | None = None, cohort: str | None = None, limit: int = 3
    ) -> Inspection:
        """Return the messages of a round's cohorts, as each party saw them; see `distrust.inspect`.

        Needs the operator's token for the server's transcript, and the inspector's for the intermediary's.
        """
        return Inspection(done(gather(self.urls, transcripts_wanted(subject, round_number, cohort, limit))))

    def _loaded(self, source: Source, unsafe: Mapping[str, Any] | None) -> RunFile:
        with one_thread():
            return load(source, unsafe)

    def _ask(self, call: Callable[[Peer], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the server's answer to a call."""

        async def answer() -> Answer:
            async with Http(PATIENCE, most=MOST_READ) as http:
                return await call(http.peer(self.urls.server, self.urls.token))

        return done(answer())


def connect(
    server: str | Path,
    *,
    token: str | None = None,
    shuffler: str | None = None,
    aggregator: str | None = None,
    inspector: str | None = None,
) -> Connection:
    """Return a connection to services that are up. The server is called once, so that a wrong address is noticed.

    server     its address, such as "http://127.0.0.1:8701"; or the data folder of `distrust up`, such as ".distrust",
               which has the addresses and tokens of all three services.
    token      the operator's, to start and cancel runs and to read the server's transcripts.
    shuffler, aggregator  addresses of the intermediaries, to play with fleets of this machine and to inspect cohorts.
    inspector  the inspector's token, for the intermediaries' transcripts.
    Raises     BadParameter for what is no address, Unavailable when no service answers there.

    Here `distrust up` runs, and the run "first" was played.

    >>> import distrust
    >>> services = distrust.connect(".distrust")
    >>> services.runs()
    <Listed of 1: first>
    >>> services.view("first").state
    'finished'
    """
    if not isinstance(server, str | Path):
        raise BadParameter("server", server, "must be an address or a data folder")
    stated = {"server": str(server), "shuffler": shuffler, "aggregator": aggregator}
    if urlsplit(str(server)).scheme in {"http", "https"}:
        for name, url in stated.items():
            if url:
                check_address(name, url)
        connection = Connection(Urls(str(server), shuffler or "", aggregator or "", token, inspector))
    else:
        if any((shuffler, aggregator, token, inspector)):
            raise BadParameter("server", str(server), "a data folder has all addresses and tokens: give no others")
        connection = Connection(_of_folder(server), DataDir(Path(server)))
    connection.runs()
    return connection


def _of_folder(stated: str | Path) -> Urls:
    folder, text = Path(stated), str(stated)  # a path of ftp://x would be shown as ftp:/x
    if not folder.is_dir():
        raise BadParameter("server", without_passwords(text), "must be an address, or the data folder of `distrust up`")
    urls = running_stack(DataDir(folder))
    if urls is None:
        raise Unavailable(f"no services run on {folder}: start them with `distrust up --data {folder}`")
    return urls


@contextmanager
def services(data: str | Path | None = None) -> Iterator[Connection]:
    """Start the three services on loopback for as long as a `with` block lasts, and yield a connection to them.

    data    folder for their databases, logs and tokens; without one, a folder that is removed at the end.
    Raises  Unavailable when a service does not start, or the folder is in use.

    >>> import distrust
    >>> with distrust.services() as started:
    ...     started.runs()
    <Listed of 0>
    """
    with tempfile.TemporaryDirectory(prefix="distrust-") as folder, Stack(DataDir(Path(data or folder)), 0) as stack:
        yield Connection(stack.urls, stack.data_dir)


Subject = str | Result | CohortResult | CohortView
"""A run, by its name or its result; or one cohort of it."""


def inspect(
    subject: Subject,
    *,
    round_number: int | None = None,
    cohort: str | None = None,
    limit: int = 3,
    data: str | Path = DEFAULT,
) -> Inspection:
    """Return the messages of a round's cohorts side by side, as each party saw them, as `distrust inspect` does.

    subject       a run's name or its result, or one cohort of it.
    round_number  which round; else the cohort's, or the first.
    cohort        only this one.
    limit         messages of each stage.
    data          the folder that the services of the run stored their data in. If they do not run, their databases
                  are read as they stand. `connect(…).inspect` asks services elsewhere.
    Raises        WrongCohort for an unknown run, round or cohort; BadParameter for a run in process, and for a folder
                  in which no service has run.

    >>> import distrust
    >>> distrust.inspect("first", cohort="first.1.0.1", limit=1)
    <Inspection of first.1.0.1>
    """
    want = transcripts_wanted(subject, round_number, cohort, limit)
    return Inspection(done(gather(DataDir(Path(data)), want)))


def transcripts_wanted(subject: Subject, round_number: int | None, cohort: str | None, limit: int) -> Wanted:
    """Return the choice of transcripts. Raises BadParameter for a run in process, which sends no message."""
    if isinstance(subject, Result) and subject.driver != "http":
        raise BadParameter("run", subject.run, "was played in process, without messages: play it over services")
    if limit < 1:
        raise BadParameter("limit", limit, "must be at least 1")
    if isinstance(subject, CohortResult | CohortView):
        run, cohort = subject.cohort.rsplit(".", 3)[0], subject.cohort
    else:
        run = subject.run if isinstance(subject, Result) else subject
    return wanted_of(run, round_number, cohort, limit)


def elsewhere(file: RunFile) -> RunFile:
    """Return a run file that fleets elsewhere can play. Raises BadParameter if the seed of its world was drawn here."""
    if file.drawn:
        why = "fleets elsewhere cannot know a seed that was drawn here: give the seed of their world"
        raise BadParameter("environment.seed", None, why)
    return file


def check_clients(file: RunFile) -> None:
    """Raise BadParameter where the clients of fleets that are started here would refuse the run's first round.

    Their limits come from the run file's budget and from this process's variables, as the fleets read them.
    Raises also what planning the first round raises.
    """
    variables = fleet_environment(file, Urls("", "", ""))
    settings = {
        name.removeprefix("DISTRUST_").lower(): value for name, value in variables.items() if "_URL" not in name
    }
    try:
        limits = fleet_settings.FleetSettings.model_validate(settings).requirements()
    except ValidationError as error:
        line, field = first(error, fleet_settings.FleetSettings), str(error.errors(include_url=False)[0]["loc"][0])
        raise BadMessage(f"the fleets: {as_typed(line, field, (), variables)}") from error
    with one_thread():
        mechanisms = Learner(file.config).rounds[0].mechanisms.values()
        for mechanism in mechanisms:
            try:
                limits.cost(mechanism, budget=file.config.budget)
            except (Refused, BudgetExceeded) as error:
                field = "contributions" if isinstance(error, BudgetExceeded) else str(error.extra.get("limit", "name"))
                whose: Any = limits if hasattr(limits, field) else file.config.mechanism
                table = {"contributions": "returning", "min_survivors": "budget"}.get(field, "mechanism")
                missing = field == "min_survivors" and limits.min_survivors is None  # the clients' default refuses
                of_clients = (
                    whose is limits and field not in settings and not missing
                )  # only a variable can have set it
                name = f"DISTRUST_{field.upper()}" if of_clients else f"{table}.{field}"
                why = f"the clients of this run would refuse it: {error.detail}"
                raise BadParameter(name, getattr(whose, field), why) from error


def done(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end and return its answer, also where an event loop is running, as in a notebook.

    An interruption cancels it, so that what it started stops, and is raised again.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def named() -> Answer:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, named())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            raise
