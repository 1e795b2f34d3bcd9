"""Starts the fleet processes of one run together, watches them, and adds up their reports."""

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BudgetExceeded, Refused
from distrust.lab.play.result import Wire
from distrust.lab.play.run_file import RunFile
from distrust.lab.stack.data_dir import write_secret
from distrust.lab.stack.process import ServiceProcess, stop_all
from distrust.lab.stack.stack import Urls, extensions_variable

REFUSALS = (Refused.code, BudgetExceeded.code)
"""Codes that a fleet's last line has when its clients refuse a round."""


class Fleets:
    """`python -P -m distrust.client` as often as the run file says, for as long as a `with` block lasts.

    logs    folder of the fleets' logs.
    memory  file in which they note which clients have taken part. A fleet that starts again goes on from there.
    """

    def __init__(self, file: RunFile, urls: Urls, logs: Path, memory: Path) -> None:
        self._file, self._urls, self._logs, self._memory = file, urls, logs, memory
        self._fleets: list[ServiceProcess] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="distrust-fleets-")
        try:
            if token := self._urls.participation or self._urls.token:
                write_secret(self._token_file, token)
            for number in range(1, self._file.fleet.processes + 1):
                self._fleets.append(self._start(number))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def _token_file(self) -> Path:
        return Path(self._folder.name) / "token"

    @property
    def running(self) -> bool:
        """Return whether any fleet still runs."""
        return any(fleet.process.poll() is None for fleet in self._fleets)

    def check(self) -> None:
        """Raise Refused, with its reason, when a fleet's clients refuse the run. A finished fleet is fine.

        Raises Unavailable, with the end of its log, when it has failed otherwise.
        """
        for fleet in self._fleets:
            if fleet.process.poll():
                last = fleet.tail().splitlines()[-1].strip()
                for code in REFUSALS:  # asking again would be refused again
                    refused, separator, why = last.partition(f"{code} ")
                    if separator and not refused:
                        raise Refused(f"the clients of run {self._file.config.run} refuse to go on: {why}")
                fleet.check()

    def wait(self, seconds: float) -> None:
        """Wait until the fleets have noticed that the run is over and written their reports."""
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            time.sleep(0.02)

    def wire(self) -> Wire | None:
        """Return the bytes of a client's part in the run, and why clients refused; None when no fleet has reported."""
        reports = [json.loads(path.read_text("utf-8")) for path in Path(self._folder.name).glob("*.json")]
        if not reports:
            return None
        joined, served = (sum(report["clients"][name] for report in reports) for name in ("joined", "served"))
        payload, both = _sum(reports, "payload_bytes"), _sum(reports, "sent_bytes") + _sum(reports, "received_bytes")
        refusals = sum((Counter(report["reasons"]) for report in reports), Counter[str]())
        return Wire(
            payload_bits=8 * payload / served if served else None,
            bytes=both / joined if joined else None,
            refusals=dict(refusals),
        )

    def _start(self, number: int) -> ServiceProcess:
        name = f"fleet-{number}"
        report = Path(self._folder.name) / f"{name}.json"
        own = {
            "DISTRUST_PROCESS": name,
            "DISTRUST_REPORT": str(report),
            "DISTRUST_MEMORY_FILE": str(self._memory),
        }
        if self._token_file.exists():
            own["DISTRUST_PARTICIPATION_TOKEN_FILE"] = str(self._token_file)
        log = self._logs / f"{self._file.config.run}.{name}.log"
        return ServiceProcess(
            f"fleet {number}", ["distrust.client"], {**fleet_environment(self._file, self._urls), **own}, log
        )

    def _end(self) -> None:
        try:
            stop_all(self._fleets)
        finally:
            self._folder.cleanup()


def fleet_environment(file: RunFile, urls: Urls) -> dict[str, str]:
    """Return a fleet's environment variables: addresses, the run's name and digest, its world, its budget.

    No token is among them: it is in a file.
    """
    config, fleet = file.config, file.fleet
    variables = {
        "DISTRUST_SERVER_URL": urls.server,
        "DISTRUST_SHUFFLER_URL": urls.shuffler,
        "DISTRUST_AGGREGATOR_URL": urls.aggregator,
        "DISTRUST_RUN": config.run,
        "DISTRUST_CONFIG_DIGEST": config.digest().hex(),
        "DISTRUST_ENVIRONMENT": file.environment.model_dump_json(),
        "DISTRUST_DROPOUT": str(fleet.dropout),
        "DISTRUST_SILENT": str(fleet.silent).lower(),
    }
    variables |= extensions_variable(file.extensions)
    if config.budget is not None:  # the clients' own from here on: they refuse a round that overdraws it
        variables["DISTRUST_MAX_EPSILON"] = repr(config.budget.epsilon)
        variables["DISTRUST_MAX_DELTA"] = repr(config.budget.delta)
        if config.budget.min_survivors is not None:
            variables["DISTRUST_MIN_SURVIVORS"] = str(config.budget.min_survivors)
        variables["DISTRUST_CONTRIBUTIONS"] = str(config.contributions)  # without a budget, clients add nothing up
    if config.unsafe is not None:
        variables["DISTRUST_NOISE_SEED"] = str(config.unsafe.noise_seed)
    if config.unsafe is not None or MECHANISMS[config.mechanism.name].model == "none":
        variables["DISTRUST_ALLOW_UNSAFE"] = "true"
    return variables


def _sum(reports: list[dict[str, Any]], name: str) -> float:
    return float(sum(report[name] for report in reports))
