"""Finds the classes of one kind (mechanisms, policies, environments) by their names in a run file."""

import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from distrust.common import extensions
from distrust.common.errors import BadParameter
from distrust.common.extensions import Extension

T = TypeVar("T", bound=type[BaseModel])


class Catalogue(Mapping[str, T], Generic[T]):
    """Names and their classes: the project's own, and those of the user's own that a run names.

    To iterate is to see the project's, in the order of the tables that are printed. A class of the user's own is
    imported when it is asked for (`distrust.common.extensions`), and checked by `complaint`, which says what the class
    lacks or returns None. `printed` writes a name in a message.
    """

    def __init__(
        self,
        kind: str,
        plural: str,
        complaint: Callable[[Any], str | None],
        printed: Callable[[str], str] = repr,
    ) -> None:
        self.kind, self.group, self._complaint, self._printed = kind, f"distrust.{plural}", complaint, printed
        self._named: dict[str, T] = {}
        self._imported: dict[str, tuple[T, Extension]] = {}

    def register(self, named: Mapping[str, T]) -> None:
        """Add classes of the project. Raises ValueError for a name that is taken."""
        if taken := sorted(set(named) & set(self._named)):
            raise ValueError(f"{self.kind} {taken[0]}: the name is taken")
        self._named |= named

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._named or name in self._imported or extensions.offered(self.group, name)

    def __getitem__(self, name: str) -> T:
        """Return the class. Raises KeyError for an unknown name, BadParameter for a class that cannot be used."""
        if name in self._named:
            return self._named[name]
        if name not in self:
            raise KeyError(name)
        return self._own(name)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def find(self, name: object) -> T:
        """Return the class. Raises BadParameter that names the missing class, and that it is missing here."""
        if isinstance(name, str) and (name in self or ":" in name):
            return self[name] if name in self else self._own(name)[0]
        known = ", ".join(map(self._printed, self))
        raise BadParameter(f"{self.kind}.name", name, f"must be one of {known}, {self._elsewhere}")

    def extension(self, name: str) -> Extension | None:
        """Return where a class of the user's own is from; None for one of the project's."""
        return None if name in self._named else self._own(name)[1]

    def _own(self, name: str) -> tuple[T, Extension]:
        if name not in self._imported:
            spec, origin = extensions.find_class(self.kind, self.group, name)
            lacking = self._complaint(spec) or _misnamed(spec, name)
            if lacking is not None:
                raise BadParameter(f"{self.kind}.name", name, f"is no {self.kind}: {lacking}")
            self._imported[name] = (spec, origin)
        return self._imported[name]

    @property
    def _elsewhere(self) -> str:
        return f"or offered by a package that is installed here (entry points {self.group})"

    def known(self, name: str) -> str:
        """Return `name`, for the checks of pydantic: an error of theirs where `find` raises BadParameter."""
        if name in self or ":" in name:
            try:
                self.find(name)
            except BadParameter as error:
                raise PydanticCustomError("unknown_name", "{allowed}", {"allowed": error.allowed}) from error
            return name
        *others, last = map(repr, self)
        allowed = f"must be {', '.join(others)} or {last}, {self._elsewhere}"
        raise PydanticCustomError("unknown_name", "{allowed}", {"allowed": allowed})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "examples": list(self)}


class OnTheWire(Generic[T]):
    """Annotates a union of the project's classes, told apart by name: it takes those of the user's own as well.

    A process that lacks such a class refuses the value, and says that it is missing there.
    """

    def __init__(self, catalogue: Catalogue[T]) -> None:
        self._catalogue = catalogue

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        writing = core_schema.wrap_serializer_function_ser_schema(self._write, info_arg=True, schema=schema)
        return core_schema.with_info_wrap_validator_function(self._read, schema, serialization=writing)

    def _read(self, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
        if not isinstance(name, str) or name in tuple(self._catalogue):
            return handler(value)
        kind = self._kind(name)
        if isinstance(value, kind):
            return value
        return kind.model_validate_json(json.dumps(value)) if info.mode == "json" else kind.model_validate(value)

    def _kind(self, name: str) -> T:
        try:
            return self._catalogue.find(name)
        except BadParameter as error:
            why = PydanticCustomError("unknown_name", "{allowed}", {"allowed": error.allowed})
            fault = InitErrorDetails(type=why, loc=("name",), input=name)
            raise ValidationError.from_exception_data(self._catalogue.kind, [fault]) from error

    def _write(self, value: Any, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        if isinstance(value, tuple(self._catalogue.values())):
            return handler(value)
        return value.model_dump(mode=info.mode)


def _misnamed(spec: type[BaseModel], name: str) -> str | None:
    field = spec.model_fields.get("name")
    if field is not None and (field.annotation is str or name in typing.get_args(field.annotation)):
        return None
    return f"{spec.__name__} needs a field `name: str`, which holds {name!r}"


def subclass_of(base: type[Any], candidate: Any) -> str | None:
    """Return the reason why a class cannot be used as a `base`; None if it can."""
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        return f"it must be a subclass of {base.__module__}.{base.__name__}"
    if inspect.isabstract(candidate):
        return f"{candidate.__name__} lacks {', '.join(sorted(getattr(candidate, '__abstractmethods__', ())))}"
    return None
