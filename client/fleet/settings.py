"""Settings of a fleet process: `DISTRUST_…` variables, or the same names as options (`--run`, `--block` …).

Four have an option of another name, which is that of the other commands: see `common.inputs.flags_of`.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from distrust.client.checks.requirements import (
    MAX_DELTA,
    MAX_EPSILON,
    MAX_SPREAD_DELTA,
    MIN_SPREAD,
    PrivacyRequirements,
)
from distrust.client.cohort.randomizer import World
from distrust.client.cohort.uploader import Limits
from distrust.client.environments import build_environment, read_spec
from distrust.client.fleet.fleet import FleetOptions
from distrust.client.fleet.memory import MEMORY_FILE
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow
from distrust.common.inputs import MOST_TOML, check_address, hide_passwords, read_file, read_token
from distrust.common.protocol.messages.admission import read_device_key
from distrust.common.protocol.messages.upload import MOST_LISTED

AUTO = "auto"
SHOWN = 60  # characters of an environment that cannot be read


def _address(text: str) -> str:
    try:
        return check_address("address", text)
    except BadParameter as error:
        raise ValueError(error.allowed) from error  # what pydantic tells with the setting's name and value


Url = Annotated[str, AfterValidator(_address)]


class FleetSettings(BaseSettings):
    """Settings of one fleet process."""

    model_config = SettingsConfigDict(
        env_prefix="DISTRUST_",
        extra="ignore",
        frozen=True,
        cli_prog_name="distrust fleet",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
    )

    server_url: Annotated[Url, Field(description="address of the server")] = "http://127.0.0.1:8701"
    shuffler_url: Annotated[Url, Field(description="address of the shuffler")] = "http://127.0.0.1:8702"
    aggregator_url: Annotated[Url, Field(description="address of the aggregator")] = "http://127.0.0.1:8703"
    run: Annotated[str, Field(description="the run to serve; `auto`: the newest one that is running")] = AUTO
    environment: Annotated[
        str, Field(description="the [environment] table as JSON, or the path of a TOML file with it")
    ]
    seed: Annotated[int | None, Field(ge=0, description="of the environment, when its table names none")] = None
    dropout: Annotated[float, Field(ge=0, lt=1, description="share of every cohort that departs")] = 0.0
    silent: Annotated[bool, Field(description="depart without a message")] = False
    block: Annotated[int, Field(ge=1, le=4096, description="clients that take tickets at a time")] = 512
    in_flight: Annotated[int, Field(ge=1, description="clients above which no further cohort is begun")] = 8192
    upload_items: Annotated[int, Field(ge=1, le=MOST_LISTED, description="clients in one upload")] = 512
    upload_bytes: Annotated[int, Field(ge=1, description="bytes of messages in one upload")] = 8 * 2**20
    report: Annotated[
        Path | None, Field(description="write the fleet's counts as one JSON object at its end; - for stdout")
    ] = None
    memory_file: Annotated[
        Path, Field(description="SQLite file that notes which clients have taken part; fleets may share it")
    ] = MEMORY_FILE
    max_epsilon: Annotated[float, Field(gt=0, description="users refuse a round with a larger ε")] = MAX_EPSILON
    max_delta: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description=f"users refuse a round with a larger δ; unset: {MAX_SPREAD_DELTA:g} in the models distributed "
            f"and shuffle, else {MAX_DELTA:g}",
        ),
    ] = None
    max_epsilon_alone: Annotated[
        float | None,
        Field(gt=0, description="users refuse a round that leaves a larger ε if all other clients collude; unset: any"),
    ] = None
    contributions: Annotated[int, Field(ge=1, le=1000, description="cohorts that a user takes part in, in all")] = 1
    min_survivors: Annotated[
        int | None,
        Field(
            ge=1,
            description=f"users refuse a round whose noise counts on fewer; unset: {MIN_SPREAD} in the models "
            "distributed and shuffle, else 1",
        ),
    ] = None
    max_survivors: Annotated[int, Field(ge=1, description="users refuse a round whose noise is spread over more")] = (
        1_000_000
    )
    config_digest: Annotated[
        str | None,
        Field(pattern="^[0-9a-f]{64}$", description="users refuse another configuration: SHA-256 of the run's, in hex"),
    ] = None
    extensions: Annotated[
        str, Field(description="module:Name, …: classes of the user's own that a run may name, commas between")
    ] = ""
    allow_unsafe: Annotated[bool, Field(description="take part in rounds without privacy")] = False
    noise_seed: Annotated[int | None, Field(ge=0, lt=2**63, description="repeatable noise: not private")] = None
    participation_token_file: Annotated[
        Path | None, Field(description="file with the participation token by which users get slots")
    ] = None
    device_key_file: Annotated[
        Path | None, Field(description="file with the key of an enrolled device: one user, instead of a token")
    ] = None
    patience: Annotated[float, Field(gt=0, description="seconds to wait for a service that is away")] = 60.0
    process: Annotated[str, Field(description="name of this process in its report and its log")] = "fleet"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="least severe event that is logged")
    ] = "info"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield names and values for `repr`, without the passwords of addresses."""
        return hide_passwords(super().__repr_args__())

    def world(self) -> World:
        """Return the users' world. Raises BadParameter for a bad one, and for a noise seed without allow_unsafe."""
        allow(*map(str.strip, self.extensions.split(",")))
        if self.noise_seed is not None and not self.allow_unsafe:
            raise BadParameter("noise_seed", self.noise_seed, "removes the privacy: needs --allow-unsafe")
        table = self._table()
        if self.seed is not None:
            table = {"seed": self.seed, **table}
        spec = read_spec(table)
        if spec.seed is None:
            raise BadParameter("environment.seed", None, "a fleet needs one: all fleets of a run must play one world")
        return World(build_environment(spec), spec.seed, self.noise_seed)

    def requirements(self) -> PrivacyRequirements:
        """Return the privacy that the users insist on."""
        names = {field.name for field in fields(PrivacyRequirements)} - {"config_digest"}
        pin = None if self.config_digest is None else bytes.fromhex(self.config_digest)
        return PrivacyRequirements(**{name: getattr(self, name) for name in names}, config_digest=pin)

    def options(self) -> FleetOptions:
        """Return how the fleet works: its blocks, limits and departures."""
        limits = Limits(self.upload_items, self.upload_bytes)
        block = 1 if self.device_key_file is not None else self.block  # a device gets one slot of a cohort
        return FleetOptions(block, self.in_flight, self.dropout, self.silent, limits)

    def credential(self) -> str | Ed25519PrivateKey | None:
        """Return the participation token or the device's key; None for neither. Raises BadParameter."""
        token, key = self.participation_token_file, self.device_key_file
        if token is not None and key is not None:
            raise BadParameter("device_key_file", str(key), "leave it out, or participation_token_file: one of them")
        if key is not None:
            return read_device_key("device_key_file", key)
        return None if token is None else read_token("participation_token_file", token)

    def _table(self) -> dict[str, Any]:
        try:
            if self.environment.lstrip().startswith("{"):
                table = json.loads(self.environment)
            else:
                table = tomllib.loads(read_file(self.environment, MOST_TOML)[0].decode("utf-8"))
        except OSError as error:
            raise BadParameter("environment", self.environment, f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BadParameter("environment", self.environment, f"neither JSON nor a TOML file: {error}") from error
        except RecursionError as error:
            raise BadParameter("environment", self.environment[:SHOWN], "its tables are nested too deeply") from error
        inner = table.get("environment", table)
        if not isinstance(inner, dict):
            raise BadParameter("environment", self.environment, "must be a table")
        return inner
