"""`AgentFlux`, what `agent.stream(...)` gives: the events of a call, or the words, or the reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, cast

from agentflow.errors import UsageError
from agentflow.events import Event, HookEvent
from agentflow.loop.stream import EventStream
from agentflow.loop.words import words
from agentflow.messages import Reply, T_co
from agentflow.output.output import Output
from agentflow.output.partials import Partial, Partials, growing
from agentflow.reactive import Flux, Mono

__all__ = ["AgentFlux"]

E = TypeVar("E", bound=Event)


class AgentFlux(Flux[HookEvent], Generic[T_co]):
    """The events of a call; each iteration is a new call.

    Example:
        >>> async with agent.stream("Hello") as events:
        ...     async for event in events:
        ...         print(event)
        >>> async for piece in agent.stream("Hello").text():
        ...     print(piece, end="")
    """

    _instead: ClassVar[str] = (
        ": it is a stream of events. `await agent.stream(...).reply()` gives the reply, and so does agent.call(...)"
    )

    def __await__(self) -> Generator[Any, Any, NoReturn]:
        """Refuse: a stream has many events, and none of them is the reply.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "agent.stream(...) was awaited: it is a stream of events. Read it with `async for event in agent.stream(...)`; "
            "`await agent.stream(...).reply()` gives the reply, and so does `await agent.call(...)`."
        )

    asked: Output[Any] | None = None
    """What the call is to give; None: words."""

    if TYPE_CHECKING:

        async def __aenter__(self) -> EventStream[T_co]:
            """Open a run; it is closed, with all its cleanup done, where the block ends."""
            ...

        def __aiter__(self) -> EventStream[T_co]: ...

        def open(self) -> EventStream[T_co]:
            """See `Flux.open`."""
            ...

    def of_type(self, *kinds: type[E]) -> Flux[E]:
        """The events of a class, or of a base class; of several, the events of any.

        Example:
            >>> async for event in agent.stream("Hello").of_type(ReasoningChunk):
            ...     print(event.incremental_chunk.text, end="")
        """
        return cast("Flux[E]", self.filter(lambda event: isinstance(event, kinds)))

    def text(self) -> Flux[str]:
        """The words that a person should see, as the model says them; closing texts of `Stop`, `Deny` and limits included.

        Replies of several rounds are apart by an empty line; thoughts, tools and sub-agents are silent.

        Example:
            >>> async for piece in agent.stream("Hello").text():
            ...     print(piece, end="")
        """
        return Flux(self._words)

    async def _words(self) -> AsyncGenerator[str]:
        async with aclosing(self.open()) as events, aclosing(words(events)) as pieces:
            async for piece in pieces:
                yield piece

    def partials(self) -> Flux[Partial[T_co]]:
        """The fields of the typed output while the model says them: a mapping that grows; the last one has the `output`.

        A field is there when the model has said it, and it fits; strings grow. The values are plain data, so nothing is of the
        output's type before it is complete. When an answer is asked for again, another mapping begins. What a piece costs
        does not depend on what came before.

        Raises:
            UsageError: The call asks for no output, or for what a function returns.

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
        if self.asked is None:
            raise UsageError(
                "partials() needs an output: agent.stream(..., output=Invoice), or Agent(..., output=Invoice)."
            )
        wanted = Partials(self.asked)
        del wanted  # made for each run anew; what is wrong with it is said here
        return Flux(self._partials)

    async def _partials(self) -> AsyncGenerator[Partial[T_co]]:
        assert self.asked is not None
        output, last = self.asked, Partial[T_co]({})
        async with aclosing(self.open()) as events:
            async for last in growing(events, output):
                yield last
            reply = await events.reply()
            if reply.typed:
                yield last.completed(reply.output)

    def reply(self) -> Mono[Reply[T_co]]:
        """Read to the end; only the reply counts. Inside of `async with`, `events.reply()` reads the rest of that call.

        Example:
            >>> reply = await agent.stream("Hello").reply()
        """
        return Mono(self._reply)

    async def _reply(self) -> Reply[T_co]:
        async with aclosing(self.open()) as events:
            return await events.reply()
