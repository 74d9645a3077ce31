"""`check_model`: a suite for authors of models.

Its provider plays scenes, and the suite looks at what the model makes of them; what it found are typed values.

Rules:

1. The author says how his provider plays a scene; what it cannot play is left out, and a note says so.
2. A check that builds on another one is left out where that one has found something.
3. Time is real, loops are real: connections are what they are. Nothing is waited for longer than `patience`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from agentflow.chunks import ModelChunk, fold
from agentflow.errors import ModelError, UsageError
from agentflow.ground.json_text import read_json_text
from agentflow.messages import Msg
from agentflow.ports.model import Model, ModelRequest
from agentflow.reactive.iterators import close
from agentflow.specs import ModelOptions, ToolSpec
from agentflow.testing.findings import ConformanceReport
from agentflow.testing.model_scenes import SCENES, ModelScene, Staged
from agentflow.testing.suite import Skipped, Suite, Wrong, in_threads, no_loop_here

__all__ = ["ModelFlaw", "ModelReport", "Play", "check_model", "check_model_async"]

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
"""What can be wrong with a model; `docs/testing-models.md` says what each means and how to mend it."""

Play: TypeAlias = "Callable[[ModelScene], Model | Staged | AbstractContextManager[Model | Staged] | None]"
"""Makes a model whose provider plays a scene; None: it cannot play that one."""

_OPTIONS: Mapping[str, Any] = {
    "temperature": 0.375,
    "max_tokens": 77,
    "top_p": 0.625,
    "stop": ("THE-END",),
    "seed": 4242,
}


class ModelReport(ConformanceReport[ModelFlaw]):
    """What `check_model` saw of one model."""

    __slots__ = ()


def check_model(play: Play, *, patience: float = 10.0) -> ModelReport:
    """Check a model; the report says what is wrong with it.

    Args:
        play: Makes a model, in a context manager or as it is, whose provider plays a scene.
        patience: Seconds after which a check counts as hanging.

    Returns:
        The report; `report.assert_clean()` fails with it as the text.

    Raises:
        UsageError: An event loop runs in this thread (`check_model_async` is for that).

    Example:
        >>> def play(scene):
        ...     if scene.name == "words":
        ...         return ScriptedModel(lambda request: [*scene.pieces, ModelChunk(usage=scene.usage)])
        >>> report = check_model(play)
        >>> report.kinds
        frozenset()
    """
    no_loop_here("check_model")
    return _Scenes(play, patience).report()


async def check_model_async(play: Play, *, patience: float = 10.0) -> ModelReport:
    """`check_model` for coroutines: the same check in a thread.

    Args:
        play: As in `check_model`, like the rest.
    """
    return await asyncio.to_thread(check_model, play, patience=patience)


class _Trial:
    """One check's view of a model and its scene."""

    def __init__(self, scene: ModelScene, staged: Staged, patience: float) -> None:
        self.scene = scene
        self.model, self.open_connections, self.sent = staged
        self.promptly = patience / 3

    def request(self, options: ModelOptions | None = None) -> ModelRequest:
        """Asks for what the scene says, so that a model that echoes can play too."""
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
        """The whole reply."""
        async with self.stream(options) as chunks:
            return fold([chunk async for chunk in chunks])

    async def first_words(self, chunks: AsyncIterator[ModelChunk]) -> None:
        """Read until the first words have come."""
        async for chunk in chunks:
            if chunk.text:
                return

    async def closed(self, kind: ModelFlaw, message: str) -> None:
        """Complain if a connection stays open."""
        if self.open_connections is None:
            raise Skipped("nobody knows how many connections are open: Staged(open_connections=)")
        try:
            async with asyncio.timeout(self.promptly):
                while self.open_connections():  # noqa: ASYNC110 - a number that its owner counts, and tells when asked
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise Wrong(kind, message, f"{self.open_connections()} are open") from None

    def same(self, kind: ModelFlaw, found: object, wanted: object, message: str) -> None:
        """Complain unless they are equal."""
        if found != wanted:
            raise Wrong(kind, message, f"found:  {found!r:.400}\nwanted: {wanted!r:.400}")


# ---- checks


async def _chunks(trial: _Trial) -> None:
    """What comes are chunks."""
    async with trial.stream() as chunks:
        async for chunk in chunks:
            if not isinstance(chunk, ModelChunk):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise Wrong("chunks", "gives something that is no ModelChunk", repr(chunk))
    name = cast("object", trial.model.name)
    if not isinstance(name, str) or not name:
        raise Wrong("chunks", "has no name", repr(name))


async def _fold(trial: _Trial) -> None:
    """The chunks fold to the reply, each time it is asked."""
    for _ in range(2):
        reply = await trial.reply()
        trial.same("fold", reply.text, trial.scene.text, "gives chunks that fold to other words than were said")
        found = [(use.name, dict(use.input)) for use in reply.tool_uses]
        wanted = [(call.name, read_json_text(call.arguments)) for call in trial.scene.calls]
        trial.same("fold", found, wanted, "gives chunks that fold to other tool calls than were made")


async def _usage(trial: _Trial) -> None:
    """The reply says what it has used."""
    usage = (await trial.reply()).usage
    found = None if usage is None else (usage.input_tokens, usage.output_tokens)
    wanted = (trial.scene.usage.input_tokens, trial.scene.usage.output_tokens)
    trial.same("usage", found, wanted, "does not tell the tokens that the provider has counted")


async def _finish(trial: _Trial) -> None:
    """The reply says why it ended."""
    found = (await trial.reply()).finish_reason
    trial.same("finish", found, trial.scene.finish_reason, "does not tell why the reply has ended")


async def _ids(trial: _Trial) -> None:
    """The provider's ids stay."""
    found = [use.id for use in (await trial.reply()).tool_uses]
    trial.same("ids", found, [call.id for call in trial.scene.calls], "changes ids that the provider has given")


async def _no_ids(trial: _Trial) -> None:
    """Calls without ids stay several calls."""
    uses = (await trial.reply()).tool_uses
    names = [call.name for call in trial.scene.calls]
    trial.same("ids", [use.name for use in uses], names, "mixes calls to which the provider has given no ids")
    if len({use.id for use in uses}) != len(uses):
        raise Wrong("ids", "gives one id to several calls", repr([use.id for use in uses]))


async def _arguments(trial: _Trial) -> None:
    """What is no JSON stays the text that it is."""
    uses = (await trial.reply()).tool_uses
    found = [(use.raw, use.input_error is not None) for use in uses]
    wanted = [(call.arguments, True) for call in trial.scene.calls]
    trial.same("arguments", found, wanted, "makes something else of arguments that are no JSON")


async def _empty(trial: _Trial) -> None:
    """A reply that says nothing is a reply."""
    reply = await trial.reply()
    trial.same("empty", (reply.text, reply.tool_uses), ("", ()), "makes something of a reply that says nothing")


async def _torn(trial: _Trial) -> None:
    """Half a reply is no reply."""
    try:
        reply = await trial.reply()
    except ModelError as error:
        if not error.retryable:
            raise Wrong("torn", "says retryable=False of a connection that broke", repr(error)) from error
        return
    raise Wrong("torn", "takes the half of a reply for the whole", reply.text)


async def _busy(trial: _Trial) -> None:
    """A busy provider's wish is told."""
    error = await _failure(trial)
    told = (error.retryable, error.retry_after)
    trial.same("errors", told, (True, trial.scene.retry_after), "does not tell that, and when, to come back")


async def _refused(trial: _Trial) -> None:
    """A wrong request stays wrong."""
    error = await _failure(trial)
    trial.same("errors", error.retryable, False, "says retryable=True of a request that is wrong")


async def _failure(trial: _Trial) -> ModelError:
    try:
        reply = await trial.reply()
    except ModelError as error:
        return error
    except Exception as error:
        message = f"fails with {type(error).__name__} where a ModelError is due"
        raise Wrong("errors", message, f"{trial.scene.name}: {error!r}") from error
    raise Wrong("errors", "makes a reply of the provider's error", f"{trial.scene.name}: {reply.text!r}")


async def _closing(trial: _Trial) -> None:
    """Who stops reading frees the connection."""
    chunks = trial.model.stream(trial.request())
    await trial.first_words(chunks)
    try:
        async with asyncio.timeout(trial.promptly):
            await close(chunks)
    except TimeoutError:
        raise Wrong("closing", "does not come back from aclose() while the provider is silent") from None
    except Exception as error:
        raise Wrong("closing", f"fails with {type(error).__name__} on aclose()", repr(error)) from error
    await trial.closed("closing", "keeps its connection after aclose()")


async def _cancellation(trial: _Trial) -> None:
    """A reader that is cancelled ends at once, and frees the connection."""
    begun = asyncio.Event()

    async def read() -> None:
        async with trial.stream() as chunks:
            await trial.first_words(chunks)
            begun.set()
            async for _ in chunks:
                pass

    task = asyncio.ensure_future(read())
    await begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)  # into the wait for what does not come
    task.cancel()
    if not (await asyncio.wait({task}, timeout=trial.promptly))[0]:
        raise Wrong("cancellation", "goes on although its reader was cancelled")
    if not task.cancelled():
        raise Wrong("cancellation", "makes something else of a cancellation", repr(task.exception()))
    await trial.closed("cancellation", "keeps its connection after a cancellation")


async def _concurrency(trial: _Trial) -> None:
    """Two streams at once do not know each other."""
    async with trial.stream() as one, trial.stream() as two:
        streams, read = [one, two], [list[ModelChunk](), list[ModelChunk]()]
        while streams.count(one) or streams.count(two):
            for stream in list(streams):
                try:
                    read[0 if stream is one else 1].append(await anext(stream))
                except StopAsyncIteration:
                    streams.remove(stream)
    found = [fold(chunks).text for chunks in read]
    trial.same("concurrency", found, [trial.scene.text] * 2, "mixes two replies that are read at once")


async def _options(trial: _Trial) -> None:
    """An option is sent, or refused."""
    if trial.sent is None:
        raise Skipped("nobody knows what was sent: Staged(sent=)")
    lost: list[str] = []
    for name, value in _OPTIONS.items():
        try:
            await trial.reply(ModelOptions(**{name: value}))
        except (UsageError, ModelError):
            continue
        if not _within("THE-END" if name == "stop" else value, trial.sent()):
            lost.append(name)
    allowed = {"seed"}  # providers that know none cannot be told, and one that is left out harms nobody
    if lost := [name for name in lost if name not in allowed]:
        raise Wrong("options", "neither sends nor refuses options", ", ".join(lost))


def _within(value: object, data: object) -> bool:
    """Whether a value stands anywhere in data."""
    if isinstance(data, Mapping):
        return any(_within(value, one) for one in cast("Mapping[Any, object]", data).values())
    if isinstance(data, list | tuple):
        return any(_within(value, one) for one in cast("list[object]", data))
    return data == value


class _Check(NamedTuple):
    kind: ModelFlaw
    scene: str
    run: Callable[[_Trial], Awaitable[None]]
    needs: tuple[ModelFlaw, ...] = ("chunks",)


_CHECKS = (
    _Check("chunks", "words", _chunks, ()),
    _Check("fold", "words", _fold),
    _Check("usage", "words", _usage),
    _Check("finish", "words", _finish),
    _Check("fold", "calls", _fold),
    _Check("finish", "calls", _finish),
    _Check("ids", "calls", _ids, ("chunks", "fold")),
    _Check("ids", "no ids", _no_ids, ("chunks", "fold")),
    _Check("arguments", "malformed", _arguments, ("chunks", "fold")),
    _Check("empty", "empty", _empty),
    _Check("torn", "torn", _torn),
    _Check("errors", "busy", _busy),
    _Check("errors", "refused", _refused),
    _Check("closing", "silent", _closing),
    _Check("cancellation", "silent", _cancellation, ("chunks", "closing")),
    _Check("concurrency", "words", _concurrency, ("chunks", "fold")),
    _Check("options", "words", _options),
)


class _Scenes(Suite[ModelFlaw]):
    """All checks of one model."""

    def __init__(self, play: Play, patience: float) -> None:
        super().__init__(get_args(ModelFlaw), ModelError, patience)
        self.play = play
        self.name = ""

    def report(self) -> ModelReport:
        """Run the whole suite."""
        for kind, scene, check, needs in _CHECKS:
            with self.staged(SCENES[scene]) as staged, asyncio.Runner() as runner:
                if staged is None:
                    self.leave_out(kind, f"the scene {scene!r} is not played")
                    continue
                trial = _Trial(SCENES[scene], staged, self.patience)
                self.run(runner, kind, lambda trial=trial, check=check: check(trial), needs)
        self._loops()
        return ModelReport(self.name, self.findings.sorted(), self.checks, self.notes)

    @contextmanager
    def staged(self, scene: ModelScene) -> Generator[Staged | None]:
        """A model whose provider plays a scene."""
        played = self.play(scene)
        if isinstance(played, AbstractContextManager):
            with played as entered:
                yield self._as_staged(entered)
        else:
            yield self._as_staged(played)

    def _as_staged(self, played: Model | Staged | None) -> Staged | None:
        if played is None:
            return None
        staged = played if isinstance(played, Staged) else Staged(played)
        self.name = type(staged.model).__name__
        return staged

    def _loops(self) -> None:
        """One model in two event loops at once, in threads of their own, and then in two more."""
        scene = SCENES["words"]
        missing = [kind for kind in ("chunks", "fold", "concurrency", "hang") if kind in self.findings]
        if missing:
            self.leave_out("loops", f"mend {', '.join(missing)} first")
            return
        with self.staged(scene) as staged:
            if staged is None:
                self.leave_out("loops", "the scene 'words' is not played")
                return
            trial = _Trial(scene, staged, self.patience)

            async def ask() -> None:
                text = (await trial.reply()).text
                trial.same("loops", text, scene.text, "mixes replies that are read in several loops")

            failed = [error for _ in range(2) for error in in_threads([lambda: self.patiently(ask())] * 2)]
            self.add_checked("loops", failed)
