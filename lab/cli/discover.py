"""Implements `distrust list`, `init` and `config`: what there is, and run files."""

import json as json_text
import re
import secrets
import sqlite3
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from distrust.common.errors import BadParameter
from distrust.common.extras import late
from distrust.lab.cli.console import JsonOption, StackOption, examples, out, say
from distrust.lab.stack.data_dir import DEFAULT, DataDir, check_target, write_result, writing

if TYPE_CHECKING:
    from distrust.client import environments
    from distrust.common.dp import mechanisms
    from distrust.common.dp.accounting.techniques import searches
    from distrust.common.protocol.storage import stored_file
    from distrust.common.specs import policy as policy_specs
    from distrust.lab.play import run_file
    from distrust.lab.sweep import cells
else:
    cells = late("distrust.lab.sweep.cells")
    environments = late("distrust.client.environments")
    mechanisms = late("distrust.common.dp.mechanisms")
    policy_specs = late("distrust.common.specs.policy")
    run_file = late("distrust.lab.play.run_file")
    searches = late("distrust.common.dp.accounting.techniques.searches")
    stored_file = late("distrust.common.protocol.storage.stored_file")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Kind(StrEnum):
    """Kinds of things that a run file or a command names."""

    POLICIES = "policies"
    MECHANISMS = "mechanisms"
    ENVIRONMENTS = "environments"
    FIGURES = "figures"
    RUNS = "runs"


@app.command("list", epilog=examples("distrust list", "distrust list mechanisms", "distrust list runs --json -"))
def list_command(
    kind: Annotated[Kind | None, typer.Argument(help="One kind; all but runs when not given")] = None,
    *,
    json: JsonOption = None,
    data: StackOption = DEFAULT,
) -> None:
    """List policies, mechanisms, environments, figures, or runs.

    Runs are those of a local stack, read from its data folder.
    """
    kinds = [one for one in Kind if one is not Kind.RUNS] if kind is None else [kind]
    names = {one.value: dict(_names(one, DataDir(data))) for one in kinds}
    if json != "-":
        for name, things in names.items():
            table = Table(name, "", box=None, padding=(0, 2, 0, 0), title_justify="left")
            for thing, meaning in things.items():
                table.add_row(Text(thing), Text(meaning))
            out.print(table)
            out.print(f"{len(things)} {name}\n")
    if json is not None:
        write_result(json_text.dumps(names, indent=2, ensure_ascii=False) + "\n", json)


def _names(kind: Kind, data_dir: DataDir) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each thing of a kind. The code behind a kind takes up to a second to import."""
    if kind is Kind.FIGURES:
        yield from ((name, cells.read_experiment(name).title) for name in cells.known_experiments())
    elif kind is Kind.RUNS:
        yield from _runs(data_dir)
    else:
        known: dict[Kind, Mapping[str, type]] = {
            Kind.POLICIES: policy_specs.POLICIES,
            Kind.MECHANISMS: mechanisms.MECHANISMS,
            Kind.ENVIRONMENTS: environments.ENVIRONMENTS,
        }
        yield from ((name, _first_line(known[kind][name])) for name in known[kind])


def _first_line(kind: type) -> str:
    line = (kind.__doc__ or "").strip().splitlines()[0]
    return line.partition("`: ")[2] if line.startswith("`[") else line


def _runs(data_dir: DataDir) -> Iterator[tuple[str, str]]:
    """Yield name and state of the runs in the folder's database. It is read as it stands: no service is started.

    Raises BadParameter for a folder that is not there, but for the default one.
    """
    if data_dir.path != DEFAULT and not data_dir.path.is_dir():
        raise BadParameter("data", str(data_dir.path), "is no folder; `distrust up --data` makes one")
    path = data_dir.path / "server.sqlite3"
    if not path.exists():
        return
    try:
        with closing(stored_file.open_stored(path)) as database:
            # All at once: a snapshot that stays open would keep a running server from emptying its log.
            rows = database.execute("SELECT run, state FROM runs ORDER BY rowid").fetchall()
        if not all(isinstance(word, str) for row in rows for word in row):  # a column holds values of any type
            raise sqlite3.DataError("a run's name or state is no text")
        yield from rows
    except sqlite3.Error as error:
        why = f"must hold the database of a server, and its {path.name} cannot be read as one ({error})"
        raise BadParameter("data", str(data_dir.path), why) from error


MODELS = ("distributed", "local", "shuffle", "central", "none")
"""Models of trust, in the order in which `init` tries their mechanisms."""

KINDS = {
    "arms": "an environment of separate arms",
    "linear": "a linear environment",
    "contextual": "a contextual environment",
}
"""The environment that a policy needs, in words, by the kind of the policy's rewards."""

EXAMPLES = {
    "bernoulli": "means = [0.3, 0.5, 0.6, 0.7]  # each arm's chance of a reward of 1\n",
    "auto-lending": "made_up = 10_000         # made-up customers; `file` names the real ones\n",
}
"""By environment, the key that it cannot do without, with a value to begin with."""

TEMPLATE = """\
# A run of distrust. Play it with: distrust run {path}
# Every table and key: distrust list, and the documentation's page of the run file.

run = "{run}"            # lower-case letters, digits, dot, dash, underscore
horizon = {horizon}          # T: pulls in all, most often one a client

[policy]                 # the server's policy: what to ask next
name = "{policy}"
{asks}
[mechanism]              # how a sum is made private
name = "{mechanism}"
{privacy}{budget}
[intermediary]           # losses and corruption that it must survive
dropout = 0.1            # clients that may vanish, as a share of a cohort
corrupt = 0.1            # clients that may collude with it

[environment]            # the clients' simulated world: this table never leaves their side
name = "{environment}"
{example}seed = {seed}  # drawn for this file; who guesses it knows the world

[fleet]                  # the processes that play the clients
processes = 2
dropout = 0.0            # chance that a client leaves before it has answered
"""


SMALL_COHORTS = """
[budget]                 # what the clients accept
epsilon = 1.0
{delta}min_survivors = 1        # the first phases are short: without this, clients refuse noise of fewer than 50
"""
"""Part of a run file whose first cohorts are small, and get their noise from one another."""


@app.command("init", epilog=examples("distrust init first.toml", "distrust init ctx.toml --policy linucb"))
def init_command(
    path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The file to write")],
    *,
    policy: Annotated[str | None, typer.Option("--policy", help="Its policy; the usual one")] = None,
    mechanism: Annotated[str | None, typer.Option("--mechanism", help="Its mechanism; one that fits")] = None,
    environment: Annotated[str | None, typer.Option("--environment", help="Its world; one that fits")] = None,
    json: JsonOption = None,
) -> None:
    """Write a commented run file that plays."""
    if path.exists():
        raise BadParameter("RUN.toml", str(path), "is there already; name another file")
    check_target(path, "RUN.toml")
    text, refusal = _first_that_plays(path, policy, mechanism, environment)
    if text is None:
        raise _misfit(path, policy, mechanism, environment, refusal)
    with writing(path, "RUN.toml"):
        path.write_text(text, "utf-8")
    fields = tomllib.loads(text)
    named = {kind: fields[kind]["name"] for kind in ("policy", "mechanism", "environment")}
    play = f"{path}: play it with `distrust run {path}`, or add --in-process"
    say({"file": str(path), "run": fields["run"], **named}, play, json)


def _first_that_plays(
    path: Path, policy: str | None, mechanism: str | None, environment: str | None
) -> tuple[str | None, str]:
    """Return the text of the best run file that is accepted, or None; and the last refusal."""
    refusal = ""
    for text in _run_files(path, policy, mechanism, environment):
        try:
            run_file.parse(text)
        except (run_file.BadRunFile, BadParameter) as error:
            refusal = error.detail
        else:
            return text, refusal
    return None, refusal


def _misfit(
    path: Path, policy: str | None, mechanism: str | None, environment: str | None, refusal: str
) -> BadParameter:
    """Return an error that names the options that do not go together, why, and the policies that would."""
    stated = [("environment", environment), ("mechanism", mechanism), ("policy", policy)]
    (field, value), *others = [(name, value) for name, value in stated if value is not None]
    rest = " and ".join(f"--{name} {value}" for name, value in reversed(others)) or "any policy"
    fitting = []
    for kind in policy_specs.POLICIES:
        with suppress(BadParameter):  # of another kind than the environment
            fitting += [kind] if _first_that_plays(path, kind, mechanism, environment)[0] else []
    instead = f"; policies that fit: {', '.join(fitting)}" if fitting else ""
    return BadParameter(field, value, f"does not go with {rest}: {refusal}{instead}")


@app.command("config", epilog=examples("distrust config first.toml > first.json"))
def config_command(path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file")]) -> None:
    """Print the server's part of a run file as JSON.

    It is all that the server gets: nothing of the environment but what the policy must know of it, and nothing of the
    fleet. The form on the server's page loads it.

    The public actions of a linear environment are drawn from its seed, if they are not given. A seed that can be
    guessed, such as 1, thus discloses the world.
    """
    with searches.one_thread():
        config = run_file.read(path).config
    sys.stdout.write(config.model_dump_json(indent=2) + "\n")


def _run_files(path: Path, policy: str | None, mechanism: str | None, environment: str | None) -> Iterator[str]:
    """Yield run files, the best choice first.

    Raises BadParameter for a name that is not known, and for a policy and an environment of two kinds.
    """
    ENVIRONMENTS, MECHANISMS = environments.ENVIRONMENTS, mechanisms.MECHANISMS
    POLICIES, USUAL = policy_specs.POLICIES, policy_specs.DEFAULT_POLICY
    stated = (
        ("policy", policy, POLICIES),
        ("mechanism", mechanism, MECHANISMS),
        ("environment", environment, ENVIRONMENTS),
    )
    for option, name, known in stated:
        if name is not None and name not in known:
            raise BadParameter(option, name, f"must be one of {', '.join(known)}")
    rewards = ENVIRONMENTS[environment].REWARDS if environment else POLICIES[policy or USUAL].REWARDS
    likely = [policy] if policy else [USUAL, *(POLICIES if environment else ())]
    policies = [one for one in likely if rewards == POLICIES[one].REWARDS]
    if policy is not None and not policies:
        needed = POLICIES[policy].REWARDS
        fitting = ", ".join(one for one in ENVIRONMENTS if needed == ENVIRONMENTS[one].REWARDS)
        others = ", ".join(one for one in POLICIES if rewards == POLICIES[one].REWARDS)
        allowed = f"--policy {policy} needs {KINDS[needed]}: {fitting}; this one goes with {others}"
        raise BadParameter("environment", environment, allowed)
    like = [one for one in ENVIRONMENTS if rewards == ENVIRONMENTS[one].REWARDS]
    worlds = [environment] if environment else sorted(like, key=lambda one: one in EXAMPLES)
    noises = [mechanism] if mechanism else sorted(MECHANISMS, key=lambda one: MODELS.index(MECHANISMS[one].model))
    # The public actions of a linear world are drawn from its seed, so the server could try small numbers and find θ*.
    seed = secrets.randbits(63)
    for chosen, world, noise in product(policies, worlds, noises):
        kind = MECHANISMS[noise]
        lines = [] if kind.model == "none" else ["epsilon = 1.0            # nats, a client"]
        lines += ["delta = 1e-6"] if kind.takes_delta else []
        lines += ["batches = 10_000         # length of the stream that it counts"] if kind.takes_batches else []
        small = rewards == "linear" and kind.model in {"distributed", "shuffle"}
        yield TEMPLATE.format(
            path=path,
            run=re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("._-")[:80] or "run",
            horizon=20_000,
            policy=chosen,
            asks=_sizes(POLICIES[chosen].model_fields),
            mechanism=noise,
            privacy="".join(f"{line}\n" for line in lines),
            budget=SMALL_COHORTS.format(delta="delta = 1e-6\n" if kind.takes_delta else "") if small else "",
            environment=world,
            example=EXAMPLES.get(world, ""),
            seed=seed,
        )


def _sizes(keys: Collection[str]) -> str:
    """Return the line of a policy's table by which its first cohorts are as large as clients want by default.

    keys  of the policy's table.
    """
    if "first_batch" in keys:
        return "first_batch = 6          # the first batches have 2^6 clients an arm\n"
    return "batch = 64               # clients of a round\n" if "batch" in keys else ""
