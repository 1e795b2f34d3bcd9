"""Runs one fleet process for `distrust fleet`: `python -P -m distrust.client`.

`-P` keeps the working folder off the path: no file in it runs in place of ours.

Exit status: 0 when its run has ended or a signal stopped it. Otherwise one line on stderr says why: 75 for what may
work later, such as a service that is not there or a full disk; 2 for bad input, and for clients that refuse.
"""

import asyncio
import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import structlog
from pydantic import ValidationError

from distrust.client.fleet import Fleet
from distrust.client.http_transport import Addresses, HttpTransport, newest_running, patience
from distrust.client.settings import AUTO, FleetSettings
from distrust.client.stats import write_report
from distrust.common.errors import BUSY, LATER, BadParameter, ProtocolError, without_controls
from distrust.common.inputs import as_typed, option
from distrust.common.messages.explain import first
from distrust.common.privacy.searches import one_thread
from distrust.common.web.client import Http
from distrust.common.web.observability import configure

FAREWELL_SECONDS = 5.0
BAD_INPUT, TRY_LATER = 2, 75  # exit statuses, as the command line has them

log = structlog.get_logger("distrust.fleet")


def main() -> int:
    """Serve one run and return the exit code.

    Write the fleet's counts to the `report` file at every end but SIGKILL.
    """
    try:
        settings = FleetSettings(_cli_parse_args=True)
        configure(settings.log_level)
        with one_thread():
            asyncio.run(_serve(settings))
    except ValidationError as error:
        return _fail(_named(first(error, FleetSettings), str(error.errors(include_url=False)[0]["loc"][0])))
    except BadParameter as error:
        return _fail(_named(error.detail, error.field))
    except ProtocolError as error:
        line = without_controls(f"{error.code}: {error.detail}")  # a service's words may be in it
        return _fail(line, TRY_LATER if error.status in BUSY else BAD_INPUT)
    except OSError as error:
        return _fail(f"the report cannot be written: {error}", TRY_LATER if error.errno in LATER else BAD_INPUT)
    return 0


async def _serve(settings: FleetSettings) -> None:
    world, requirements, options = settings.world(), settings.requirements(), settings.options()
    addresses = Addresses(settings.server_url, settings.shuffler_url, settings.aggregator_url)
    async with Http(patience(settings.patience)) as http:
        run = await newest_running(http, addresses.server) if settings.run == AUTO else settings.run
        fleet, state = Fleet(HttpTransport(http, addresses, run), world, requirements, options), "failed"
        gc.freeze()  # what was imported stays: looking through it again takes 0.1 s
        try:
            state = await _until_stopped(fleet)
        finally:
            report = _report(settings, fleet, http, run, state)
            if settings.report is not None:
                write_report(report, settings.report)
            log.info("fleet_ended", **report)


async def _until_stopped(fleet: Fleet) -> str:
    """Serve the run, and return its last state. Return `stopped` after SIGTERM or SIGINT, once users have left."""
    serving = asyncio.create_task(fleet.serve())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        return await serving
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await fleet.farewell()
        return "stopped"


def _report(settings: FleetSettings, fleet: Fleet, http: Http, run: str, state: str) -> dict[str, Any]:
    """Return the fleet's counts. Bytes on the wire are bodies and header lines, without request lines and TCP."""
    wire = {"sent_bytes": http.sent, "received_bytes": http.received}
    return fleet.stats.report(process=settings.process, run=run, state=state, **wire)


def _named(line: str, field: str) -> str:
    """Return an error's line that names a setting as it was given: by its option, or by its variable."""
    if field not in FleetSettings.model_fields:  # a key of the environment's table, which no option names
        return line
    line_as_typed = as_typed(line, field, sys.argv[1:], os.environ)
    return option(field) + line.removeprefix(field) if line_as_typed == line else line_as_typed


def _fail(line: str, status: int = BAD_INPUT) -> int:
    sys.stderr.write(f"distrust fleet: {line}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
