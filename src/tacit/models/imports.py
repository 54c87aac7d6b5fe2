"""Finds a user's own by `module:name`, and calls it, with the current directory importable."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tacit.errors import InputError, describe, nearest


def names_function(reference: object) -> bool:
    """Whether something has the form `module:function`."""
    module_name, colon, name = reference.partition(":") if isinstance(reference, str) else ("",) * 3
    return bool(colon) and all(part.isidentifier() for part in [*module_name.split("."), name])


def import_function(reference: str, where: str) -> Callable[..., Any]:
    """The callable that `module:function` names: see `import_named`."""
    function: Callable[..., Any] = import_named(reference, where, "function", callable)
    return function


def import_named(reference: str, where: str, kind: str, fits: Callable[[object], bool]) -> Any:
    """What `module:name` names: of a `kind`, in a word, and such that it `fits`.

    The module may be dotted, and is looked for in the current directory first.

    Raises:
        InputError: on `where`, if the reference has another form, the module is not found or fails
            to import, or it holds nothing of the kind by that name.
    """
    module_name, _, name = reference.partition(":")
    if not names_function(reference):
        raise InputError(where, reference, "must be module:function, as in my_data:load")
    try:
        if (module := sys.modules.get(module_name)) is None:
            importlib.invalidate_caches()
            with _importable_current_directory():
                module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        fault = f"importing the module raised {describe(error)}"
        # A module that the user's own module fails to import is another fault than a missing one.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            fault = f"there is no module {missing!r} in {os.getcwd()} nor among those installed"
        raise InputError(where, reference, fault) from error
    found = {key: value for key, value in vars(module).items() if fits(value)}
    if name not in found:
        hint = nearest(name, [key for key in found if not key.startswith("_")])
        raise InputError(where, reference, f"{module_name} has no {kind} {name!r}; {hint}")
    return found[name]


def call_function(reference: str, where: str, **arguments: object) -> object:
    """Import `module:function` and return what it returns.

    The function gets those of the keyword `arguments` that it takes.

    Raises:
        InputError: as `import_function`; also if the function raises, with what it raised.
    """
    function = import_function(reference, where)
    try:
        with _importable_current_directory():
            return function(**_accepted(function, arguments))
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise InputError(where, reference, f"the function raised {describe(error)}") from error


def _accepted(function: Callable[..., Any], arguments: dict[str, object]) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {key: value for key, value in arguments.items() if key in names}


@contextmanager
def _importable_current_directory() -> Iterator[None]:
    """Put the current directory first on the import path, as `python -m` does; then undo it."""
    directory = os.getcwd()
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        if directory in sys.path:  # the user's module may have changed it
            sys.path.remove(directory)
