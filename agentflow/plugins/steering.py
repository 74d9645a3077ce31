"""`Steering`: messages sent while an agent works are added as soon as the conversation allows it.

Rules:

1. A message is removed from its queue only after it is stored; so none is lost, and none is stored twice.
2. `send` may be called from any task and any thread; it never waits. Only calls and `withdraw` remove messages from a queue.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.loop.session import Session
from agentflow.vocabulary.events import CallEnded, HookEvent, MessagesAdded, PostReasoning, PreCall, PreReasoning
from agentflow.vocabulary.messages import Msg, with_metadata
from agentflow.vocabulary.verdicts import Again

__all__ = ["Steering"]

SOURCE = "steering"


@dataclass(slots=True)
class _QueuedMessage:
    """A queued message. `offered`: the call that has received the message but has not reported it as stored yet."""

    msg: Msg
    offered: str = ""


@dataclass(slots=True)
class _SentBack:
    """How many times a run continued after an answer because a message was waiting."""

    __saved_as__ = "agentflow.plugins.steering:_Sent"  # the name in stored sessions

    back: int = 0


class Steering(Hook):
    """Lets you send messages to an agent that is working.

    A message is added before the next model call, after the results of running tools. If it arrives while the model writes its
    answer, it is added after the answer, and the agent continues. If it arrives later, it precedes the input of the session's
    next call. Each is stored as a user message marked `metadata["synthetic"] == "steering"`.

    Priority 30 (system). One instance serves any number of agents and sessions; each session id has its own queue.

    Args:
        max_back: How many times a run may continue after an answer because messages wait. Later messages wait for the
            next call.

    Example:
        >>> steering = Steering()
        >>> agent = Agent("coder", "openai/gpt-5", tools=[search], hooks=[steering])
        >>> steering.send("Leave the tests alone.", session="ada").text
        'Leave the tests alone.'
        >>> [msg.text for msg in steering.waiting("ada")]
        ['Leave the tests alone.']
    """

    priority = 30
    events = (PreCall, PreReasoning, PostReasoning, MessagesAdded, CallEnded)

    def __init__(self, max_back: int = 10) -> None:
        if max_back < 0:
            raise UsageError(f"Steering(max_back={max_back}) must be 0 or more.")
        self.max_back = max_back
        self._queues: dict[str, list[_QueuedMessage]] = {}  # by session id
        self._running: dict[str, tuple[str, str]] = {}  # by call id: session id and agent name
        self._seen: str | None = None  # the last session that had a call
        self._several = False  # whether more than one session has had a call
        self._lock = threading.Lock()

    # ---- the sender's side

    def send(self, message: str | Msg, *, session: str | Session | None = None) -> Msg:
        """Send a message to the agent in a session.

        Args:
            message: A text or a user message.
            session: The session or its id (an agent's implicit session is named like the agent). It can be omitted while
                exactly one session is running, or if this instance has only ever seen one.

        Returns:
            The message as it will be stored.

        Raises:
            UsageError: The message is not a user message, or the session is ambiguous.
        """
        msg = Msg.user(message) if isinstance(message, str) else message
        if msg.role != "user":
            raise UsageError(f"Steering.send takes a string or a user message, not one with the role {msg.role!r}.")
        if "synthetic" not in msg.metadata:
            msg = with_metadata(msg, synthetic=SOURCE)
        with self._lock:
            name = self._session(session)
            self._queues.setdefault(name, []).append(_QueuedMessage(msg))
        return msg

    def waiting(self, session: str | Session | None = None) -> tuple[Msg, ...]:
        """Return the messages that were sent but not stored yet, oldest first; of one session, or of all."""
        name = _id(session)
        with self._lock:
            queues = self._queues.values() if name is None else [self._queues.get(name, [])]
            return tuple([entry.msg for queue in queues for entry in queue])

    def withdraw(self, session: str | Session) -> tuple[Msg, ...]:
        """Withdraw the messages of a session that no call has received yet; they will not be delivered.

        Returns:
            The messages, oldest first.
        """
        name = _id(session) or ""
        with self._lock:
            queue = self._queues.get(name, [])
            self._set_queue(name, [entry for entry in queue if entry.offered])
            return tuple([entry.msg for entry in queue if not entry.offered])

    def _session(self, session: str | Session | None) -> str:
        name = _id(session)
        if name is not None:
            return name
        running = sorted({name for name, _ in self._running.values()})
        if len(running) == 1:
            return running[0]
        if not running and self._seen is not None and not self._several:
            return self._seen
        where = f"calls are running in the sessions {', '.join(running)}" if running else "no call is running"
        raise UsageError(f"Steering.send without session= while {where}. Name the session: session='some-id'.")

    # ---- the run's side

    def on_event(self, event: HookEvent) -> Again | None:
        """Deliver waiting messages."""
        match event:
            case MessagesAdded():
                if event.session_id in self._queues:
                    self._remove_stored(event.session_id, {msg.id for msg in event.messages})
            case PreReasoning():
                self._before_reply(event)
            case PostReasoning():
                return self._after_reply(event)
            case PreCall():
                self._open(event)
            case CallEnded():
                self._ended(event)
            case _:
                pass
        return None

    def _open(self, event: PreCall) -> None:
        name = event.session_id
        self._clean_up(name, event.agent.name)
        self._note_running(event)
        if name not in self._queues:
            return
        # A call that was interrupted may have stored a message without reporting it.
        self._remove_stored(name, {msg.id for msg in event.history})
        messages = self._offer(name, event.call_id)
        if messages:
            event.input_messages = (*messages, *event.input_messages)

    def _before_reply(self, event: PreReasoning) -> None:
        name = event.session_id
        self._note_running(event)
        if event.purpose == "summary" or name not in self._queues:
            return
        self._remove_stored(name, {msg.id for msg in event.input_messages})
        self._return_unstored(name, event.call_id)
        found = self._offer(name, event.call_id)
        if found:
            event.context.inject(*found, source=SOURCE)

    def _after_reply(self, event: PostReasoning) -> Again | None:
        name = event.session_id
        if name not in self._queues or event.purpose == "summary" or event.reasoning_result.tool_uses:
            return None
        state = event.context.state[_SentBack]
        if state.back >= self.max_back:
            return None
        found = self._offer(name, event.call_id)
        if not found:
            return None
        state.back += 1
        return Again(found)

    def _ended(self, event: CallEnded) -> None:
        with self._lock:
            self._running.pop(event.call_id, None)
        self._return_unstored(event.session_id, event.call_id)

    # ---- the queues

    def _note_running(self, event: PreCall | PreReasoning) -> None:
        name = event.session_id
        if event.call_id in self._running:  # without the lock: only this call adds its id
            return
        with self._lock:
            self._running[event.call_id] = name, event.agent.name
            self._several = self._several or self._seen not in (None, name)
            self._seen = name

    def _clean_up(self, name: str, agent: str) -> None:
        """Clean up after a call whose event loop ended before `CallEnded`. This is safe, because calls of a session
        never overlap.
        """
        with self._lock:
            dead = [call_id for call_id, session in self._running.items() if session == (name, agent)]
            for call_id in dead:
                del self._running[call_id]
        for call_id in dead:
            self._return_unstored(name, call_id)

    def _offer(self, name: str, call_id: str) -> tuple[Msg, ...]:
        """Offer a call the messages that no other call has."""
        with self._lock:
            found = [entry for entry in self._queues.get(name, []) if not entry.offered]
            for entry in found:
                entry.offered = call_id
            return tuple([entry.msg for entry in found])

    def _return_unstored(self, name: str, call_id: str) -> None:
        """Queue messages again that a call got but did not store: another hook's verdict may have taken precedence."""
        with self._lock:
            for entry in self._queues.get(name, []):
                if entry.offered == call_id:
                    entry.offered = ""

    def _remove_stored(self, name: str, ids: set[str]) -> None:
        with self._lock:
            self._set_queue(name, [entry for entry in self._queues.get(name, []) if entry.msg.id not in ids])

    def _set_queue(self, name: str, entries: list[_QueuedMessage]) -> None:
        if entries:
            self._queues[name] = entries
        else:
            self._queues.pop(name, None)


def _id(session: str | Session | None) -> str | None:
    return session.id if isinstance(session, Session) else session
