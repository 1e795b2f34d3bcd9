"""Writes the reference pages of the documentation from the code: command line, HTTP API, run file, settings.

MkDocs calls `on_files` as a hook each time it builds, so no such page can fall behind the code.
"""

import inspect
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from fastapi import FastAPI
from pydantic import BaseModel

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.client.environments import ENVIRONMENTS
from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.mechanisms import MECHANISMS, MechanismSpec
from distrust.common.protocol.run.config import IntermediarySpec, ReturningSpec, RunConfig, UnsafeSpec
from distrust.common.protocol.web.tls import CALLER_FILES
from distrust.common.specs.policy import POLICIES
from distrust.lab.__main__ import COMMANDS, app
from distrust.lab.play.run_file import FleetSpec
from distrust.server.app import server_app
from distrust.server.dashboard.routes import meaning
from distrust.server.settings import ServerSettings
from distrust.shuffler.app import ShufflerSettings, shuffler_app

Schema = Mapping[str, Any]

EXIT_CODES = "What a command exits with is under [exit codes](operations.md#exit-codes).\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; empty without rows."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if not lines:
        return ""
    names = list(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *lines)) + "\n"


def command_line() -> str:
    """Return the page of the `distrust` command: every command with its arguments and options."""
    parts = ["# Command line\n", "`distrust COMMAND -h` prints the same. Written from the code.\n", EXIT_CODES]
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        parts += _command(f"distrust {name}", group.get_command(None, name))
    return "\n".join(parts)


def _command(path: str, command: Any) -> Iterator[str]:
    """Yield the help of a command, as it is printed, and of the commands below it."""
    with command.make_context(path, [], resilient_parsing=True) as context:
        yield f"\n## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{path} {name}", inner)


def _allowed(schema: Schema) -> str:
    """Return in words which values a schema allows."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    branches = [branch for branch in schema.get("anyOf", schema.get("oneOf", ())) if branch.get("type") != "null"]
    if branches:
        return " or ".join(dict.fromkeys(_allowed(branch) for branch in branches))
    if "$ref" in schema:
        return f"a `{schema['$ref'].rpartition('/')[2]}`"
    kind = {"integer": "integer", "number": "number", "boolean": "`true` or `false`", "string": "text"}.get(
        schema.get("type", ""), str(schema.get("type", "any"))
    )
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_allowed(items)}" if items else "list"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    # FastAPI's own schemas have 2.0 for the bound 2 of an integer.
    limits = [f"{sign} {schema[key]:,}".removesuffix(".0") for key, sign in bounds.items() if key in schema]
    return " ".join([kind, ", ".join(limits)]).strip()


def _fields(model: type[BaseModel], *left_out: str) -> str:
    """Return the table of a model's keys: values, default, meaning."""
    schema = model.model_json_schema()
    required = schema.get("required", ())
    rows = []
    for key, field in schema["properties"].items():
        if key in left_out:
            continue
        default = field.get("default")
        shown = "" if default is None or isinstance(default, dict) else f"`{default}`"
        if key in required:
            shown = "required"
        rows.append((f"`{key}`", _allowed(field), shown, meaning(model, key, field)))
    return table(("key", "value", "default", "meaning"), rows)


def _prose(model: type[object], *, lists: bool = False) -> str:
    """Return the sentences of a docstring; with `lists`, its lists of names and meanings too."""
    first, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\n\n")
    return f"{first}\n\n{listed(rest)}" if lists and rest else f"{first}\n"


def listed(text: str) -> str:
    """Return a docstring's text as Markdown: lines `name  meaning`, and the lines indented below them, are a list."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        whole = re.sub(r"\n {2,}", " ", paragraph)
        found = re.findall(r"^(\S.*?) {2,}(\S.*)$", whole, re.MULTILINE)
        parts.append("\n".join(f"- **{name}**: {meaning}" for name, meaning in found) if found else whole)
    return "\n\n".join(parts) + "\n"


def run_file() -> str:
    """Return the page of the run file: every table and key."""
    parts = [
        "# Run file\n",
        "A run is a TOML file. The server gets all of it but `[environment]` and `[fleet]`. Written from the code.\n",
        "## Top level\n",
        _fields(RunConfig, "version", "policy", "mechanism", "intermediary", "unsafe", "budget", "returning"),
    ]
    tables: dict[str, type[BaseModel]] = {
        "mechanism": MechanismSpec,
        "intermediary": IntermediarySpec,
        "returning": ReturningSpec,
        "budget": BudgetSpec,
        "unsafe": UnsafeSpec,
        "fleet": FleetSpec,
    }
    for name, model in tables.items():
        parts += [f"\n## [{name}]\n", _prose(model), _fields(model)]
    parts.append("\nThe names of `[mechanism]` are on the page of [mechanisms](../concepts/privacy/mechanisms.md).\n")
    for kind, catalogue in (("policy", POLICIES), ("environment", ENVIRONMENTS)):
        parts.append(f"\n## [{kind}]\n")
        for name in catalogue:
            parts += [f'\n### {kind} name = "{name}"\n', _prose(catalogue[name]), _fields(catalogue[name], "name")]
    return "\n".join(parts)


def mechanisms() -> str:
    """Return the page of the mechanisms: what each class says of itself."""
    parts = ["# Mechanisms in the code\n", "Each section is the mechanism's own docstring and what it accepts.\n"]
    for name in MECHANISMS:
        kind = MECHANISMS[name]
        facts = (
            ("model", getattr(kind, "model", "")),
            ("channel", ", ".join(getattr(kind, "channels", ()))),
            ("calibrations", ", ".join(kind.calibrations)),
            ("δ", kind.takes_delta or "not taken"),
        )
        parts += [
            f"\n## {name}\n",
            _prose(kind, lists=True),
            table(("fact", "value"), [row for row in facts if row[1]]),
        ]
    return "\n".join(parts)


REF = "#/components/schemas/"


def http_api() -> str:
    """Return the page of the three services' HTTP APIs, from their OpenAPI documents."""
    parts = [
        "# HTTP API\n",
        "Each service serves its OpenAPI document at `/openapi.json`, also with every field of the answers. This page",
        "lists operations, the token that each needs, the statuses of its problems, its parameters and the fields of",
        "its body. A parameter is in the path, in the query or in a header. Written from the code.\n",
    ]
    inner: dict[str, Schema] = {}
    with tempfile.TemporaryDirectory() as folder:
        for service, app in _apps(Path(folder)):
            document = app.openapi()
            schemas = document.get("components", {}).get("schemas", {})
            parts.append(f"\n## {service}\n")
            schemes = document.get("components", {}).get("securitySchemes", {})
            for name, scheme in schemes.items():
                parts.append(f"- **{name}**: {scheme.get('description') or scheme['type']}")
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    parts.append(_operation(method, path, operation))
                    body = _body(operation)
                    if body and body["title"] != RunConfig.__name__:  # whose tables have a page
                        inner |= {name: schemas[name] for name in _reached(body, schemas)}
    parts.append("\n## Objects inside bodies\n")
    for name in sorted(inner):
        fields = table(("name", "needed", "type", "meaning"), _body_rows(inner[name], "no", "yes"))
        parts += [f"\n### {name}\n", f"{_first(inner[name])}\n", fields]
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Schema) -> str:
    """Return an operation in Markdown: itself, its summary, its token, the statuses of its problems, its fields.

    It takes the page's whole width, as paths are long. A browser may break one behind a slash.
    """
    name = f"{method.upper()} {path}".replace("/", "/<wbr>").replace(" /<wbr>", " /")
    text = operation.get("description") or operation.get("summary", "")
    needs = ", ".join(scheme_name for scheme in operation.get("security", ()) for scheme_name in scheme)
    problems = ", ".join(sorted(code for code in operation["responses"] if code.startswith(("4", "5"))))
    facts = [f"Needs the {needs}'s token." if needs else "", f"Problems: {problems}." if problems else ""]
    lines = [f"\n<code>{name}</code>", text.partition("\n\n")[0], *filter(None, facts)]
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), one["description"])
        for one in operation.get("parameters", ())
    ]
    body = _body(operation)
    fields = table(("name", "in", "type", "meaning"), rows + (_body_rows(body, "body", "body, needed") if body else []))
    return "<br>\n".join([lines[0], " ".join(lines[1:])]) + (f"\n\n{fields}" if fields else "")


def _body(operation: Schema) -> Schema | None:
    """Return the schema of an operation's JSON body; None where it takes none."""
    content: Schema = operation.get("requestBody", {}).get("content", {})
    return content["application/json"]["schema"] if content else None


def _body_rows(schema: Schema, optional: str, needed: str) -> list[tuple[str, str, str, str]]:
    """Return the rows of a body's fields: name, the word `needed` or `optional`, type, meaning."""
    required = schema.get("required", ())
    return [
        (f"`{key}`", needed if key in required else optional, _type(field), _said(schema, key, field))
        for key, field in schema["properties"].items()
    ]


def _said(schema: Schema, key: str, field: Schema) -> str:
    """Return what a field of a body means: its line in the schema's description, else its own description."""
    lines = listed(schema.get("description", ""))
    found = re.search(rf"^- \*\*{key}\*\*: (.+)$", lines, re.MULTILINE)
    inner = next((one["description"] for one in field.get("anyOf", ()) if "description" in one), "")
    alone = "always this value" if "const" in field else ""
    return (found[1] if found else "") or field.get("description", "") or inner or alone


def _type(schema: Schema) -> str:
    """Return in words which values a schema of the API allows; objects that the page lists are links."""
    choices = schema.get("anyOf", schema.get("oneOf", ()))
    names = {one["$ref"].removeprefix(REF) for one in (schema, *choices) if "$ref" in one}
    tables = {one.__name__ for one in (MechanismSpec, IntermediarySpec, UnsafeSpec, BudgetSpec, ReturningSpec)}
    if names & (tables | {spec.__name__ for spec in POLICIES.values()}):
        return "object, as in a [run file](run-file.md)"
    if schema.get("type") == "array":
        items = schema.get("items") or {"prefixItems": ()}
        pair = [_type(one) for one in items.get("prefixItems", ())]
        return f"list of ({', '.join(pair)})" if pair else f"list of {_type(items)}"
    if schema.get("format") == "base64url":
        return "bytes as base64url"
    words = _allowed(schema)
    return re.sub(r"a `(\w+)`", lambda name: f"[{name[1]}](#{name[1].lower()})", words)


def _reached(schema: Any, schemas: Mapping[str, Schema]) -> dict[str, None]:
    """Return the names of the schemas that one refers to, by any path."""
    if isinstance(schema, list):
        return {name: None for one in schema for name in _reached(one, schemas)}
    if not isinstance(schema, dict):
        return {}
    name = str(schema.get("$ref", "")).removeprefix(REF)
    own = {name: None, **_reached(schemas[name], schemas)} if name else {}
    return {**own, **_reached(list(schema.values()), schemas)}


def _first(schema: Schema) -> str:
    """Return the first paragraph of a schema's description, in one line."""
    return " ".join(schema.get("description", "").partition("\n\n")[0].split())


def _apps(folder: Path) -> Iterator[tuple[str, FastAPI]]:
    """Yield name and app of each service, with databases and keys in a folder that is thrown away."""
    database = {name: f"sqlite:///{folder}/{name}.sqlite3" for name in ("server", "shuffler", "aggregator")}
    yield "Server", server_app(ServerSettings(database=database["server"], keys=folder / "server.keys", extensions=""))
    yield "Shuffler", shuffler_app(ShufflerSettings(database=database["shuffler"]))
    yield "Aggregator", aggregator_app(AggregatorSettings(database=database["aggregator"]))


def settings() -> str:
    """Return the page of the services' settings, as environment variables."""
    parts = ["# Settings\n", "A service reads these environment variables when it starts. Written from the code.\n"]
    for kind in (ServerSettings, ShufflerSettings, AggregatorSettings):
        schema = kind.model_json_schema()
        rows = [
            (
                f"`DISTRUST_{key.upper()}`",
                _allowed(field),
                f"`{field['default']}`" if field.get("default") else "",
                meaning(kind, key, field),
            )
            for key, field in schema["properties"].items()
        ]
        parts += [f"\n## {kind.service}\n", table(("variable", "value", "default", "meaning"), rows)]
    callers = [(f"`{name}`", "a file", meaning) for name, meaning in CALLER_FILES.items()]
    lead = "Every process that calls a service at an address with `https://` reads these, the server too."
    parts += ["\n## Callers\n", f"{lead}\n", table(("variable", "value", "meaning"), callers)]
    return "\n".join(parts)


PAGES = {
    "reference/command-line.md": command_line,
    "reference/http-api.md": http_api,
    "reference/run-file.md": run_file,
    "reference/mechanism-classes.md": mechanisms,
    "reference/settings.md": settings,
}
"""Generated pages, and the functions that write them."""


SEARCH = 'data-md-component="search" role="dialog"'
"""The theme's dialog, which has no name for readers who do not see it."""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to a build. MkDocs calls it."""
    from mkdocs.structure.files import File  # noqa: PLC0415  only MkDocs has it at hand

    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=re.sub(r"\n{3,}", "\n\n", write())))
    return files


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return a page, its search with a name. MkDocs calls it.

    Raises ValueError if the page loads something from another host.
    """
    del config
    for tag in re.findall(r"<(?:script|img|iframe|link|source)\b[^>]*>", output):
        if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag) and 'rel="canonical"' not in tag:
            raise ValueError(f"{page} loads {tag} from another host")
    return output.replace(f"{SEARCH}>", f'{SEARCH} aria-label="Search">')
