"""A model of one's own with its provider, and the same with one planted defect each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from agentflow.errors import ModelError
from agentflow.testing.check_model import ModelFlaw
from agentflow.testing.model_scenes import ModelScene, StagedModel
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.ports.model import ModelRequest


class Provider:
    """Plays a scene to any number of clients."""

    def __init__(self, scene: ModelScene) -> None:
        self.scene = scene
        self.open = 0
        self.sent: dict[str, Any] = {}

    async def lines(self, **request: Any) -> AsyncIterator[Any]:
        self.sent = request
        scene = self.scene
        if scene.ends == "busy":
            raise ConnectionRefusedError(scene.retry_after)
        if scene.ends == "refused":
            raise PermissionError("no")
        for piece in scene.chunks:
            await asyncio.sleep(0)
            yield piece
        if scene.ends == "torn":
            raise ConnectionResetError
        if scene.ends == "silent":
            await asyncio.Event().wait()
        for call in enumerate(scene.calls):
            yield call
        yield scene.finish_reason, scene.usage


class Mine:
    """A model of one's own."""

    name = "mine"

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def options(self, request: ModelRequest) -> dict[str, Any]:
        given = request.options
        return {
            "temperature": given.temperature,
            "max_tokens": given.max_tokens,
            "top_p": given.top_p,
            "stop": given.stop,
            "seed": given.seed,
        }

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.provider.open += 1
        try:
            async for line in self.provider.lines(**self.options(request)):
                yield self.chunk(line)
        except (OSError, RuntimeError) as error:
            raise self.failure(error) from error
        finally:
            await self.hang_up()

    def chunk(self, line: Any) -> Any:
        match line:
            case str():
                return ModelChunk(line)
            case (int(n), call):
                return ModelChunk(tool_uses=(ToolUseDelta(n, call.id, call.name, call.arguments),))
            case (finish_reason, usage):
                return ModelChunk(usage=usage, finish_reason=finish_reason)
            case _:
                raise AssertionError(line)

    def failure(self, error: Exception) -> Exception:
        if isinstance(error, ConnectionRefusedError):
            return ModelError("busy", retryable=True, retry_after=error.args[0])
        return ModelError(str(error), retryable=isinstance(error, ConnectionResetError))

    async def hang_up(self) -> None:
        self.provider.open -= 1


class Dicts(Mine):
    """Gives dictionaries."""

    def chunk(self, line: Any) -> Any:
        return {"text": line}


class Loses(Mine):
    """Loses spaces."""

    def chunk(self, line: Any) -> Any:
        return super().chunk(line.strip() if isinstance(line, str) else line)


class Uncounted(Mine):
    """Does not tell the tokens."""

    def chunk(self, line: Any) -> Any:
        made = super().chunk(line)
        return ModelChunk(finish_reason=made.finish_reason) if made.finish_reason else made


class Endless(Mine):
    """Does not tell why the reply ended."""

    def chunk(self, line: Any) -> Any:
        made = super().chunk(line)
        return ModelChunk(usage=made.usage) if made.finish_reason else made


class Renames(Mine):
    """Gives ids of its own."""

    def chunk(self, line: Any) -> Any:
        match line:
            case (int(n), call):
                return ModelChunk(tool_uses=(ToolUseDelta(n, f"own_{n}", call.name, call.arguments),))
            case _:
                return super().chunk(line)


class FirstIndex(Mine):
    """Numbers every call 0, and relies on ids to tell them apart."""

    def chunk(self, line: Any) -> Any:
        match line:
            case (int(), call):
                return ModelChunk(tool_uses=(ToolUseDelta(0, call.id, call.name, call.arguments),))
            case _:
                return super().chunk(line)


class Mends(Mine):
    """Makes an empty object of what is no JSON."""

    def chunk(self, line: Any) -> Any:
        match line:
            case (int(n), call) if not call.arguments.endswith("}"):
                return ModelChunk(tool_uses=(ToolUseDelta(n, call.id, call.name, "{}"),))
            case _:
                return super().chunk(line)


class Apologises(Mine):
    """Says something where nothing was said."""

    def chunk(self, line: Any) -> Any:
        made = super().chunk(line)
        if made.finish_reason == "stop" and not self.provider.scene.chunks:
            return ModelChunk("(no answer)", usage=made.usage, finish_reason="stop")
        return made


class HalfIsEnough(Mine):
    """Takes the half of a reply for the whole."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super().stream(request):
                yield chunk
        except ModelError as error:
            if not isinstance(error.__cause__, ConnectionResetError):
                raise


class Raw(Mine):
    """Raises what its library raises."""

    def failure(self, error: Exception) -> Exception:
        return error if isinstance(error, PermissionError) else super().failure(error)


class Hopeful(Mine):
    """Says of every failure that it may pass."""

    def failure(self, error: Exception) -> Exception:
        found = super().failure(error)
        return ModelError(str(found), retryable=True, retry_after=getattr(found, "retry_after", None))


class Forgetful(Mine):
    """Loses the requested wait."""

    def failure(self, error: Exception) -> Exception:
        found: Any = super().failure(error)
        return ModelError(str(found), retryable=found.retryable)


class NoFinally(Mine):
    """Closes its connection only after a reply that completed, or failed."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.provider.open += 1
        try:
            async for line in self.provider.lines(**self.options(request)):
                yield self.chunk(line)
        except (OSError, RuntimeError) as error:
            self.provider.open -= 1
            raise self.failure(error) from error
        self.provider.open -= 1


class Stubborn(Mine):
    """Makes a failure of a cancellation."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super().stream(request):
                yield chunk
        except asyncio.CancelledError:
            raise ModelError("cut") from None


class OneBuffer(Mine):
    """Keeps the reply that it reads on itself."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.words = ""
        async for chunk in super().stream(request):
            self.words += chunk.text
            if chunk.finish_reason:
                yield ModelChunk(self.words)
            yield (
                ModelChunk(tool_uses=chunk.tool_uses, usage=chunk.usage, finish_reason=chunk.finish_reason)
                if not chunk.text or not self.reads_on()
                else chunk
            )

    def reads_on(self) -> bool:
        return self.provider.scene.ends != "well"


class OneLoop(Mine):
    """Has a queue of the first loop it meets."""

    loop: Any = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        here = asyncio.get_running_loop()
        self.loop = self.loop or here
        if self.loop is not here:
            raise RuntimeError("bound to a different event loop")
        async for chunk in super().stream(request):
            yield chunk


class Deaf(Mine):
    """Does not send how long a reply may be."""

    def options(self, request: ModelRequest) -> dict[str, Any]:
        return {**super().options(request), "max_tokens": None}


class NeverEmpty(Mine):
    """Waits for words that do not come."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider)
        self.silent = not (provider.scene.chunks or provider.scene.calls or provider.scene.ends != "well")

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        if self.silent:
            await asyncio.Event().wait()
        async for chunk in super().stream(request):
            yield chunk


def provider(model: Callable[[Provider], Any]) -> Callable[[ModelScene], StagedModel]:
    """Plays scenes to a model of this class."""

    def play(scene: ModelScene) -> StagedModel:
        plays = Provider(scene)
        return StagedModel(model(plays), lambda: plays.open, lambda: plays.sent)

    return play


DEFECTS: list[tuple[ModelFlaw, type[Mine]]] = [
    ("chunks", Dicts),
    ("fold", Loses),
    ("usage", Uncounted),
    ("finish", Endless),
    ("ids", Renames),
    ("ids", FirstIndex),
    ("arguments", Mends),
    ("empty", Apologises),
    ("torn", HalfIsEnough),
    ("errors", Raw),
    ("errors", Hopeful),
    ("errors", Forgetful),
    ("closing", NoFinally),
    ("cancellation", Stubborn),
    ("concurrency", OneBuffer),
    ("loops", OneLoop),
    ("options", Deaf),
    ("hang", NeverEmpty),
]
"""Kind, model."""
