"""`AgentFlux`, the result of `agent.stream(...)`: the events of a call, its text, or its reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, cast

from agentflow._support.lazy import later
from agentflow.errors import UsageError
from agentflow.loop.stream import EventStream, text_chunks
from agentflow.reactive import Flux, Mono
from agentflow.vocabulary.events import Event, HookEvent
from agentflow.vocabulary.messages import Reply, T_co

if TYPE_CHECKING:
    from agentflow.loop.output import partials
    from agentflow.loop.output.output import FullOutput
    from agentflow.loop.output.partials import Partial
else:
    partials = later("agentflow.loop.output.partials")

E = TypeVar("E", bound=Event)


class AgentFlux(Flux[HookEvent], Generic[T_co]):
    """The events of a call; each iteration is a new call.

    Example:
        >>> async with agent.stream("Hello") as events:
        ...     async for event in events:
        ...         print(event)
        >>> async for text in agent.stream("Hello").text():
        ...     print(text, end="")
    """

    _instead: ClassVar[str] = (
        ": it is a stream of events. `await agent.stream(...).reply()` returns the reply, as `await agent.call(...)` does"
    )

    def __await__(self) -> Generator[Any, Any, NoReturn]:
        """Raise an error that shows how to read the events or the reply: a stream has many events, and none of them is
        the reply.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "agent.stream(...) was awaited: it is a stream of events. Read it with `async for event in "
            "agent.stream(...)`; `await agent.stream(...).reply()` returns the reply, as `await agent.call(...)` does."
        )

    typed_output: FullOutput[Any] | None = None
    """The typed output of the call; None means text."""

    if TYPE_CHECKING:

        async def __aenter__(self) -> EventStream[T_co]:
            """Open a run. The end of the block closes the run and waits for its cleanup."""
            ...

        def __aiter__(self) -> EventStream[T_co]: ...

        def open(self) -> EventStream[T_co]:
            """See `Flux.open`."""
            ...

    def of_type(self, *kinds: type[E]) -> Flux[E]:
        """Yield the events of a class or base class; with several classes, the events of any of them.

        Example:
            >>> async for event in agent.stream("Hello").of_type(ReasoningChunk):
            ...     print(event.incremental_chunk.text, end="")
        """
        return cast("Flux[E]", self.filter(lambda event: isinstance(event, kinds)))

    def text(self) -> Flux[str]:
        """Yield the text that a person should see, as the model streams it, including the final texts of `Stop`, `Deny`
        and limits.

        Replies of several rounds are separated by an empty line; thinking, tools and sub-agents are not included.

        Example:
            >>> async for text in agent.stream("Hello").text():
            ...     print(text, end="")
        """
        return Flux(self._texts)

    async def _texts(self) -> AsyncGenerator[str]:
        # Closed in reverse order, because the chunks read the events.
        async with aclosing(self.open()) as events, aclosing(text_chunks(events)) as chunks:
            async for chunk in chunks:
                yield chunk

    def partials(self) -> Flux[Partial[T_co]]:
        """Yield the fields of the typed output while the model streams them, as mappings that grow; the last mapping has
        the `output`.

        A string grows; any other field appears once it is complete and valid. The values are plain data: only the
        `output` of the last mapping has the output's type. If the model is asked again, a new mapping begins. The cost
        of a chunk does not depend on earlier chunks. If the output is a function, the mappings contain its arguments,
        and the `output` of the last mapping is its return value. With several outputs, `partial.kind` is the name of
        the output that the model writes.

        Raises:
            UsageError: The call has no output.

        Example:
            >>> agent = Agent("clerk", ScriptedModel([['{"answer": [1, ', "2]}"]]))
            >>> async for partial in agent.stream("Count.", output=Output(list[int], via="prompt")).partials():
            ...     print(partial["answer"], partial.complete)
            [1] False
            [1, 2] False
            [1, 2] True
            >>> partial.output
            [1, 2]
        """
        if self.typed_output is None:
            raise UsageError(
                "partials() needs an output: agent.stream(..., output=Invoice), or Agent(..., output=Invoice)."
            )
        return Flux(self._partials)

    async def _partials(self) -> AsyncGenerator[Partial[T_co]]:
        assert self.typed_output is not None
        # The empty mapping is for an output that no partial output precedes, such as a hook's answer.
        output, last = self.typed_output, partials.Partial[T_co]({})
        async with aclosing(self.open()) as events:
            async for last in partials.growing(events, output):
                yield last
            reply = await events.reply()
            if reply.typed:
                yield last.completed(reply.output)

    def reply(self) -> Mono[Reply[T_co]]:
        """Run the call and return its reply. Inside `async with`, use `events.reply()` to read the rest of the
        open call.

        Example:
            >>> reply = await agent.stream("Hello").reply()
        """
        return Mono(self._reply)

    async def _reply(self) -> Reply[T_co]:
        async with aclosing(self.open()) as events:
            return await events.reply()
