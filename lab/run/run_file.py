"""RUN.toml: what the server gets, what the clients' world is, how the fleet behaves. Only the first is ever sent."""

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from distrust.client.environments import (
    ENVIRONMENTS,
    Environment,
    EnvironmentSpec,
    build,
    seeded,
    spec_class,
)
from distrust.common.catalogue import Catalogue
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.extensions import REFERENCE, Extension, allow
from distrust.common.mechanisms import MECHANISMS
from distrust.common.messages.base import Message
from distrust.common.messages.explain import explain_all
from distrust.common.messages.policy import POLICIES
from distrust.common.messages.run import RunConfig
from distrust.server.learner.run_config import check_run_config


class BadRunFile(ProtocolError):
    """A run file that cannot be used: names the file, the field, its value and what is allowed, in one line."""

    code, status = "bad-run-file", 422


class FleetSpec(Message):
    """`[fleet]`: how many processes play the clients, and how the clients misbehave."""

    processes: Annotated[int, Field(ge=1, le=256, description="fleet processes")] = 2
    dropout: Annotated[float, Field(ge=0, lt=1, description="chance that a client leaves before it has answered")] = 0.0
    silent: Annotated[bool, Field(description="leave without a word, so that S waits for its deadline")] = False


_ANYTHING: dict[str, Any] = dict.fromkeys((*RunConfig.model_fields, "environment", "fleet"), (Any, None))
_Keys = create_model("_Keys", __config__=ConfigDict(extra="forbid"), **_ANYTHING)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run as an experimenter describes it.

    config       the server's part; holds nothing of the environment but the number of arms.
    environment  the clients' world; its seed, when the file has none, is drawn once and then fixed.
    fleet        the processes that play it.
    drawn        whether the seed was drawn here: then nobody else can know this world, or play it.
    """

    config: RunConfig
    environment: EnvironmentSpec
    fleet: FleetSpec
    drawn: bool = False

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Where the classes of the user's own are from that this run names."""
        config = self.config
        names = {
            "environment": self.environment.name,
            "policy": config.policy.name,
            "mechanism": config.mechanism.name,
        }
        return extensions({kind: {"name": name} for kind, name in names.items()})

    def world(self) -> Environment:
        """The environment itself."""
        return build(self.environment)

    def renamed(self, run: str) -> "RunFile":
        """The same run under another name. Raises BadRunFile or BadParameter for one that no run can have."""
        return replace(self, config=_config({**self.config.model_dump(), "run": run}))


def read(path: Path) -> RunFile:
    """Read and check a run file. Raises BadRunFile."""
    try:
        return parse(path.read_text("utf-8-sig"))
    except OSError as error:
        raise BadRunFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRunFile(f"{path}: not TOML: {error}") from error
    except (BadRunFile, BadParameter) as error:
        raise BadRunFile(f"{path}: {error}") from error


def parse(text: str) -> RunFile:
    """The same from text; `arms` is the environment's when the file does not say it."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of numbers and nesting that nobody means, too
        raise BadRunFile(f"not TOML: {error}") from error
    return parse_table(table)


def parse_table(words: Mapping[str, Any]) -> RunFile:
    """The same from the file's table, all of whose keys must be known: a misspelt one explains a missing one."""
    _check(_Keys, words)
    try:
        extensions(words)
    except BadParameter as error:
        raise BadRunFile(str(error)) from error
    table = dict(words)
    given = _environment(table.pop("environment", None))
    environment = seeded(given)
    fleet = _check(FleetSpec, table.pop("fleet", {}), "fleet.")
    arms = build(environment).arms
    config = _config({"arms": arms, **_one_by_one(_with_actions(table, environment))})
    if config.arms != arms:
        raise BadParameter("arms", config.arms, f"the environment has {arms}")
    return RunFile(config, environment, fleet, drawn=given.seed is None)


def _config(table: dict[str, Any]) -> RunConfig:
    config = _check(RunConfig, table)
    check_run_config(config)
    return config


CATALOGUES: tuple[Catalogue[Any], ...] = (ENVIRONMENTS, POLICIES, MECHANISMS)
"""Of what a run file names, each in a table of its own that is called like the kind."""


def extensions(words: Mapping[str, Any]) -> tuple[Extension, ...]:
    """Return where the classes of the user's own are from that a run file's table names.

    A run file is the word of this process's own operator, so that every `module:Name` in it is listed. Raises
    BadParameter for a class that cannot be used.
    """
    found: list[Extension | None] = []
    for catalogue in CATALOGUES:
        table = words.get(catalogue.kind)
        name = table.get("name") if isinstance(table, dict) else None
        if isinstance(name, str) and name not in tuple(catalogue):
            if REFERENCE.fullmatch(name):
                allow(name)
            if name in catalogue:
                found.append(catalogue.extension(name))
    return tuple(one for one in found if one is not None)


LINEAR_POLICIES = tuple(name for name, spec in POLICIES.items() if spec.REWARDS == "linear")


def _with_actions(table: dict[str, Any], environment: EnvironmentSpec) -> dict[str, Any]:
    """The table with what a policy may know of its world filled in. The two must go together."""
    policy = table.get("policy")
    name = policy.get("name") if isinstance(policy, dict) else None
    linear = name in POLICIES and POLICIES[str(name)].REWARDS == "linear"
    if (environment.REWARDS == "linear") != linear:
        allowed = f"{environment.name} goes with {', '.join(LINEAR_POLICIES)}"
        if linear:
            allowed = f"{name} needs a linear environment: linear-distributed or linear-sphere"
        raise BadParameter("policy.name", name, allowed)
    if not linear or not isinstance(policy, dict):
        return table
    if "actions" in policy:
        raise BadParameter("policy.actions", "given", "belongs into the environment, which the policy takes it from")
    words = environment.told(POLICIES[str(name)])
    environment.check_told(policy, words)
    return {**table, "policy": {**words, **policy}}


def _one_by_one(table: dict[str, Any]) -> dict[str, Any]:
    """For the policy whose cohorts are one client each: their minimum, and the S that takes one, unless they are given.

    Secure aggregation needs two.
    """
    policy, spec, mechanism = table.get("policy"), table.get("intermediary", {}), table.get("mechanism")
    name = policy.get("name") if isinstance(policy, dict) else None
    alone = name in POLICIES and POLICIES[str(name)].SEQUENTIAL
    if not alone or not isinstance(spec, dict) or not isinstance(mechanism, dict):
        return table
    return {**table, "intermediary": {"minimum": 1, **spec}, "mechanism": {"via": "shuffler", **mechanism}}


def _environment(table: object) -> EnvironmentSpec:
    """The `[environment]` table, checked by the spec that its name picks."""
    if not isinstance(table, dict):
        raise BadRunFile("environment: is required, a table with a name")
    try:
        kind = spec_class(table.get("name"))
    except BadParameter as error:
        raise BadRunFile(str(error)) from error
    return _check(kind, table, "environment.")


M = typing.TypeVar("M", bound=BaseModel)


def _check(model: type[M], table: Any, prefix: str = "") -> M:
    """A table as a message; the first fault as BadRunFile."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        raise BadRunFile(prefix + explain_all(faults, model)[0]) from error  # a misspelt key explains a missing one
