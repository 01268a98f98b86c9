"""Types of arguments at the public functions, and of settings made in Python, checked against their annotations.

Settings from files are checked by `validation`. pydantic is not used here: it would open iterables, and refuses lists
for tuples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache, wraps
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Function = TypeVar("Function", bound=Callable[..., Any])
_LONGEST_SHOWN = 60


def check_arguments(function: Function) -> Function:
    """Decorate a function so that an argument of another type than its annotation is a ValueError of one line.

    A list passes as a tuple and an int as a float; a str is not a sequence, and a bool is not a number.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python's own error names the function
        for name, value in given.items():
            if name in _argument_types(function):
                check_type(name, value, _argument_types(function)[name])
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


@cache
def _argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the arguments; the result's may be known to type checkers only."""
    annotations = {name: hint for name, hint in inspect.get_annotations(function).items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=annotations), vars(inspect.getmodule(function)))


def check_types(section: str, settings: DataclassInstance) -> None:
    """ValueError, one line, for a field of another type than its annotation; lists become tuples."""
    hints = _field_types(type(settings))
    for item in fields(settings):
        value = getattr(settings, item.name)
        check_type(f"{section}.{item.name}", value, hints[item.name])
        if isinstance(value, list):
            object.__setattr__(settings, item.name, tuple(value))


@cache
def _field_types(kind: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def check_type(name: str, value: object, hint: Any) -> None:
    """ValueError, one line, for a value of another type."""
    if fits(value, hint):
        return
    text = repr(value)
    shown = type(value).__name__ if len(text) > _LONGEST_SHOWN or "\n" in text else text
    rule = f"it must be {describe_type(_without_none(hint))}"
    attribute = name.rpartition(".")[2]
    if isinstance(value, PurePath) and fits(str(value), hint):
        rule += "; give str() of it"
    elif getattr(value, attribute, None) is not None and fits(getattr(value, attribute), hint):
        rule += f"; give its .{attribute}"  # an opened model's module
    elif hasattr(value, "tolist") and fits(value.tolist(), hint):
        rule += "; give its .tolist()"
    raise ValueError(f"{name}: {shown} is not valid: {rule}")


def fits(value: Any, hint: Any) -> bool:
    """True where a value is of an annotated type. What iterables and mappings hold is not looked at."""
    hint = _without_alias(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return False
        each_hint = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(each_hint) and all(map(fits, value, each_hint))
    if origin is Sequence:
        is_text = isinstance(value, (str, bytes))
        return isinstance(value, Sequence) and not is_text and all(fits(each, inner[0]) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    return _is_instance(value, hint)


def _is_instance(value: Any, hint: Any) -> bool:
    if hint is Any or hint is Ellipsis or isinstance(hint, TypeVar) or getattr(hint, "_is_protocol", False):
        return True
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else hint)


def _without_alias(hint: Any) -> Any:
    """Look up the type behind a name from a `type` statement (Python 3.12), as NumPy's `NDArray` is from 2.5 on."""
    alias = hint if hasattr(hint, "__value__") else get_origin(hint)
    return hint if not hasattr(alias, "__value__") else _without_alias(alias.__value__)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return Union[tuple(each for each in get_args(hint) if each is not NoneType)]  # noqa: UP007


def describe_type(hint: Any) -> str:
    """Describe the values of a type in words."""
    hint = _without_alias(hint)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    if hint in words:
        return words[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(describe_type, inner)))
    if origin is Callable:
        return "a function"
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)} {_several(inner[0])}"
    if origin in (tuple, Sequence, Iterable):
        return f"{'an iterable' if origin is Iterable else 'a list'} of {_several(inner[0])}"
    name = (origin or hint).__name__
    return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _several(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"{', '.join(map(repr, get_args(hint)))}, as [{get_args(hint)[0]}]"
    return describe_type(hint).removeprefix("an ").removeprefix("a ") + "s"
