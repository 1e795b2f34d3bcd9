"""Sets the command line's output and exit codes: results on stdout, errors by code on stderr; makes options."""

import difflib
import errno
import json as json_text
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import Doc

from distrust.common.errors import BAD_INPUT, LATER, TRY_LATER, BadParameter, ProtocolError, without_controls
from distrust.common.extras import lacking, late, pydantic
from distrust.common.inputs import NO_OPTION, NO_VALUE, option, print_error
from distrust.lab.stack.data_dir import check_target, write_result

if TYPE_CHECKING:
    from distrust.common import explain
else:
    explain = late("distrust.common.explain")

INTERRUPTED = 130
TERMINATED = 143


class PlainConsole(Console):
    """A console that prints no control characters but its own: text of another party could steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(without_controls(text), style)


class ResultConsole(PlainConsole):
    """Console of stdout. A reader that left is an error here, which `exit_code_of` turns into success."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of stdout left")


out = ResultConsole(soft_wrap=True, highlight=False, emoji=False)
err = PlainConsole(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run the command line and return its exit code. No traceback is shown.

    0 for success, 1 for something that was found broken or failed, 2 for bad input, 75 for what may work later, such
    as a service that is not there or a full disk, 130 for Ctrl-C, 143 for SIGTERM. An error is one line on stderr.
    """
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        return _flushed(command)
    except BrokenPipeError:  # the reader of our output left: `distrust inspect | head`
        _discard(1)
        return 0
    except OSError as error:  # a named file's error is told where the file is written
        if error.errno not in LATER or error.filename is not None:
            raise
        _discard(1)
        try:
            err.print(f"the output cannot be written: {error.strerror}; mend that, and try again", markup=False)
        except OSError:  # stderr goes to the same full disk
            _discard(2)
        return TRY_LATER


ARGUMENTS = ("mechanism", "url", "party", "files")
"""Arguments in lower case, which are no options."""


@contextmanager
def missing_options() -> Iterator[None]:
    """Name the option of a value that is missing, in commands whose options are the keys of a mechanism."""
    try:
        yield
    except BadParameter as error:
        if error.value is not None or error.field in ARGUMENTS:
            raise
        raise BadParameter(option(error.field.rpartition(".")[2]), None, error.allowed) from error


def _with_option(error: ProtocolError) -> ProtocolError:
    """Return an error that names the option of a value that is missing. A key of a file is in a table, with a dot."""
    if not isinstance(error, BadParameter) or error.value is not None:
        return error
    ours = error.field.islower() and error.field.isidentifier() and error.field not in ARGUMENTS
    return BadParameter(option(error.field), None, error.allowed) if ours else error


USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""Errors that typer raises for a wrong command line. Their base class has no public name."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise typer's errors about an option or an argument as ours, so that all errors read alike."""
    try:
        yield
    except USAGE as error:
        ours = _in_our_words(error)
        if ours is None:
            raise
        raise ours from error


def _in_our_words(error: Any) -> BadParameter | None:
    """Return typer's error as ours; None for one that names neither an option nor an argument."""
    command, flag = getattr(error.ctx, "command_path", "distrust"), getattr(error, "option_name", None)
    if flag is not None:
        if not hasattr(error, "possibilities"):
            return BadParameter(flag, "", NO_VALUE)
        return no_option(command, flag, (word for one in error.ctx.command.params for word in one.opts))
    parameter = getattr(error, "param", None)
    if parameter is None:
        return None
    typed = parameter.param_type_name == "option"
    name = max(parameter.opts, key=len) if typed else (parameter.metavar or parameter.name).strip("[]")
    if isinstance(error.__cause__, pydantic.ValidationError):
        return explain.refused(error.__cause__, name)
    meaning = str(parameter.help)
    meaning = meaning[:1].lower() + meaning[1:] if meaning[1:2].islower() else meaning
    return None if error.message else BadParameter(name, None, meaning)


def no_option(command: str, flag: str, known: Iterable[str]) -> BadParameter:
    """Return the refusal of an option that a command does not have, with the nearest one of those that it has.

    command  with all its words, as `distrust data mslr`.
    """
    near = "".join(f", did you mean {one}?" for one in difflib.get_close_matches(flag, list(known), 1))
    return BadParameter(command.rpartition(" ")[2], flag, NO_OPTION.format(near=near, command=command))


def _discard(descriptor: int) -> None:
    """Let stdout (1) or stderr (2) lead nowhere: what is buffered would fail once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _flushed(command: Callable[[], object]) -> int:
    """Run the command, write what is buffered, and return the exit code. Raises OSError."""
    try:
        command()
    except ProtocolError as error:
        return print_error(_with_option(error), sys.argv[1:])
    except ModuleNotFoundError as error:
        install = lacking(error, "this command needs")
        if install is None:
            raise
        err.print(install, markup=False)
        return BAD_INPUT
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as end:  # typer turns Ctrl-C inside a command into this
        if end.code == INTERRUPTED:
            return _interrupted()
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # what typer puts there for a reader that left
            raise BrokenPipeError from end
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return 0


def examples(*commands: str) -> str:
    """Return the end of a command's help. The mark keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def _checked_json(target: str | None) -> str | None:
    """Return the target of --json. A file that cannot be written is refused before the work, not after it."""
    if target not in (None, "-"):
        check_target(Path(target), "json")
    return target


def checked_out(path: Path) -> Path:
    """Return the path of a file that a command will write, likewise."""
    check_target(path, "out")
    return path


StackOption = Annotated[Path, typer.Option("--data", help="Folder of a local stack")]

JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the facts as one JSON object; - for stdout", callback=_checked_json
    ),
]

NameArgument = Annotated[str | None, typer.Argument(metavar="[MECHANISM]", help="Its name, as in a run file")]


def _options(kind: Any, without: Collection[str], defaults: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return an option for each field of a query that has one or a `Doc`, and for those of a query in it."""
    options: dict[str, Parameter] = {}
    hints = get_type_hints(kind, include_extras=True)
    own = [field for field in fields(kind) if field.name not in without]
    for field in own:
        if is_dataclass(hints[field.name]):
            others = {*without, *(one.name for one in own)}
            options |= _options(hints[field.name], others, defaults)
            continue
        annotation: Any = NameArgument if field.name == "mechanism" else hints[field.name]
        plain, meaning = get_args(annotation)
        if isinstance(meaning, Doc):  # words are checked by the query, whose errors read like all others
            typed = str if get_origin(plain) is Literal else plain
            annotation = Annotated[typed, typer.Option(option(field.name), help=meaning.documentation)]
        usual = defaults.get(field.name, Parameter.empty if field.default is MISSING else field.default)
        options[field.name] = Parameter(field.name, Parameter.KEYWORD_ONLY, default=usual, annotation=annotation)
    return options


def _built(kind: Any, table: Mapping[str, Any]) -> Any:
    """Return the query with these values of its fields, and of the fields of a query in it."""
    others = {name: value for name, value in table.items() if name not in {field.name for field in fields(kind)}}
    nested = {name: _built(hint, others) for name, hint in get_type_hints(kind).items() if is_dataclass(hint)}
    return kind(**{field.name: table[field.name] for field in fields(kind) if field.name in table}, **nested)


def with_options(kind: type, *without: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes options of a command's parameter of this kind, one for each field.

    kind      the query, a dataclass: a field has its option, or a `Doc`, which is the help of one. The fields of a
              query in it are options, too, unless it has one of that name.
    without   fields that are no options.
    defaults  by field, where they are not the query's own.
    """
    options = _options(kind, without, defaults)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def filled(**table: Any) -> None:
            query = _built(kind, {name: table.pop(name) for name in options})
            command(**table, **{place: query})

        own = signature(command).parameters
        place = next(name for name, parameter in own.items() if parameter.annotation is kind)
        parameters = [*chain(*(options.values() if name == place else [one] for name, one in own.items()))]
        filled.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        return filled

    return decorate


def present(shown: RenderableType, text: str, target: str | None) -> None:
    """Print a result for people, and write its JSON, `text`, to a file; with `-` as JSON alone, on stdout."""
    if target != "-":
        out.print(shown)
    if target is not None:
        write_result(text, target)


def say(fact: Any, text: str, target: str | None) -> None:
    """Print a fact for people, as text, and write it as JSON to a file; with `-` as JSON alone, on stdout."""
    if target != "-":
        out.print(text, markup=False)
    if target is not None:
        write_result(json_text.dumps(fact, ensure_ascii=False) + "\n", target)


def _interrupted() -> int:
    err.print("interrupted: everything that was started here has stopped")
    return INTERRUPTED


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind every `with` on the way out, so that the stack stops."""
    raise SystemExit(TERMINATED)
