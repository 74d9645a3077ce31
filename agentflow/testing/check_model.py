"""`check_model`: a conformance suite for models.

A simulated provider plays scenes, and the suite checks the model's output. The findings are typed values.

Rules:

1. The author of the model provides the function that plays scenes; a scene that it cannot play is skipped, with a note.
2. A check that depends on a failed check is skipped, with a note.
3. Checks use real time and real loops, since connections are real. No check awaits longer than `timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from agentflow._support.json_text import read_json_text
from agentflow._support.time_limit import strict
from agentflow._support.validation import is_a
from agentflow.errors import ModelError, UsageError
from agentflow.reactive.iterators import close
from agentflow.testing.findings import ConformanceReport
from agentflow.testing.model_scenes import SCENES, ModelScene, StagedModel
from agentflow.testing.suite import CheckSkipped, FlawFound, Suite, expect_equal, in_threads, no_loop_here
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

ModelFlaw: TypeAlias = Literal[
    "arguments",
    "cancellation",
    "chunks",
    "closing",
    "concurrency",
    "empty",
    "errors",
    "finish",
    "fold",
    "hang",
    "ids",
    "loops",
    "options",
    "torn",
    "usage",
]
"""The kinds of flaws; `docs/testing-models.md` describes each one and its fix."""

Play: TypeAlias = "Callable[[ModelScene], Model | StagedModel | AbstractContextManager[Model | StagedModel] | None]"
"""Creates a model whose provider plays a scene, or returns None if this is not possible."""

# Values that do not occur in a request by chance.
_OPTIONS: Mapping[str, Any] = {
    "temperature": 0.375,
    "max_tokens": 77,
    "top_p": 0.625,
    "stop": ("THE-END",),
    "seed": 4242,
}


class ModelReport(ConformanceReport[ModelFlaw]):
    """The results of `check_model` for one model."""

    __slots__ = ()


def check_model(play: Play, *, timeout: float = 10.0) -> ModelReport:
    """Check a model, and report its flaws.

    Args:
        play: Creates a model whose provider plays a scene, optionally as a context manager.
        timeout: Seconds after which a check counts as hanging.

    Returns:
        The report; `report.assert_clean()` raises an error with its text.

    Raises:
        UsageError: An event loop runs in this thread (use `check_model_async` there).

    Example:
        >>> def play(scene):
        ...     if scene.name == "words":
        ...         return ScriptedModel(lambda request: [*scene.chunks, ModelChunk(usage=scene.usage)])
        >>> report = check_model(play)
        >>> report.kinds
        frozenset()
    """
    no_loop_here("check_model")
    return _Scenes(play, timeout).report()


async def check_model_async(play: Play, *, timeout: float = 10.0) -> ModelReport:
    """Run `check_model` in a thread, for use in coroutines.

    Args:
        play: As in `check_model`.
        timeout: As in `check_model`.
    """
    return await asyncio.to_thread(check_model, play, timeout=timeout)


class _Trial:
    """The context of a check: the model and its scene."""

    def __init__(self, scene: ModelScene, staged: StagedModel, timeout: float) -> None:
        self.scene = scene
        self.model, self.open_connections, self.sent = staged
        self.promptly = timeout / 3  # so that a flaw is found before the check counts as hanging

    def request(self, options: ModelOptions | None = None) -> ModelRequest:
        """Build a request that contains the scene's content, so that an echoing model can play the scene too."""
        tools = tuple(ToolSpec(call.name, "A tool.") for call in self.scene.calls)
        message = Msg.user(self.scene.text or "Please.")
        return ModelRequest([message], tools, options or ModelOptions(), self.model.name)

    @asynccontextmanager
    async def stream(self, options: ModelOptions | None = None) -> AsyncGenerator[AsyncIterator[ModelChunk]]:
        chunks = self.model.stream(self.request(options))
        try:
            yield chunks
        finally:
            await close(chunks)

    async def reply(self, options: ModelOptions | None = None) -> Msg:
        """Return the complete reply."""
        async with self.stream(options) as chunks:
            return fold([chunk async for chunk in chunks])

    async def first_words(self, chunks: AsyncIterator[ModelChunk]) -> None:
        """Read up to the first text."""
        async for chunk in chunks:
            if chunk.text:
                return

    async def closed(self, kind: ModelFlaw, message: str) -> None:
        """Report a flaw if a connection stays open."""
        if self.open_connections is None:
            raise CheckSkipped("the number of open connections is unknown: pass StagedModel(open_connections=)")
        try:
            async with asyncio.timeout(self.promptly):
                while self.open_connections():  # noqa: ASYNC110 - the number can only be polled
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise FlawFound(kind, message, f"{self.open_connections()} are open") from None

    def same(self, kind: ModelFlaw, found: object, wanted: object, message: str) -> None:
        """Report a flaw unless the values are equal."""
        expect_equal(kind, message, found, wanted)


# ---- checks


async def _chunks(trial: _Trial) -> None:
    """The items of the stream are chunks, and the model has a name."""
    async with trial.stream() as chunks:
        async for chunk in chunks:
            if not is_a(chunk, ModelChunk):
                raise FlawFound("chunks", "yields an item that is not a ModelChunk", repr(chunk))
    name = cast("object", trial.model.name)
    if not isinstance(name, str) or not name:
        raise FlawFound("chunks", "has no name", repr(name))


async def _fold(trial: _Trial) -> None:
    """The chunks fold to the reply, for every request."""
    for _ in range(2):  # the second reply would show state that remains from the first
        reply = await trial.reply()
        trial.same("fold", reply.text, trial.scene.text, "yields chunks that do not fold to the provider's text")
        found = [(use.name, dict(use.input)) for use in reply.tool_uses]
        wanted = [(call.name, read_json_text(call.arguments)) for call in trial.scene.calls]
        trial.same("fold", found, wanted, "yields chunks that do not fold to the provider's tool calls")


async def _usage(trial: _Trial) -> None:
    """The reply has its usage."""
    usage = (await trial.reply()).usage
    found = None if usage is None else (usage.input_tokens, usage.output_tokens)
    wanted = (trial.scene.usage.input_tokens, trial.scene.usage.output_tokens)
    trial.same("usage", found, wanted, "does not report the provider's token counts")


async def _finish(trial: _Trial) -> None:
    """The reply has its finish reason."""
    found = (await trial.reply()).finish_reason
    trial.same("finish", found, trial.scene.finish_reason, "does not report the finish reason")


async def _ids(trial: _Trial) -> None:
    """The provider's ids are kept."""
    found = [use.id for use in (await trial.reply()).tool_uses]
    trial.same("ids", found, [call.id for call in trial.scene.calls], "changes the provider's ids")


async def _no_ids(trial: _Trial) -> None:
    """Calls without ids stay separate."""
    uses = (await trial.reply()).tool_uses
    names = [call.name for call in trial.scene.calls]
    trial.same("ids", [use.name for use in uses], names, "mixes calls without ids")
    if len({use.id for use in uses}) != len(uses):
        raise FlawFound("ids", "uses one id for several calls", repr([use.id for use in uses]))


async def _arguments(trial: _Trial) -> None:
    """Arguments that are not JSON are kept as text."""
    uses = (await trial.reply()).tool_uses
    found = [(use.raw, use.input_error is not None) for use in uses]
    wanted = [(call.arguments, True) for call in trial.scene.calls]
    trial.same("arguments", found, wanted, "changes arguments that are not JSON")


async def _empty(trial: _Trial) -> None:
    """An empty reply is legal, and stays empty."""
    reply = await trial.reply()
    trial.same("empty", (reply.text, reply.tool_uses), ("", ()), "adds content to an empty reply")


async def _torn(trial: _Trial) -> None:
    """An incomplete reply is an error."""
    try:
        reply = await trial.reply()
    except ModelError as error:
        if not error.retryable:
            raise FlawFound("torn", "sets retryable=False for a broken connection", repr(error)) from error
        return
    raise FlawFound("torn", "treats an incomplete reply as complete", reply.text)


async def _busy(trial: _Trial) -> None:
    """A busy provider's retry hint is reported."""
    error = await _failure(trial)
    hints = (error.retryable, error.retry_after)
    trial.same("errors", hints, (True, trial.scene.retry_after), "does not report retryable and retry_after")


async def _refused(trial: _Trial) -> None:
    """An invalid request is not retryable."""
    error = await _failure(trial)
    trial.same("errors", error.retryable, False, "sets retryable=True for an invalid request")


async def _failure(trial: _Trial) -> ModelError:
    try:
        reply = await trial.reply()
    except ModelError as error:
        return error
    except Exception as error:
        message = f"fails with {type(error).__name__} instead of a ModelError"
        raise FlawFound("errors", message, f"{trial.scene.name}: {error!r}") from error
    raise FlawFound("errors", "turns the provider's error into a reply", f"{trial.scene.name}: {reply.text!r}")


async def _closing(trial: _Trial) -> None:
    """Closing the stream releases the connection."""
    chunks = trial.model.stream(trial.request())
    await trial.first_words(chunks)
    try:
        async with strict(asyncio.timeout(trial.promptly)):
            await close(chunks)
    except TimeoutError:
        raise FlawFound("closing", "does not return from aclose() while the provider is silent") from None
    except Exception as error:
        raise FlawFound("closing", f"fails with {type(error).__name__} on aclose()", repr(error)) from error
    await trial.closed("closing", "keeps its connection after aclose()")


async def _cancellation(trial: _Trial) -> None:
    """Cancelling the reader stops the stream immediately, and releases the connection."""
    started = asyncio.Event()

    async def read() -> None:
        async with trial.stream() as chunks:
            await trial.first_words(chunks)
            started.set()
            async for _ in chunks:
                pass

    task = asyncio.ensure_future(read())
    await started.wait()
    for _ in range(5):
        await asyncio.sleep(0)  # let it wait for the next chunk
    task.cancel()
    if not (await asyncio.wait({task}, timeout=trial.promptly))[0]:
        raise FlawFound("cancellation", "continues although its reader was cancelled")
    if not task.cancelled():
        raise FlawFound("cancellation", "turns a cancellation into another error", repr(task.exception()))
    await trial.closed("cancellation", "keeps its connection after a cancellation")


async def _concurrency(trial: _Trial) -> None:
    """Two concurrent streams are independent."""
    async with trial.stream() as one, trial.stream() as two:
        streams, read = [one, two], [list[ModelChunk](), list[ModelChunk]()]
        while streams.count(one) or streams.count(two):
            for stream in list(streams):
                try:
                    read[0 if stream is one else 1].append(await anext(stream))
                except StopAsyncIteration:
                    streams.remove(stream)
    found = [fold(chunks).text for chunks in read]
    trial.same("concurrency", found, [trial.scene.text] * 2, "mixes two concurrent replies")


async def _options(trial: _Trial) -> None:
    """An option is sent or refused."""
    if trial.sent is None:
        raise CheckSkipped("the sent request is unknown: pass StagedModel(sent=)")
    lost: list[str] = []
    for name, value in _OPTIONS.items():
        try:
            await trial.reply(ModelOptions(**{name: value}))
        except (UsageError, ModelError):
            continue
        if not _within("THE-END" if name == "stop" else value, trial.sent()):
            lost.append(name)
    allowed = {"seed"}  # not all providers support it, and omitting it does no harm
    if lost := [name for name in lost if name not in allowed]:
        raise FlawFound("options", "neither sends nor refuses options", ", ".join(lost))


def _within(value: object, data: object) -> bool:
    """Whether a value occurs anywhere in data."""
    if isinstance(data, Mapping):
        return any(_within(value, item) for item in cast("Mapping[Any, object]", data).values())
    if isinstance(data, list | tuple):
        return any(_within(value, item) for item in cast("list[object]", data))
    return data == value


class _ModelCheck(NamedTuple):
    kind: ModelFlaw
    scene: str
    run: Callable[[_Trial], Awaitable[None]]
    needs: tuple[ModelFlaw, ...] = ("chunks",)


_CHECKS = (
    _ModelCheck("chunks", "words", _chunks, ()),
    _ModelCheck("fold", "words", _fold),
    _ModelCheck("usage", "words", _usage),
    _ModelCheck("finish", "words", _finish),
    _ModelCheck("fold", "calls", _fold),
    _ModelCheck("finish", "calls", _finish),
    _ModelCheck("ids", "calls", _ids, ("chunks", "fold")),
    _ModelCheck("ids", "no ids", _no_ids, ("chunks", "fold")),
    _ModelCheck("arguments", "malformed", _arguments, ("chunks", "fold")),
    _ModelCheck("empty", "empty", _empty),
    _ModelCheck("torn", "torn", _torn),
    _ModelCheck("errors", "busy", _busy),
    _ModelCheck("errors", "refused", _refused),
    _ModelCheck("closing", "silent", _closing),
    _ModelCheck("cancellation", "silent", _cancellation, ("chunks", "closing")),
    _ModelCheck("concurrency", "words", _concurrency, ("chunks", "fold")),
    _ModelCheck("options", "words", _options),
)


class _Scenes(Suite[ModelFlaw]):
    """All checks of a model."""

    def __init__(self, play: Play, timeout: float) -> None:
        super().__init__(get_args(ModelFlaw), ModelError, timeout)
        self.play = play
        self.name = ""

    def report(self) -> ModelReport:
        """Run the whole suite."""
        for kind, scene, check, needs in _CHECKS:
            with self.staged(SCENES[scene]) as staged, asyncio.Runner() as runner:
                if staged is None:
                    self.leave_out(kind, f"the scene {scene!r} is not played")
                    continue
                trial = _Trial(SCENES[scene], staged, self.timeout)
                self.run(runner, kind, lambda trial=trial, check=check: check(trial), needs)
        self._loops()
        return ModelReport(self.name, self.findings.sorted(), self.checks, self.notes)

    @contextmanager
    def staged(self, scene: ModelScene) -> Generator[StagedModel | None]:
        """Provide a model whose provider plays a scene."""
        played = self.play(scene)
        if isinstance(played, AbstractContextManager):
            with played as entered:
                yield self._as_staged(entered)
        else:
            yield self._as_staged(played)

    def _as_staged(self, played: Model | StagedModel | None) -> StagedModel | None:
        if played is None:
            return None
        staged = played if isinstance(played, StagedModel) else StagedModel(played)
        self.name = type(staged.model).__name__
        return staged

    def _loops(self) -> None:
        """Use one model in two concurrent event loops, each in its own thread, and then in two others."""
        scene = SCENES["words"]
        missing = [kind for kind in ("chunks", "fold", "concurrency", "hang") if kind in self.findings]
        if missing:
            self.leave_out("loops", f"fix {', '.join(missing)} first")
            return
        with self.staged(scene) as staged:
            if staged is None:
                self.leave_out("loops", "the scene 'words' is not played")
                return
            trial = _Trial(scene, staged, self.timeout)

            async def ask() -> None:
                text = (await trial.reply()).text
                trial.same("loops", text, scene.text, "mixes replies read in several loops")

            failed = [error for _ in range(2) for error in in_threads([lambda: self.patiently(ask())] * 2)]
            self.add_checked("loops", failed)
