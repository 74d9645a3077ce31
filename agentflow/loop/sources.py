"""The work behind Pre events as wrapping hooks get it, and the onion of `around` that they put around it.

Rules:

1. A source belongs to its stage: subscribed when that is over it raises, and what still runs of it then is cancelled, and
   waited for, before the stage ends. So nothing happens in a call, or to its session, behind its stage.
2. Where work cannot be done twice, or not twice at the same time, the second subscription raises.
3. A `CancelledError` that nobody asked for is a failing hook; a cancellation that a hook has swallowed is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from agentflow.chunks import ModelChunk
from agentflow.errors import Aside, HookContractError, HookError, UsageError
from agentflow.events import Event, PreActing, PreCall, PreToolRound
from agentflow.hooks.chain import HookSet, cancellations, raise_swallowed
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import concerns_tool
from agentflow.loop.run import RunBase
from agentflow.messages import Msg
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux, Mono
from agentflow.specs import ModelOptions
from agentflow.transcript import legalise

__all__ = ["Attempts", "Keep", "ModelFlux", "Rewrap", "Stage", "close_stream", "keep_using", "sealed", "wrap"]

E = TypeVar("E", bound=Event)
T = TypeVar("T")

Rewrap: TypeAlias = Callable[[Any], Any]
"""A hook's `around` once more, on another source."""
Keep: TypeAlias = Callable[[Any, Any, Rewrap], Any]
"""Makes what `around` returned able to do what its source can: gets that, the source, and `around` once more."""

_NO_RETURN = "None (is a `return` missing? what stays as it is is returned too: `return source`)"


class Stage:
    """What the sources behind one Pre event belong to: who runs them, and until when they may be run.

    Args:
        run: The call.
        kind: The event's class.

    Attributes:
        over: Whether nothing of it may be run any more.
        begun: How often it was run.
    """

    __slots__ = ("_before", "_gone", "_kind", "_loop", "_mine", "_run", "_tasks", "begun", "over")

    def __init__(self, run: RunBase, kind: type[Event]) -> None:
        self._run = run
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any] | None] = []
        self._gone: asyncio.Future[None] | None = None
        self._mine: asyncio.Task[Any] | None = None
        self._before = 0
        self.begun = 0
        self.over = False

    def check(self) -> None:
        """Refuse a subscription that the stage does not allow.

        Raises:
            UsageError: It comes late, once too often, or from another thread's loop.
        """
        name = self._kind.__name__
        if self.over:
            raise UsageError(
                f"The source behind {name} was subscribed when its stage was over. It is work of that one stage: use it in "
                "what `around` returns, and nowhere else; it cannot be kept for later, or be left to a task that goes on "
                "behind the stage."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"The source behind {name} was subscribed on another event loop than its call runs on. Only blocking work "
                "of your own belongs on subscribe_on(threads())."
            )
        if self._kind is PreCall and self.begun:
            raise UsageError(
                "The source behind PreCall is the rest of the call; it can be subscribed once. To try a model again, "
                "wrap PreReasoning; to send the agent back to work, return Again from PostReasoning."
            )
        if self._kind is PreToolRound and self._tasks:
            raise UsageError(
                "The source behind PreToolRound was subscribed while it runs; a round runs once at a time. To run one tool "
                "twice at once, wrap PreActing."
            )

    async def enter(self) -> None:
        """Refuse a subscription that the stage does not allow, or that a hook makes after it has swallowed a cancellation."""
        self.check()
        if self._mine is asyncio.current_task() and cancellations() > self._before and self._run.is_cancelled():
            await raise_swallowed(self._kind.__name__)

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the stage's work for somebody who has subscribed to it."""
        await self.enter()
        self.begun += 1
        task = asyncio.current_task()
        self._tasks.append(task)
        try:
            return await work()
        finally:
            self._tasks.remove(task)
            if self._gone is not None and not self._gone.done():
                self._gone.set_result(None)

    async def outcome(self, wrapped: Any) -> Any:
        """Run what the hooks have made of the work, to its value (or `EMPTY`), and end the stage."""
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        try:
            return await self.guarded(mono.resolve())
        finally:
            await self.close()

    async def guarded(self, wrapped: Awaitable[T]) -> T:
        """Tell a cancellation of the run from a hook that raises `CancelledError` itself, and notice one that was swallowed.

        Raises:
            HookError: A hook has raised `CancelledError` itself.
        """
        self._mine, self._before = asyncio.current_task(), cancellations()
        try:
            value = await wrapped
        except asyncio.CancelledError as error:
            if self._run.is_cancelled():
                raise
            name = self._kind.__name__
            raise HookError(
                f"What hooks made of the source behind {name} raised CancelledError itself, although nobody cancelled the "
                "run."
            ) from error
        if cancellations() > self._before and self._run.is_cancelled():
            await raise_swallowed(self._kind.__name__)
        return value

    async def close(self) -> None:
        """End the stage: nothing of it runs any more when this returns, and nothing of it can be run."""
        self.over = True
        cut: asyncio.CancelledError | None = None
        mine = asyncio.current_task()
        while left := [task for task in self._tasks if task is not None and task is not mine]:
            for task in left:
                task.cancel()
            self._gone = self._loop.create_future()
            try:
                await self._gone
            except asyncio.CancelledError as error:  # the work is told once more
                cut = error
        if cut is not None:
            raise cut


def sealed(run: RunBase, kind: type[E], *values: object) -> E:
    """The sealed event for wrapping hooks where no chain has built it."""
    return kind.make(run.frame, run.iteration, run.seq, run.now(), *values)


def wrap(
    run: RunBase, kind: type[Any], event: Any, source: Any, scope: HookSet | None = None, keep: Keep | None = None
) -> Any:
    """Put the onion of `around` around a stage's work; the lowest priority is outermost.

    Args:
        run: The call.
        kind: The event's class.
        event: The sealed event.
        source: The work.
        scope: The hooks, where they are others than the run's.
        keep: Where the work can do more than run: a plain operator of one hook must not take that from the next.
    """
    for around, hook in reversed((run.hooks if scope is None else scope).arounds(kind)):
        if kind is PreActing and hook.only_tools and not concerns_tool(hook, event.tool_use):
            continue
        wrapped = _wrapped(around, hook, kind, event, source)
        if wrapped is source:
            continue
        if keep is not None:
            wrapped = keep(wrapped, source, partial(_wrapped, around, hook, kind, event))
        source = wrapped
    return source


def _wrapped(around: Any, hook: Hook, kind: type[Any], event: Any, source: Any) -> Any:
    try:
        wrapped = around(event, source)
    except Exception as error:
        error.add_note(Aside(f"raised by hook {hook.name} (priority {hook.priority}) on {kind.__name__}"))
        raise
    if wrapped is source:
        return source
    if not hasattr(wrapped, "subscribe"):
        raise HookContractError(
            f"{hook.name}.around",
            kind.__name__,
            "None (is a `return` missing? what stays as it is is returned too: `return source`)"
            if wrapped is None
            else type(wrapped).__name__,
            "the source, or any Mono, Flux or Observable",
        )
    return wrapped


class ModelFlux(Flux[ModelChunk]):
    """The work behind `PreReasoning`: each run is one attempt at the model's reply.

    Example:
        >>> def around(self, event, source):
        ...     if isinstance(event, PreReasoning):
        ...         return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        ...     return source
    """

    def __init__(self, model: str | Model, request: ModelRequest, attempts: Attempts) -> None:
        self._model = model
        self._request = request
        self._attempts = attempts

    @property
    def request(self) -> ModelRequest:
        """What the model will be asked: the event as hooks left it, with what they injected meanwhile."""
        return self._request

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start an attempt; see `Flux.open`."""
        return self._run()

    async def _run(self) -> AsyncIterator[ModelChunk]:
        attempts, name = self._attempts, self._request.model
        stage = attempts.stage
        await stage.enter()
        first = attempts.begin(name)
        stream = resolve_model(self._model).stream(self._request)
        try:
            async for chunk in stream:
                if stage.over:
                    stage.check()
                if first:
                    first = False
                    chunk = replace(chunk, restart=True)
                attempts.delivered = True
                attempts.model = name  # of several at once, the one that is listened to
                yield chunk
        finally:
            await close_stream(stream)

    def using(
        self,
        *,
        model: str | Model | None = None,
        input_messages: Sequence[Msg] | None = None,
        options: ModelOptions | None = None,
    ) -> ModelFlux:
        """The same work with another request; running it is another attempt.

        Args:
            model: Another model.
            input_messages: Other messages; they are put into a legal order.
            options: Laid over those of the request.
        """
        before = self._request
        request = ModelRequest(
            before.messages if input_messages is None else legalise(input_messages),
            before.tools,
            before.options.merge(options),
            before.model if model is None else model if isinstance(model, str) else model.name,
        )
        return ModelFlux(self._model if model is None else model, request, self._attempts)


class WrappedModel(ModelFlux):
    """What a hook made of the work behind `PreReasoning`, which can still be asked another request."""

    def __init__(self, wrapped: Any, source: ModelFlux, again: Rewrap) -> None:
        self._source_flux = source
        self._again = again
        self._flux = cast("Flux[ModelChunk]", wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped))

    @property
    def request(self) -> ModelRequest:
        """What the model will be asked."""
        return self._source_flux.request

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start a run of what the hook made; see `Flux.open`."""
        return self._flux.open()

    def using(self, **request: Any) -> Any:
        """The same hook's work around another request; its `around` is called once more."""
        source = self._source_flux.using(**request)
        return keep_using(self._again(source), source, self._again)


def keep_using(wrapped: Any, source: Any, again: Rewrap) -> Any:
    """Give what a hook made of a model's work `using` and `request`, if it has lost them."""
    return wrapped if hasattr(wrapped, "using") else WrappedModel(wrapped, source, again)


class Attempts:
    """Counts the runs of one reply's source.

    Args:
        stage: What they belong to.

    Attributes:
        count: Runs begun.
        delivered: Whether any chunk has left a run.
        model: The name of the model behind the last run, or the last chunk; empty before the first.
    """

    __slots__ = ("count", "delivered", "model", "stage")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.count = 0
        self.delivered = False
        self.model = ""

    def begin(self, model: str) -> bool:
        """Begin a run of a model; returns whether the pieces before it are void."""
        self.count += 1
        self.model = model
        return self.delivered


async def close_stream(stream: AsyncIterator[Any]) -> None:
    """Close a stream that can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
