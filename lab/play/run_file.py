"""Reads RUN.toml: the server's configuration, the clients' world, the fleet's behaviour. Only the first is sent."""

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from distrust.client.environments import (
    ENVIRONMENTS,
    AnyWorld,
    EnvironmentSpec,
    build_environment,
    seeded,
    spec_class,
)
from distrust.common.catalogue import Catalogue
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.explain import explain_all
from distrust.common.extensions import Extension, allow_named
from distrust.common.inputs import MOST_TOML, read_file
from distrust.common.protocol.run.config import RunConfig
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.common.specs.policy import POLICIES
from distrust.common.wire import Message
from distrust.server.learner.run_config import check_run_config


class BadRunFile(ProtocolError):
    """A run file that cannot be used: names the file, the field, its value and what is allowed, in one line."""

    code, status = "bad-run-file", 422


class FleetSpec(Message):
    """`[fleet]`: how many processes play the clients, and how the clients misbehave."""

    processes: Annotated[int, Field(ge=1, le=256, description="fleet processes")] = 2
    dropout: Annotated[float, Field(ge=0, lt=1, description="chance that a client leaves before it has answered")] = 0.0
    silent: Annotated[bool, Field(description="leave silently: the intermediary waits for its deadline")] = False


_ANYTHING: dict[str, Any] = dict.fromkeys((*RunConfig.model_fields, "environment", "fleet"), (Any, None))
_Keys = create_model("_Keys", __config__=ConfigDict(extra="forbid"), **_ANYTHING)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run as an experimenter describes it.

    config       the server's part; holds nothing of the environment but the number of arms.
    environment  the clients' world; its seed, when the file has none, is drawn once and then fixed.
    fleet        the processes that play it.
    drawn        whether the seed was drawn here: then no other process can know this world, or play it.
    """

    config: RunConfig
    environment: EnvironmentSpec
    fleet: FleetSpec
    drawn: bool = False

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Return the user's own classes that this run names, and where they are from."""
        config = self.config
        names = {
            "environment": self.environment.name,
            "policy": config.policy.name,
            "mechanism": config.mechanism.name,
        }
        return extensions({kind: {"name": name} for kind, name in names.items()})

    def world(self) -> AnyWorld:
        """Return the environment, built."""
        return build_environment(self.environment)

    def world_stream(self, *labels: str | int) -> UnsafeSeededStream:
        """Return a stream of the clients' world, from the environment's seed."""
        assert self.environment.seed is not None  # reading the file drew one
        return UnsafeSeededStream(self.environment.seed, self.config.run, *labels)

    def noise_stream(self, *labels: str | int) -> Stream:
        """Return a stream of privacy noise: the operating system's CSPRNG, or a seed's in an unsafe run."""
        unsafe = self.config.unsafe
        return SystemStream() if unsafe is None else UnsafeSeededStream(unsafe.noise_seed, self.config.run, *labels)

    def unsafe(self, fields: Mapping[str, Any]) -> "RunFile":
        """Return the run with this `[unsafe]` table, such as {"noise_seed": 7}. Raises BadRunFile."""
        return replace(self, config=_config({**self.config.model_dump(), "unsafe": dict(fields)}))

    def renamed(self, run: str) -> "RunFile":
        """Return the run under another name. Raises BadRunFile or BadParameter for a name that is not allowed."""
        return replace(self, config=_config({**self.config.model_dump(), "run": run}))


Source = RunFile | Mapping[str, Any] | Path | str
"""A run file in any form: the keys of its tables, its path, its text as TOML, or the file that was read already."""


def load(source: Source, unsafe: Mapping[str, Any] | None = None) -> RunFile:
    """Return a run file from any form of it, checked.

    source  a dictionary of the run file's keys; a path; TOML text, also in one line; or a RunFile. A string without a
            line break that ends in `.toml` is a path. Arrays and tuples of a dictionary count as lists.
    unsafe  takes the place of the table `[unsafe]`: {"noise_seed": 7} draws the privacy noise from a seed.
    Raises  BadRunFile, BadParameter.
    """
    if isinstance(source, RunFile):
        file = source
    elif isinstance(source, Mapping):
        file = parse_table(plain(source))
    elif not isinstance(source, Path | str):
        shown = source if source is None or isinstance(source, int | float) else type(source)
        raise BadParameter("source", shown, "must be a dictionary, a path, TOML text or a RunFile")
    elif isinstance(source, Path) or ("\n" not in source and source.endswith(".toml")):
        file = read(source)
    else:
        file = parse(source)
    if unsafe is not None and not isinstance(unsafe, Mapping):
        raise BadParameter("unsafe", unsafe, "must be a dictionary, such as {'noise_seed': 7}")
    return file if unsafe is None else file.unsafe(unsafe)


def plain(value: Any) -> Any:
    """Return a value as TOML would have read it: tuples, arrays and NumPy's numbers become lists and numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(below) for below in value] if isinstance(value, list | tuple) else value


def read(path: Path | str) -> RunFile:
    """Return a run file, read and checked. Raises BadRunFile, also for a pipe, a device and above `MOST_TOML` bytes."""
    try:
        return parse(read_file(path, MOST_TOML)[0].decode("utf-8-sig"))
    except OSError as error:
        raise BadRunFile(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRunFile(f"{path}: not TOML: {error}") from error
    except (BadRunFile, BadParameter) as error:
        raise BadRunFile(f"{path}: {error}") from error


def parse(text: str) -> RunFile:
    r"""Return a run file from its text, checked. Without `arms` it has the environment's.

    Raises BadRunFile, BadParameter.

    >>> import distrust
    >>> text = 'run = "doc"\nhorizon = 900\nmechanism = {name = "identity"}\n'
    >>> file = distrust.parse(text + 'environment = {name = "bernoulli", seed = 4, means = [0.1, 0.9]}')
    >>> file.config.arms, file.config.policy.name
    (2, 'successive-elimination')
    >>> distrust.parse(text + 'environment = {name = "bernouli"}')
    Traceback (most recent call last):
    distrust.lab.play.run_file.BadRunFile: environment.name = 'bernouli': must be one of ...
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib raises both for absurd numbers and nesting, too
        raise BadRunFile(f"not TOML: {error}") from error
    return parse_table(table)


def parse_table(fields: Mapping[str, Any]) -> RunFile:
    """Return a run file from its table, checked. Unknown keys are refused first: a misspelt key explains a missing one.

    Raises BadRunFile, BadParameter.
    """
    _check(_Keys, fields)
    try:
        extensions(fields)
    except BadParameter as error:
        raise BadRunFile(str(error)) from error
    table = dict(fields)
    spec = _environment(table.pop("environment", None))
    environment = seeded(spec)
    fleet = _check(FleetSpec, table.pop("fleet", {}), "fleet.")
    arms = build_environment(environment).arms
    try:
        config = _config({"arms": arms, **_with_sequential_defaults(_with_actions(table, environment))})
    except (BadParameter, BadRunFile) as error:
        raise _as_written(error, table, environment) from error
    if config.arms != arms:
        raise BadParameter("arms", config.arms, f"the environment has {arms}")
    return RunFile(config, environment, fleet, drawn=spec.seed is None)


def _config(table: dict[str, Any]) -> RunConfig:
    config = _check(RunConfig, table)
    check_run_config(config)
    return config


OTHERWISE_NAMED = {"features": "dimension"}
"""Keys of environments by those of policies that take their values."""

CATALOGUES: tuple[Catalogue[Any], ...] = (ENVIRONMENTS, POLICIES, MECHANISMS)
"""Catalogues of what a run file names. Each kind has a table of its own, called like the kind."""


def extensions(fields: Mapping[str, Any]) -> tuple[Extension, ...]:
    """Return the user's own classes that a run file's table names, and where they are from.

    This process's own operator wrote the run file, so every `module:Name` in it is allowed. Raises BadParameter for a
    class that cannot be used.
    """
    used: list[Extension | None] = []
    for catalogue in CATALOGUES:
        table = fields.get(catalogue.kind)
        name = table.get("name") if isinstance(table, dict) else None
        if isinstance(name, str) and name not in tuple(catalogue):
            allow_named(name)
            if name in catalogue:
                used.append(catalogue.extension(name))
    return tuple(extension for extension in used if extension is not None)


def _with_actions(table: dict[str, Any], environment: EnvironmentSpec) -> dict[str, Any]:
    """Return the table with what a policy may know of its world. Raises BadParameter if the two do not match."""
    policy = table.get("policy")
    name = policy.get("name") if isinstance(policy, dict) else None
    rewards = POLICIES[str(name)].REWARDS if name in POLICIES else "arms"
    if rewards != environment.REWARDS:
        if rewards == "arms":
            fitting = [policy_name for policy_name, spec in POLICIES.items() if spec.REWARDS == environment.REWARDS]
            raise BadParameter("policy.name", name, f"{environment.name} goes with {', '.join(fitting)}")
        worlds = [world for world, spec in ENVIRONMENTS.items() if rewards == spec.REWARDS]
        raise BadParameter("policy.name", name, f"{name} needs a {rewards} environment: {' or '.join(worlds)}")
    if rewards == "arms" or not isinstance(policy, dict):
        return table
    if "actions" in policy:
        raise BadParameter("policy.actions", "given", "belongs into the environment, which the policy takes it from")
    words = environment.policy_defaults(POLICIES[str(name)])
    environment.check_policy(policy, words)
    return {**table, "policy": {**words, **policy}}


def _as_written(
    error: BadParameter | BadRunFile, table: Mapping[str, Any], environment: EnvironmentSpec
) -> BadParameter | BadRunFile:
    """Return the refusal of what a policy takes from its environment with the environment's key; any other as it is."""
    place, _, rest = str(error).partition(" = ")
    key, policy = place.removeprefix("policy."), table.get("policy")
    if not isinstance(policy, dict) or policy.get("name") not in POLICIES or key in policy or key == place:
        return error
    words = environment.policy_defaults(POLICIES[policy["name"]])
    if key not in words:
        return error
    allowed = rest.partition(": ")[2]
    if isinstance(error, BadRunFile):  # a range of the policy's own
        allowed += f" for {policy['name']}"
    if key == "link":  # of all that a policy takes, it alone may be another than the world's
        allowed += ", unless policy.link is given"
    field = OTHERWISE_NAMED.get(key, key)
    if field in type(environment).model_fields:
        value = getattr(environment, field)  # absent: the world made what the policy took
        return error if value is None else BadParameter(f"environment.{field}", value, allowed)
    return BadParameter("environment.name", environment.name, f"has {key} = {words[key]!r}, which {allowed}")


def _with_sequential_defaults(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with defaults for a policy whose cohorts are one client each: minimum 1, at the shuffler.

    Secure aggregation needs two clients. Raises BadParameter for a mechanism that needs it, with a batch of one.
    """
    policy, spec, mechanism = table.get("policy"), table.get("intermediary", {}), table.get("mechanism")
    name = policy.get("name") if isinstance(policy, dict) else None
    alone = name in POLICIES and POLICIES[str(name)].SEQUENTIAL and policy.get("batch", 1) == 1  # type: ignore[union-attr]
    if not alone or not isinstance(spec, dict) or not isinstance(mechanism, dict):
        return table
    kind, chosen = mechanism.get("name"), "batch" in POLICIES[str(name)].model_fields and "via" not in mechanism
    if chosen and isinstance(kind, str) and kind in MECHANISMS and "shuffler" not in MECHANISMS[kind].vias:
        raise BadParameter("policy.batch", 1, f"must be at least 2: {kind} needs secure aggregation")
    return {**table, "intermediary": {"minimum": 1, **spec}, "mechanism": {"via": "shuffler", **mechanism}}


def _environment(table: object) -> EnvironmentSpec:
    """Return the `[environment]` table, checked by the spec that its name picks."""
    if not isinstance(table, dict):
        raise BadRunFile("environment: is required, a table with a name")
    try:
        kind = spec_class(table.get("name"))
    except BadParameter as error:
        raise BadRunFile(str(error)) from error
    return _check(kind, table, "environment.")


M = typing.TypeVar("M", bound=BaseModel)


def _check(model: type[M], table: Any, prefix: str = "") -> M:
    """Return a table as a message. Raises BadRunFile for its first fault."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        raise BadRunFile(prefix + explain_all(faults, model)[0]) from error  # a misspelt key explains a missing one
