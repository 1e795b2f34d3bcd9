"""The pages' routes, and the form that starts a run: its fields are those of the run's own configuration."""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, MechanismSpec
from distrust.common.protocol.run.config import IntermediarySpec, ReturningSpec, RunConfig
from distrust.common.specs.policy import DEFAULT_POLICY, POLICIES
from distrust.common.wire import Via
from distrust.server.dashboard import ReadersPageRoute, page
from distrust.server.dashboard.views import Runs, compare_context, preselected, run_context, runs_context

pages = APIRouter(include_in_schema=False, route_class=ReadersPageRoute)


async def _runs(request: Request) -> Runs:
    reader: Runs = request.app.state.reader
    return reader


RunsDep = Annotated[Runs, Depends(_runs)]
Fragment = Annotated[str | None, Header(alias="X-Fragment", description="only the part that changes")]
Name = Annotated[str | None, Query(max_length=80)]


def origin_of(request: Request) -> str:
    """Return this server's address as the caller named it, for commands that a reader may copy."""
    return str(request.base_url).rstrip("/")


def standing_at(request: Request, party: Via) -> dict[str, Any]:
    """Return where a reader's browser asks how open cohorts stand, and whether that takes a token."""
    state = request.app.state
    return {
        "party": party,
        "address": state.settings.readers_url(party),
        "guarded": state.operator_token is not None,
    }


@pages.get("/")
def runs_page(
    request: Request, reader: RunsDep, before: Annotated[int | None, Query(ge=1)] = None, part: Fragment = None
) -> Response:
    """Return the list of runs."""
    context = runs_context(reader, before)
    address = "/" if before is None else f"/?before={before}"
    return page("runs.html", part=part, title="Runs", here="/", address=address, origin=origin_of(request), **context)


@pages.get("/runs/{run}")
def run_page(run: str, request: Request, reader: RunsDep, part: Fragment = None) -> Response:
    """Return a run's page. While it runs, its script may ask the cohorts' intermediary how they stand."""
    context = run_context(reader, run)
    standing = None
    if context["view"].state == "running" and context["newest"] is not None:
        standing = standing_at(request, context["newest"].mechanism.via)
    connect = [] if standing is None else [standing["address"]]
    own: dict[str, Any] = {"title": run, "origin": origin_of(request), "standing_at": standing}
    return page("run.html", part=part, connect=connect, **own, **context)


@pages.get("/compare")
def compare_page(reader: RunsDep, a: Name = None, b: Name = None) -> Response:
    """Return two runs side by side; without names, a form that asks for them."""
    names = [name for name in (a, b) if name]
    context = compare_context(reader, names if len(names) == 2 else [])
    chosen = dict(zip("ab", preselected(context["known"], (a, b)), strict=True))
    return page("compare.html", title="Compare", here="/compare", chosen=chosen, **context)


@pages.get("/start")
def start_page(request: Request) -> Response:
    """Return the form that starts a run. Its script posts to the API, which checks it as it checks a run file's."""
    guarded = request.app.state.operator_token is not None
    own: dict[str, Any] = {"title": "Start a run", "here": "/start", "origin": origin_of(request), "guarded": guarded}
    return page("start.html", **own, **start_context())


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of the form.

    name     its place in the configuration, with dots; errors of the API begin with it.
    id       unlike any other's.
    kind     number, whole (a whole number), text, choice, check (yes or no) or json.
    default  shown and sent; empty for a field that is left out unless it is filled in.
    pattern  regular expression of an allowed text.
    """

    name: str
    id: str
    kind: str
    default: str
    hint: str
    required: bool = False
    options: tuple[str, ...] = ()
    pattern: str = ""

    @property
    def label(self) -> str:
        """Return the key as a run file has it."""
        return self.name.rpartition(".")[2]


@cache
def start_context() -> dict[str, Any]:
    """Return the context of the form: fields by table, each policy with its own, and what the mechanisms need."""
    basics = [one for one in fields("", RunConfig, needed=True) if one.name in {"run", "arms", "horizon"}]
    mechanism = [one for one in fields("mechanism.", MechanismSpec) if one.name != "mechanism.name"]
    optional = [*fields("budget.", BudgetSpec, needed=False), *fields("returning.", ReturningSpec, needed=False)]
    return {
        "basics": basics,
        "policies": [
            {"name": name, "about": _first_line(spec), "fields": fields("policy.", spec, prefix=f"{name}-")}
            for name, spec in POLICIES.items()
        ],
        "policy": DEFAULT_POLICY,
        "mechanisms": [
            {"name": name, "about": _first_line(kind), "delta": kind.takes_delta or "no", "needs": _needs(kind)}
            for name, kind in MECHANISMS.items()
        ],
        "mechanism": mechanism,
        "intermediary": fields("intermediary.", IntermediarySpec),
        "optional": optional,
    }


def _needs(kind: type[Mechanism]) -> str:
    """Return the inputs that a mechanism cannot do without, with spaces between."""
    needs = {
        "mechanism.epsilon": kind.model != "none",
        "mechanism.delta": kind.takes_delta == "needed",
        "mechanism.batches": kind.takes_batches,
    }
    return " ".join(name for name, needed in needs.items() if needed)


def fields(table: str, model: type[Any], *, prefix: str = "", needed: bool = True) -> list[FormField]:
    """Return the inputs of a table's keys but its name, from the schema that checks it.

    needed  whether a required key of the table is required in the form, and defaults are shown.
    """
    schema = model.model_json_schema()
    required = set(schema.get("required", ())) if needed else set()
    return [
        _field(table + key, prefix, words, meaning(model, key, words), required=key in required, shown=needed)
        for key, words in schema["properties"].items()
        if key not in {"name", "version"}
    ]


def meaning(model: type[Any], key: str, field: Mapping[str, Any]) -> str:
    """Return what a key means: the field's description, else its line in the docstring of a class that has it."""
    said = [field.get("description", ""), *(one.get("description", "") for one in field.get("anyOf", ()))]
    for kind in model.__mro__:
        found = re.search(rf"^{key} {{2,}}(.+(?:\n {{6,}}.+)*)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
        said += [" ".join(found[1].split())] if found else []
    return next(filter(None, said), "")


def _field(name: str, prefix: str, table: Mapping[str, Any], hint: str, *, required: bool, shown: bool) -> FormField:
    inner = next((one for one in table.get("anyOf", ()) if one.get("type") != "null"), table)
    kind, options = _kind(inner)
    default = table.get("default") if shown else None
    if default is None:
        options = ("", *options) if options else ()
        default = ""
    return FormField(
        name=name,
        id=f"f-{prefix}{name}".replace(".", "-"),
        kind=kind,
        default=default if isinstance(default, str) else json.dumps(default),
        hint=hint.replace("`", ""),
        required=required,
        options=options,
        pattern=inner.get("pattern", ""),
    )


def _kind(table: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the kind of input of one type of a JSON schema, and its options."""
    known = table.get("enum") or ([table["const"]] if "const" in table else [])
    if known:
        return ("choice" if isinstance(known[0], str) else "whole-choice"), tuple(map(str, known))
    kinds = {"integer": "whole", "number": "number", "boolean": "check", "string": "text"}
    return kinds.get(str(table.get("type")), "json"), ()


def _first_line(kind: type[Any]) -> str:
    return (kind.__doc__ or "").partition("\n")[0].replace("`", "")
