"""Runs one fleet process for `distrust fleet`: `python -P -m distrust.client`.

`-P` keeps the working folder off the path: no file in it runs in place of ours.

Exit status: 0 when its run has ended or a signal stopped it. Otherwise one line on stderr says why, as the other
commands write it: 75 for what may work later, such as a service that is not there or a full disk; 2 for bad input, and
for clients that refuse.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import structlog
from pydantic import ValidationError

from distrust.client.cohort.stats import write_report
from distrust.client.fleet.fleet import Fleet
from distrust.client.fleet.memory import Memory
from distrust.client.fleet.settings import AUTO, FleetSettings
from distrust.client.transport.http import (
    Addresses,
    HttpTransport,
    device_proof,
    newest_running,
    patience,
    token_proof,
)
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.errors import LATER, BadParameter, ProtocolError, Unavailable
from distrust.common.explain import refused
from distrust.common.inputs import flags_of, option, print_error
from distrust.common.protocol.web.client import Http
from distrust.common.protocol.web.observability import configure
from distrust.common.wire import check_name

FAREWELL_SECONDS = 5.0
STDOUT = Path("-")
"""The `report` that is no file."""

log = structlog.get_logger("distrust.fleet")

try:
    import uvloop
except ImportError:  # Windows has none
    uvloop = None  # type: ignore[assignment]


def main() -> int:
    """Serve one run and return the exit code.

    Write the fleet's counts to the `report` file at every end but SIGKILL.
    """
    try:
        settings = FleetSettings(_cli_parse_args=list(_by_settings(sys.argv[1:])))
        configure(settings.log_level)
        with one_thread(), asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_serve(settings))
    except ValidationError as error:
        field = str(error.errors(include_url=False)[0]["loc"][0])
        return _print(refused(error, field, FleetSettings.model_fields[field].description or ""))
    except ProtocolError as error:
        return _print(error)
    except OSError as error:  # of a report that cannot be written
        if error.errno in LATER:
            return _print(Unavailable(f"the report cannot be written: {error}"))
        return _print(BadParameter("report", str(error.filename), f"cannot be written: {error.strerror}"))
    return 0


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, which takes less CPU than asyncio's own; that one where uvloop is not installed."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


def _by_settings(words: list[str]) -> Iterator[str]:
    """Yield the command line with each option by its setting's name: --server as --server-url."""
    own = {flags_of(field)[0]: flags_of(field)[-1] for field in FleetSettings.model_fields}
    for word in words:
        flag, equals, value = word.partition("=")
        yield own.get(flag, flag) + equals + value


async def _serve(settings: FleetSettings) -> None:
    world, requirements, options = settings.world(), settings.requirements(), settings.options()
    if settings.run != AUTO:
        check_name("run", settings.run)
    credential, proof = settings.credential(), None
    if credential is not None:
        proof = token_proof(credential) if isinstance(credential, str) else device_proof(credential)
    addresses = Addresses(settings.server_url, settings.shuffler_url, settings.aggregator_url)
    # The memory is read before the server is asked for anything: fleets beside this one may go on meanwhile.
    with closing(Memory(settings.memory_file)) as memory:
        async with Http(patience(settings.patience)) as http:
            run = await newest_running(http, addresses.server) if settings.run == AUTO else settings.run
            transport = HttpTransport(http, addresses, run, proof)
            fleet, state = Fleet(transport, world, requirements, options, memory), "failed"
            gc.freeze()  # what was imported stays: looking through it again takes 0.1 s
            try:
                state = await _until_stopped(fleet)
            finally:
                # Bytes on the wire are bodies and header lines, without request lines and TCP.
                wire = {"sent_bytes": http.sent, "received_bytes": http.received}
                report = fleet.stats.report(process=settings.process, run=run, state=state, **wire)
                if settings.report == STDOUT:
                    sys.stdout.write(json.dumps(report) + "\n")
                    sys.stdout.flush()
                elif settings.report is not None:
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
                await fleet.leave()
        return "stopped"


def _print(error: ProtocolError) -> int:
    """Write the error and return the exit status. A setting that was not given is named by its option."""
    words, variables = sys.argv[1:], list(os.environ)
    if isinstance(error, BadParameter) and error.field in FleetSettings.model_fields:
        named = (*flags_of(error.field), f"DISTRUST_{error.field.upper()}")
        if not {word.partition("=")[0] for word in words} & set(named) and named[-1] not in map(str.upper, variables):
            error = BadParameter(option(error.field), error.value, error.allowed)
    elif isinstance(error, BadParameter):  # a key of the environment's table, which no option names
        words, variables = [], []
    return print_error(error, words, variables)


if __name__ == "__main__":
    sys.exit(main())
