"""Prompts, resources, and suggestions for arguments, which an agent's server offers in addition to tools.

Rules:

1. Nothing is offered automatically: only the passed functions (as prompts), and files and functions (as resources).
2. An invalid offer is refused when the server is created. A client's invalid request is answered with an error of the
   protocol (`INVALID_PARAMS`). If a function fails, the answer has the type and message of its error, without passwords.
3. A client's values in a URI cannot lead out of a folder: `..` and absolute paths are refused.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic_core import to_json

from agentflow._support.media import type_of_name
from agentflow._support.shown import described, one_line
from agentflow._support.values import frozen
from agentflow.errors import UsageError
from agentflow.loop.run import current_turn
from agentflow.mcp.sdk import (
    InvalidUriTemplate,
    MCPError,
    UriTemplate,
    anyio,
    contains_path_traversal,
    is_absolute_path,
    types,
)
from agentflow.tools.results import render
from agentflow.tools.schema import read_docstring
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock

T = TypeVar("T")
Request: TypeAlias = Any
PromptResult: TypeAlias = str | Msg | Sequence[str | Msg]
PromptFunction: TypeAlias = Callable[..., PromptResult | Awaitable[PromptResult]]
"""A function as a prompt with its name and docstring; its parameters are strings. It returns a string or messages, and may be
async."""
ResourceSource: TypeAlias = Path | Callable[..., Any]
"""A file, or a function (sync or async) of the URI's `{names}` that returns a string, bytes, a `DataBlock`, messages, or a
value with a JSON form."""

_MAX_BYTES = 16 * 1024 * 1024
_MAX_SUGGESTIONS = 100
"""The protocol's limit."""


@frozen
class Suggest:
    """Marks an argument of a prompt or a URI for which values are suggested: `Annotated[str, Suggest(cities)]`.

    For arguments of a `Literal` type, the legal values are suggested without a `Suggest`.

    Attributes:
        values: A function (sync or async) of the text that the user has typed so far; it returns values, best first.
    """

    values: Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]


@frozen
class _Argument:
    """An argument of a prompt or a URI; `choices` are its legal values, if they are limited."""

    name: str
    description: str | None
    required: bool
    choices: tuple[str, ...] | None
    suggest: Suggest | None

    @property
    def suggests(self) -> bool:
        return self.choices is not None or self.suggest is not None

    async def suggested(self, typed: str) -> list[str]:
        if self.choices is not None:
            return [value for value in self.choices if value.casefold().startswith(typed.casefold())]
        if self.suggest is None:
            return []
        return [str(value) for value in await _result(self.suggest.values, typed)]


@frozen
class _OfferedFunction:
    """A function that a client may call by name, with strings as arguments."""

    name: str
    function: Callable[..., Any]
    description: str | None
    arguments: tuple[_Argument, ...]

    async def __call__(self, values: Mapping[str, str]) -> Any:
        known = {arg.name: arg for arg in self.arguments}
        unknown, missing = (
            sorted(set(values) - set(known)),
            [a.name for a in self.arguments if a.required and a.name not in values],
        )
        if unknown or missing:
            raise _invalid(f"{self.name}: missing {missing}, unknown {unknown}; it takes {sorted(known)}")
        for name, value in values.items():
            choices = known[name].choices
            if choices is not None and value not in choices:
                raise _invalid(f"{self.name}: {name} must be one of {list(choices)}")
        try:
            return await in_own_task(_result(self.function, **values))
        except MCPError:  # the function raised an error of the protocol itself
            raise
        except Exception as error:
            raise MCPError(types.INTERNAL_ERROR, f"{self.name} failed: {described(error)}") from error


class Prompts:
    """An agent's prompts by name.

    Args:
        functions: Functions as prompts.

    Raises:
        UsageError: A function is not a valid prompt, or two have the same name.
    """

    def __init__(self, functions: Iterable[PromptFunction]) -> None:
        self.functions: dict[str, _OfferedFunction] = {}
        for function in functions:
            offered = _function(function, "prompts")
            if offered.name in self.functions:
                raise UsageError(f"prompts: two are named {offered.name!r}. Rename one of the functions.")
            self.functions[offered.name] = offered

    async def list(self, context: Request, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        """List the prompts."""
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=prompt.name,
                    description=prompt.description,
                    arguments=[
                        types.PromptArgument(name=arg.name, description=arg.description, required=arg.required)
                        for arg in prompt.arguments
                    ],
                )
                for prompt in self.functions.values()
            ]
        )

    async def get(self, context: Request, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Return a prompt with its arguments filled in."""
        function = self.functions.get(params.name)
        if function is None:
            raise _invalid(f"There is no prompt {one_line(params.name[:200])!r} here")
        content = await function(params.arguments or {})
        several = cast("Sequence[object]", content if isinstance(content, list | tuple) else [content])
        return types.GetPromptResult(
            description=function.description,
            messages=[part for msg in several for part in _prompt_messages(function.name, msg)],
        )


class Resources:
    """Files and functions by URI.

    Args:
        sources: Files and functions by URI, such as `"notes://today"`, or `"notes://{day}"` for a function of `day`.

    Raises:
        UsageError: A URI or its source is invalid.
    """

    def __init__(self, sources: Mapping[str, ResourceSource]) -> None:
        self.fixed: dict[str, Path | _OfferedFunction] = {}
        self.templates: dict[str, tuple[UriTemplate, _OfferedFunction]] = {}
        for uri, source in sources.items():
            self._add(uri, source)

    def _add(self, uri: str, source: ResourceSource) -> None:
        where = f"resources[{uri!r}]"
        if not uri.partition("://")[0] or "://" not in uri:
            raise UsageError(f"{where}: a URI must begin with a scheme, such as notes://today.")
        try:
            template = UriTemplate.parse(uri)
        except InvalidUriTemplate as error:
            raise UsageError(f"{where}: {one_line(str(error))}") from error
        names = template.variable_names
        if isinstance(source, Path):
            if names:
                raise UsageError(f"{where}: the URI of a file must not contain {{names}}. Pass a function of {names}.")
            self.fixed[uri] = source
            return
        if not callable(cast("object", source)):
            raise UsageError(f"{where}: pass a pathlib.Path for a file, or a function, not {type(source).__name__}.")
        function = _function(source, where)
        if sorted(arg.name for arg in function.arguments) != sorted(names) or any(
            v.explode for v in template.variables
        ):
            raise UsageError(f"{where}: the function's parameters must be those of the URI, {names}.")
        if names:
            self.templates[uri] = (template, function)
        else:
            self.fixed[uri] = function

    async def list(self, context: Request, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """List the resources with a fixed URI."""
        listed: list[types.Resource] = []
        for uri, source in self.fixed.items():
            if isinstance(source, Path):
                listed.append(types.Resource(uri=uri, name=source.name, mime_type=type_of_name(source.name)))
            else:
                listed.append(types.Resource(uri=uri, name=source.name, description=source.description))
        return types.ListResourcesResult(resources=listed)

    async def list_templates(
        self, context: Request, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """List the resources with a URI template."""
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=function.name, description=function.description)
                for uri, (_, function) in self.templates.items()
            ]
        )

    async def read(self, context: Request, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Read a resource."""
        uri = params.uri
        source = self.fixed.get(uri)
        if isinstance(source, Path):
            return types.ReadResourceResult(contents=[await _file(uri, source)])
        if source is not None:
            return types.ReadResourceResult(contents=_contents(uri, await source({})))
        for template, function in self.templates.values():
            found = template.match(uri)
            if found is not None:
                values = cast("dict[str, str]", found)
                for name, value in values.items():
                    if "\0" in value or contains_path_traversal(value) or is_absolute_path(value):
                        raise _invalid(f"In {one_line(uri[:200])!r}, {name} leads out of a folder")
                return types.ReadResourceResult(contents=_contents(uri, await function(values)))
        raise _invalid(f"There is no resource {one_line(uri[:200])!r} here")


def completion_handler(
    prompts: Prompts, resources: Resources
) -> Callable[[Request, types.CompleteRequestParams], Coroutine[Any, Any, types.CompleteResult]] | None:
    """Create the handler for requests for suggestions; None if no argument has any."""
    by_name, by_uri = prompts.functions, {uri: template for uri, (_, template) in resources.templates.items()}
    if not any(arg.suggests for function in (*by_name.values(), *by_uri.values()) for arg in function.arguments):
        return None

    async def complete(context: Request, params: types.CompleteRequestParams) -> types.CompleteResult:
        ref = params.ref
        function = by_name.get(ref.name) if isinstance(ref, types.PromptReference) else by_uri.get(ref.uri)
        if function is None:
            raise _invalid("There is no such prompt or URI here")
        found = [arg for arg in function.arguments if arg.name == params.argument.name]
        if not found:
            raise _invalid(f"{function.name} has no such argument")
        try:
            values = await in_own_task(found[0].suggested(params.argument.value))
        except Exception as error:
            raise MCPError(types.INTERNAL_ERROR, f"{function.name} failed: {described(error)}") from error
        shown = values[:_MAX_SUGGESTIONS]
        return types.CompleteResult(
            completion=types.Completion(values=shown, total=len(values), has_more=len(values) > len(shown))
        )

    return complete


async def in_own_task(work: Coroutine[Any, Any, T]) -> T:
    """Run a call in its own task: otherwise the server, which repeats a cancellation, would interrupt the cleanup."""
    context = copy_context()
    context.run(current_turn.set, None)  # if the server runs inside an agent's tool, the call is independent of it
    task = asyncio.get_running_loop().create_task(work, context=context)
    try:
        # `wait` does not pass a cancellation on to the task; `finally` does, once.
        await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            # anyio cancels a scope's tasks again at each await, which would interrupt this wait.
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
    return task.result()


def content_of(block: TextBlock | DataBlock) -> types.ContentBlock:
    """Convert a block for the protocol."""
    if isinstance(block, TextBlock):
        return types.TextContent(text=block.text)
    if block.data is None:
        return types.TextContent(text=block.url or "")
    if block.media_type.startswith("image/"):
        return types.ImageContent(data=block.data, mime_type=block.media_type)
    if block.media_type.startswith("audio/"):
        return types.AudioContent(data=block.data, mime_type=block.media_type)
    # MCP requires a URI, but such data has no address.
    resource = types.BlobResourceContents(uri=f"data:{block.name or ''}", mime_type=block.media_type, blob=block.data)
    return types.EmbeddedResource(resource=resource)


# ---- functions


def _function(function: Callable[..., Any], where: str) -> _OfferedFunction:
    name = getattr(function, "__name__", "")
    # A prompt needs a name for the list; a resource is listed by its URI, so it may be a lambda.
    if not callable(cast("object", function)) or not name or (name == "<lambda>" and where == "prompts"):
        raise UsageError(f"{where}: {function!r} is not a function with a name.")
    text, descriptions = read_docstring(function.__doc__)
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(f"{where}: the annotations of {name} cannot be resolved ({error}).") from error
    arguments: list[_Argument] = []
    for param in inspect.signature(function).parameters.values():
        if param.kind not in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY):
            raise UsageError(f"{where}: {name}({param}) has no name of its own. Declare each parameter by name.")
        arguments.append(_argument(param, hints.get(param.name, str), descriptions.get(param.name), f"{where}: {name}"))
    return _OfferedFunction(name, function, text or None, tuple(arguments))


def _argument(param: inspect.Parameter, kind: Any, description: str | None, where: str) -> _Argument:
    suggest: Suggest | None = None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        suggest = next((note for note in notes if isinstance(note, Suggest)), None)
    choices = cast("tuple[str, ...]", get_args(kind)) if get_origin(kind) is Literal else None
    if kind is not str and (
        choices is None or not all(isinstance(choice, str) for choice in cast("tuple[object, ...]", choices))
    ):
        raise UsageError(
            f"{where}: {param.name} must be a str, or a Literal of strings: the protocol has no other arguments."
        )
    return _Argument(param.name, description, param.default is param.empty, choices, suggest)


async def _result(function: Callable[..., Any], *args: str, **kwargs: str) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _invalid(text: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, f"{text}.")


# ---- results


def _prompt_messages(name: str, content: object) -> list[types.PromptMessage]:
    message = Msg.user(content) if isinstance(content, str) else content
    if not isinstance(message, Msg) or message.role not in ("user", "assistant"):
        raise MCPError(
            types.INTERNAL_ERROR,
            f"{name} did not return a prompt: a string, or messages of the user and the assistant.",
        )
    return [
        types.PromptMessage(role=message.role, content=content_of(block))
        for block in message.content
        if isinstance(block, TextBlock | DataBlock)
    ]


def _contents(uri: str, value: Any) -> list[types.TextResourceContents | types.BlobResourceContents]:
    if isinstance(value, bytes):
        value = DataBlock("application/octet-stream", data=base64.b64encode(value).decode())
    if isinstance(value, DataBlock):
        if value.data is None:
            return [types.TextResourceContents(uri=uri, mime_type="text/uri-list", text=value.url or "")]
        return [types.BlobResourceContents(uri=uri, mime_type=value.media_type, blob=value.data)]
    if isinstance(value, str):
        return [types.TextResourceContents(uri=uri, mime_type="text/plain", text=value)]
    if isinstance(value, list | tuple) and all(isinstance(msg, Msg) for msg in cast("Sequence[object]", value)):
        value = [msg.to_dict() for msg in cast("Sequence[Msg]", value)]
        return [types.TextResourceContents(uri=uri, mime_type="application/json", text=to_json(value).decode())]
    rendered = render(cast("object", value))
    if isinstance(rendered, str):
        return [types.TextResourceContents(uri=uri, mime_type="application/json", text=rendered)]
    return [
        part for block in rendered for part in _contents(uri, block.text if isinstance(block, TextBlock) else block)
    ]


async def _file(uri: str, path: Path) -> types.TextResourceContents | types.BlobResourceContents:
    def read() -> bytes:
        if not path.is_file():  # reading a pipe or a device might never end
            raise OSError("it is not a file")
        with path.open("rb") as file:
            # One byte more than the limit, to detect a file that is too large.
            return file.read(_MAX_BYTES + 1)

    try:
        data = await asyncio.to_thread(read)
    except OSError as error:
        reason = error.strerror or str(error)  # not the path, which clients must not see
        raise MCPError(types.INTERNAL_ERROR, f"{uri} cannot be read: {reason}.") from error
    if len(data) > _MAX_BYTES:
        raise MCPError(types.INTERNAL_ERROR, f"{uri} cannot be read: it has more than {_MAX_BYTES} bytes.")
    kind = type_of_name(path.name)
    # A file of an unknown type is text if it can be decoded.
    if kind is None or kind.startswith("text/") or kind in ("application/json", "application/xml", "image/svg+xml"):
        try:
            return types.TextResourceContents(uri=uri, mime_type=kind or "text/plain", text=data.decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(
        uri=uri, mime_type=kind or "application/octet-stream", blob=base64.b64encode(data).decode()
    )
