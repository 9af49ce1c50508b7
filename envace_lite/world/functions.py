"""Tools from what a person has: a typed function over a state, a method of a class, an async function, a JSON schema.

What is simplified against a tool server: a call runs in this process, to its end; there is no timeout and no sandbox.
Arguments come from a model, so they are validated against the schema before the function sees them, and an exception
of any class is a result, not the end of the program.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, get_type_hints

from jsonschema import Draft202012Validator
from transformers.utils import get_json_schema

from envace_lite.world.result import JSON, NotJSON, Result, as_json
from envace_lite.world.tools import Tool, ToolError

BAD_ARGUMENTS = "BadArguments"
"""The error of a call whose arguments do not fit the tool's schema."""


class DomainError(ValueError):
    """A domain cannot be made from what was given; the message names the place and what to do."""


def where(function: Callable[..., Any]) -> str:
    """File and line of a function, as `tools.py:12`; its name where it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if code else repr(function)


class FunctionTool(Tool):
    """Any typed function as a tool. Its first parameter is the state, which it may change; the others are the call's.

    Args:
        name: what the policy calls it.
        function: typed, with a Google-style docstring that describes each argument. If its only argument is a pydantic
            model, that model is the schema. It may be `async`.
        write: whether a call can change the state.
        schema: the JSON schema of the arguments with the keys `description` and `parameters`, in place of one that is
            read from the function.

    Raises:
        DomainError: naming file and line of a function without types or with an undocumented argument.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        write: bool = True,
        owner: str = "agent",
        schema: Mapping[str, Any] | None = None,
    ):
        super().__init__(name, function, write=write, owner=owner)
        self._model = _pydantic_model(function)
        self._given = dict(schema) if schema is not None else None
        self.schema  # noqa: B018 (what is wrong with a function is said when the tool is made)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema in the form of the `tools` column."""
        if self._given is not None:
            body = {"description": "", "parameters": {"type": "object", "properties": {}}, **self._given}
        elif self._model is not None:
            text = inspect.cleandoc(self.function.__doc__ or "").split("\n\n")[0]
            body = {"description": text, "parameters": self._model.model_json_schema()}
        else:
            body = _read_schema(self.function)
        return {"type": "function", "function": {**body, "name": self.name}}

    @property
    def kinds(self) -> dict[str, str]:
        """Parameter names, each of a kind of its own: values are drawn from those that a parameter has had."""
        return {name: name for name in self.schema["function"]["parameters"].get("properties", {})}

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator({"additionalProperties": False, **self.schema["function"]["parameters"]})

    def call(self, state: Any, arguments: Mapping[str, JSON]) -> Result:
        """Validate and run. Nothing is raised; a function that fails may leave `state` half changed."""
        given = copy.deepcopy(dict(arguments))  # the function may keep or change them
        wrong = next(self._validator.iter_errors(given), None)
        if wrong is not None:
            return Result(None, BAD_ARGUMENTS, wrong.message)
        try:
            made = (
                self.function(state, self._model(**given)) if self._model else self.function(state, **given)
            )
            value = as_json(awaited(made) if inspect.isawaitable(made) else made)
        except ToolError as error:
            return Result(None, error.rule)
        except NotJSON as error:
            return Result(None, "NotJSON", str(error))
        except Exception as error:
            return failure(error)
        # Many real tools return their errors, as {"error": ...}.
        if isinstance(value, dict) and set(value) == {"error"} and isinstance(value["error"], str):
            return Result(None, value["error"])
        return Result(value)


def failure(error: BaseException) -> Result:
    """An exception as a result: its class and its text."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return Result(None, type(error).__name__, str(text))


def _pydantic_model(function: Callable[..., Any]) -> Any:
    """The pydantic model that is the only argument of a function beside the state, if it is so."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    try:
        annotation = get_type_hints(function).get(parameters[0].name) if len(parameters) == 1 else None
    except NameError:
        return None
    return annotation if hasattr(annotation, "model_json_schema") else None


def _read_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """`description` and `parameters` from the hints and the docstring of a function, without its first parameter."""
    signature = inspect.signature(function)
    if not signature.parameters:
        raise DomainError(f"{where(function)}: {function.__name__} needs a first parameter, the state")
    state, *parameters = signature.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters):
        raise DomainError(f"{where(function)}: {function.__name__} has parameters that a call cannot name")

    def described() -> None: ...

    try:
        hints = {name: hint for name, hint in get_type_hints(function).items() if name != state.name}
        described.__name__, described.__doc__, described.__annotations__ = (
            function.__name__,
            inspect.getdoc(function),
            hints,
        )
        described.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        schema: dict[str, Any] = get_json_schema(described)["function"]
    except Exception as error:
        # transformers has an exception of its own for each case, and a hint may name what does not exist.
        raise DomainError(
            f"{where(function)}: {function.__name__} does not say what it takes ({error}); give every argument a type "
            "and a line in the `Args:` of a Google-style docstring"
        ) from error
    return {"description": schema["description"], "parameters": schema["parameters"]}


def awaited(coroutine: Any) -> Any:
    """What a coroutine returns, also where an event loop already runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(as_coroutine(coroutine))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, as_coroutine(coroutine)).result()


async def as_coroutine(awaitable: Awaitable[Any]) -> Any:
    """An awaitable of any kind as a coroutine, which is what event loops take."""
    return await awaitable
