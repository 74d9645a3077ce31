"""`RealtimeSession`: a spoken conversation with an agent. Each turn of the user is a call of the agent.

Rules:

1. The session owns one connection and two tasks: one reads the connection, the other runs the calls, one after another.
2. The agent's model uses the connection (`live.py`), so calls have events, hooks, approvals and history as usual.
3. If the user begins to speak while the agent speaks, the call is interrupted. While tools run, the call is not
   interrupted; the user's turn follows it.
4. Leaving the block interrupts the running call, ends both tasks and closes the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self, Unpack

from agentflow.agent.agent import Agent
from agentflow.agent.arguments import CallOptions, Decisions
from agentflow.agent.as_tool import full_agent
from agentflow.errors import ModelError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import hooks_of
from agentflow.models.realtime.live import LiveConnection, PlayAudio, RealtimeModel, live_connection
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.messages import Msg, Reply

_MAX_TURNS: Final = 100  # turns that wait, and replies that are kept


class RealtimeSession:
    """A spoken conversation with an agent that has a `RealtimeModel`. Use it with `async with`.

    Args:
        agent: The agent to speak with.
        play: Plays the agent's audio (16-bit PCM, mono, at `model.output_rate`). It is called for each reply, with an iterator:
            it requests the next chunk when it has played the last one, and returns when all is played. An interrupt cancels it.
            Without `play` the agent answers in text.
        options: As for `agent.call`: the session, dependencies and further hooks.

    Example:
        >>> from agentflow.models.realtime import OpenAIRealtime
        >>> agent = Agent("assistant", OpenAIRealtime("gpt-realtime"))
        >>> RealtimeSession(agent, session="ada").model.name
        'openai/gpt-realtime'
    """

    def __init__(self, agent: Agent[Any], *, play: PlayAudio | None = None, **options: Unpack[CallOptions]) -> None:
        model = full_agent(agent).config.model
        if not isinstance(model, RealtimeModel):
            raise UsageError(
                f"RealtimeSession(agent={agent.name!r}): its model is {model!r}, which does not speak. Give the agent a "
                "RealtimeModel, such as OpenAIRealtime('gpt-realtime')."
            )
        self.model = model
        self._agent = agent
        self._play = play
        self._options: CallOptions = {**options}
        self._session = options.get("session")
        self._work: asyncio.Queue[str | Msg | _Decided] = asyncio.Queue(_MAX_TURNS)
        self._ended: deque[Reply[Any] | Exception] = deque(maxlen=_MAX_TURNS)
        self._changed = asyncio.Event()
        self._closing: AsyncExitStack | None = None
        self._live: LiveConnection | None = None

    async def __aenter__(self) -> Self:
        if self._closing is not None:
            raise UsageError("This RealtimeSession was already opened. Create another one.")
        live = self.model.live(self._play)
        live.on_turn, live.on_speech = self._turn, self._speech
        self._options["hooks"] = [*hooks_of(self._options.get("hooks", ())), _Expecting(live)]
        async with AsyncExitStack() as stack:
            # Registered before `open`, so that a failed setup closes the socket too.
            stack.push_async_callback(live.socket.close)
            config = full_agent(self._agent).config
            await live.open(config.system, config.specs, await self._agent.history(self._session))
            # The stack is left in reverse: the calls end first, then the reader, then the connection.
            stack.push_async_callback(_ended, asyncio.create_task(self._listen(live)))
            stack.push_async_callback(_ended, asyncio.create_task(self._answer(live)))
            # Only now is the session open; a failure above closes everything.
            self._live, self._closing = live, stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._closing is not None
        try:
            await self._closing.aclose()
        finally:
            live, self._live = self._live, None
            if live is not None:
                live.release()

    async def send(self, audio: bytes) -> None:
        """Send the user's audio: 16-bit PCM, mono, at `model.input_rate`.

        Raises:
            ModelError: The connection is broken.
        """
        live = self._open()
        live.check()
        await live.send_audio(audio)

    async def commit(self) -> None:
        """End the user's turn, if the model's `turn_detection` is None.

        Raises:
            ModelError: The connection is broken.
        """
        live = self._open()
        live.check()
        await live.commit()

    def say(self, text: str | Msg) -> None:
        """Add a typed turn of the user."""
        self._open()
        self._turn(text)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Interrupt the running call and its speech.

        Returns:
            Whether a call was running.
        """
        return self._agent.interrupt(self._session, reason)

    def resume(self, decisions: Decisions) -> None:
        """Continue a call that was suspended; see `Agent.resume`."""
        self._open()
        self._turn(_Decided(decisions))

    async def reply(self) -> Reply[Any]:
        """Return the reply of the next completed call; the last hundred are kept.

        Raises:
            Exception: The failure of the call.
            ModelError: The connection is broken, and there are no more replies.
        """
        live = self._open()
        while not self._ended:
            # Waiting turns still produce results: each of their calls fails because the connection is broken.
            if self._work.empty() and not self._busy:
                live.check()
            self._changed.clear()
            await self._changed.wait()
        ended = self._ended.popleft()
        if isinstance(ended, Exception):
            raise ended
        return ended

    # ---- tasks

    _busy = False

    async def _listen(self, live: LiveConnection) -> None:
        try:
            await live.listen()
        finally:
            self._changed.set()

    async def _answer(self, live: LiveConnection) -> None:
        # Set in the context of this task only, which its calls inherit.
        live_connection.set(live)
        options, session = self._options, self._session
        rest: Any = {name: value for name, value in options.items() if name != "session"}
        while True:
            turn = await self._work.get()
            # The connection compares this turn with the one of `on_turn` (Gemini: which reply belongs to this call).
            self._busy, live.turn = True, turn
            reply: Reply[Any] | None = None
            try:
                if isinstance(turn, _Decided):
                    reply = await self._agent.resume(session, turn.decisions, **rest)
                else:
                    reply = await self._agent.call(turn, **options)
            except Exception as error:  # raised by reply()
                self._ended.append(error)
            else:
                self._ended.append(reply)
            finally:
                self._busy = live.expected = False
                self._changed.set()
            if live.failure is None and (reply is None or reply.outcome != "suspended"):
                with suppress(ModelError):  # the next call raises the error
                    await live.turn_over()

    def _turn(self, turn: str | Msg | _Decided) -> None:
        try:
            self._work.put_nowait(turn)
        except asyncio.QueueFull:
            raise ModelError(
                f"{_MAX_TURNS} turns of a voice session wait for their calls. Interrupt the running call, or send audio "
                "more slowly.",
                model=self.model.name,
            ) from None

    def _speech(self) -> None:
        if self._live is not None and self._live.speaking:
            self.interrupt("the user began to speak")

    def _open(self) -> LiveConnection:
        if self._live is None or self._closing is None:
            raise UsageError("The RealtimeSession is not open: use `async with RealtimeSession(...) as session`.")
        return self._live


class _Decided:
    """The decisions for a suspended call."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions


class _Expecting(Hook):
    """Marks the model calls of the session's own calls; only these are spoken."""

    observer = True

    def __init__(self, live: LiveConnection) -> None:
        self._live = live

    def on_event(self, event: HookEvent) -> None:
        """Expect a request from this call, unless it is a sub-agent's call."""
        # A call that another hook answers or denies makes no request.
        if isinstance(event, PreReasoning) and not event.source and event.decision is None:
            self._live.expected = True


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    # `wait`, so that the task's exception is not raised while the block is left.
    await asyncio.wait([task])
