"""The transcript: a conversation whose order every provider accepts.

Rules (OpenAI, Anthropic, Gemini, Mistral or Bedrock refuses a conversation that breaks one):

1. All tool calls of an assistant message are answered exactly once, in call order, by one tool message directly after it.
2. Nothing is stored between calls and their results: other messages wait until the results are stored.
3. Tool-use ids are unique in the whole conversation.
4. No system message is stored: the system prompt is added to the front of each request.
5. A request starts with a user message and never ends with an assistant message (`legalise`).

Messages are only appended, so a view of the first n messages stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentflow._support.ids import new_id as fresh_id
from agentflow.errors import TranscriptError
from agentflow.vocabulary.message_views import MessageTuple, MessageView, Replacements, with_appended
from agentflow.vocabulary.messages import (
    ContentBlock,
    Msg,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    message,
    tool_result,
    with_metadata,
)

__all__ = ["MessageTuple", "MessageView", "Replacements", "Transcript", "check_injected", "legalise", "with_appended"]


_new = object.__new__


_NO_CALLS: tuple[ToolUseBlock, ...] = ()
_NO_IDS: set[str] = {""}  # an empty id is illegal: results and decisions refer to calls by id
"""The ids of a conversation without calls, shared by all such conversations; never changed."""


class Transcript:
    """The ordered messages of a session; see the module's rules.

    Args:
        messages: The first messages of the conversation.

    Attributes:
        stored: The messages, only appended to. A fold may append messages that are known to be legal (the text of a call
            that just opened or closed) directly; all others must be added with the methods.
        open_round: The calls of the last assistant message that wait for results.
        used_ids: The tool-use ids of all calls, and the empty id.

    Raises:
        TranscriptError: The messages break a rule; the error names the message and the rule.
    """

    __slots__ = ("_waiting", "open_round", "stored", "used_ids")

    def __init__(self, messages: Iterable[Msg] = ()) -> None:
        self.stored: list[Msg] = []
        self.open_round = _NO_CALLS
        self._waiting: tuple[tuple[int, Msg], ...] = ()  # messages with the index of the call that they belong to
        self.used_ids = _NO_IDS  # replaced by a new set at the first call
        for msg in messages:
            if msg.role == "tool":
                closed, _ = self.close_round(msg.tool_results, id=msg.id)
                self.stored[-1] = replace(msg, content=closed.content)  # in the order of the calls
            elif self.open_round:
                raise TranscriptError(
                    f"Message {len(self.stored)} ({msg.role}) is between tool calls and their results; results of "
                    f"{[use.id for use in self.open_round]} must come first."
                )
            else:
                self.append(msg)

    @property
    def messages(self) -> MessageView:
        """All messages stored so far; the view does not change when others are added."""
        return self.view()

    def view(self, head: tuple[Msg, ...] = (), start: int = 0) -> MessageView:
        """Return a view of the messages stored so far, with `head` in front and without the first `start` messages."""
        # Calling the class would double the cost, because C code would then call `__init__`.
        view: Any = _new(MessageView)
        view._messages = messages = self.stored
        view._stop = len(messages)
        view._head = head
        view._start = start
        view._tail = ()
        view._replaced = None
        return view

    def since(self, start: int) -> list[Msg]:
        """Return the messages stored from an index on."""
        return self.stored[start:]

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def sendable(self) -> bool:
        """Whether the current conversation starts with a user message and ends with a user message or results."""
        messages = self.stored
        return bool(messages) and messages[-1].role != "assistant" and messages[0].role == "user"

    def append(self, msg: Msg) -> bool:
        """Store a user or assistant message.

        Returns:
            Whether it was stored; False if a round is open, so that the message waits for its end.

        Raises:
            TranscriptError: The message cannot be part of a conversation (role, repeated tool-use id).
        """
        role = msg.role
        if role == "user":
            if self.open_round:
                return self._wait(len(self.open_round), msg)
            self.stored.append(msg)
            return True
        if role != "assistant":
            legal = "results are stored with close_round" if role == "tool" else "it is added to the front of requests"
            raise TranscriptError(f"A {role} message cannot be appended to a conversation: {legal}.")
        for block in msg.content:
            if type(block) is ToolUseBlock:
                self.ask(msg)
                return True
        if self.open_round:
            return self._wait(len(self.open_round), msg)
        self.stored.append(msg)
        return True

    def ask(self, msg: Msg) -> tuple[ToolUseBlock, ...]:
        """Store an assistant message with tool calls, which opens a round.

        Returns:
            The calls of the round.

        Raises:
            TranscriptError: A round is open already, or an id is empty or already used.
        """
        if self.open_round:
            raise TranscriptError(
                f"The assistant cannot ask for tools while {[use.id for use in self.open_round]} wait for results."
            )
        content, used = msg.content, self.used_ids
        if used is _NO_IDS:  # shared, so the first call needs its own set
            used = self.used_ids = set(_NO_IDS)
        # The frequent case, without building a list. The empty id is in `used`, so it is refused too.
        if len(content) == 1 and type(use := content[0]) is ToolUseBlock and (use_id := use.id) not in used:
            uses = (use,)
            used.add(use_id)
        else:
            uses = msg.tool_uses
            self.check_uses(uses)
            used.update([use.id for use in uses])
        self.open_round = uses
        self.stored.append(msg)
        return uses

    def _wait(self, index: int, msg: Msg) -> bool:
        self._waiting = (*self._waiting, (index, msg))  # a new tuple, since forks share the old one
        return False

    def check_uses(self, uses: Sequence[ToolUseBlock]) -> None:
        """Check that tool calls can be stored.

        Raises:
            TranscriptError: An id is empty or already used.
        """
        ids = {use.id for use in uses}
        if "" in ids:
            raise TranscriptError(
                f"The tool call {next(use.name for use in uses if not use.id)!r:.80} has an empty id."
            )
        if len(ids) < len(uses) or not self.used_ids.isdisjoint(ids):
            raise TranscriptError(
                f"Tool-use ids must be unique in a conversation; repeated: "
                f"{sorted(i for i in ids if i in self.used_ids) or sorted(u.id for u in uses)}."
            )

    def inject(self, msg: Msg, at: int | None = None) -> bool:
        """Store a message at the first legal position.

        Args:
            msg: A user message, or an assistant message without tool calls.
            at: The index of the call during which it was injected; waiting messages are ordered by it.

        Returns:
            Whether it was stored; False if it waits for the end of the open round.
        """
        check_injected(msg)
        if self.open_round:
            return self._wait(len(self.open_round) if at is None else at, msg)
        self.stored.append(msg)
        return True

    def close_round(
        self,
        results: Sequence[ToolResultBlock],
        id: str | None = None,  # noqa: A002 - the name of the field
    ) -> tuple[Msg, tuple[Msg, ...]]:
        """Store the results of the open round as one tool message, then the messages that waited for it.

        Args:
            results: One result for each open call, in any order.
            id: The tool message's id; a fresh one by default.

        Returns:
            The tool message, and the stored messages that had waited.

        Raises:
            TranscriptError: No round is open, or results are missing, repeated or unknown.
        """
        wanted = self.open_round
        # The frequent case: there is nothing to check or to order.
        if len(results) == 1 and len(wanted) == 1 and results[0].tool_use_id == wanted[0].id:
            ordered = tuple(results)
        else:
            self.check_round(results)
            by_id = {result.tool_use_id: result for result in results}
            ordered = tuple([by_id[use.id] for use in self.open_round])
        msg = message("tool", ordered, fresh_id("msg_") if id is None else id)
        self.stored.append(msg)
        self.open_round = ()
        if not self._waiting:
            return msg, ()
        added = self.waiting
        self._waiting = ()
        self.stored.extend(added)
        return msg, added

    def check_round(self, results: Sequence[ToolResultBlock]) -> None:
        """Check that results answer the open round.

        Raises:
            TranscriptError: No round is open, or results are missing, repeated or unknown.
        """
        open_round = self.open_round
        if len(open_round) == 1 and len(results) == 1 and results[0].tool_use_id == open_round[0].id:
            return
        answered = [result.tool_use_id for result in results]
        if not open_round:
            raise TranscriptError(f"Results {answered} answer no open call: the last message asks for no tools.")
        wanted = [use.id for use in open_round]
        if sorted(answered) != sorted(wanted):
            raise TranscriptError(f"A round closes with exactly one result for each of {wanted}; got {answered}.")

    @property
    def waiting(self) -> tuple[Msg, ...]:
        """The messages that wait for the end of the open round, in the order in which they will be stored."""
        # Sorting is stable: messages of one call keep their order. Those without a call have the last index.
        return tuple(msg for _, msg in sorted(self._waiting, key=_call_index))

    def fork(self) -> Transcript:
        """Return an independent copy."""
        copy = Transcript()
        copy.stored = list(self.stored)
        copy.open_round = self.open_round
        copy._waiting = self._waiting
        copy.used_ids = set(self.used_ids)
        return copy


def check_injected(msg: Msg) -> None:
    """Check that a message can be injected into a conversation.

    Raises:
        TranscriptError: The message has tool calls or results, or is a system message.
    """
    if msg.role not in ("user", "assistant") or msg.tool_uses:
        raise TranscriptError(
            f"Only user messages and assistant messages without tool calls can be injected, not {msg.role} with "
            f"{len(msg.tool_uses)} calls. Instructions: inject a user message, or edit PreReasoning.input_messages."
        )


def _call_index(entry: tuple[int, Msg]) -> int:
    return entry[0]


NOTE = "[{source}] {text}"
"""The text of a user message that replaces a message whose role is not legal at its position."""

CONTINUED = "(the conversation goes on)"
"""The user message that is inserted if a request would otherwise start or end without one."""


def legalise(messages: Iterable[Msg], new_id: Callable[[str], str] = fresh_id) -> tuple[Msg, ...]:
    """Put messages into an order that every provider accepts, with as few changes as possible.

    This is applied to requests that hooks edited, before they are sent; the history is legal by construction. Results
    are moved directly after their calls. Calls without a result are answered with "(no result)"; results without a call
    and repeated results are removed. Late system messages and trailing assistant messages become user messages (`NOTE`).

    Args:
        messages: Any messages in any order.
        new_id: The source of ids for new messages.

    Returns:
        The legal conversation; messages that need no change, except tool messages, are the same objects.
    """
    original = tuple(messages)
    if _is_legal(original):
        return original
    # Collected first, because a result may come before its call or much later.
    results = _results_by_call(original)
    legal: list[Msg] = []
    used: set[str] = set()
    for msg in original:
        role = msg.role
        if role == "tool":
            continue
        if role == "system":
            if all(earlier.role == "system" for earlier in legal):
                legal.append(msg)
            elif msg.text.strip():
                legal.append(note(msg, "system"))
            continue
        if role == "user":
            legal.append(_without(msg, ToolUseBlock, ToolResultBlock))
            continue
        msg = _unique_calls(_without(msg, ToolResultBlock), used)
        legal.append(msg)
        if uses := msg.tool_uses:
            answers = [
                # Removed when used, so that no result is sent twice.
                results.pop(use.id, None) or tool_result(use.id, use.name, "(no result)", "error")
                for use in uses
            ]
            legal.append(message("tool", tuple(answers), new_id("msg_")))
    legal = [msg for msg in legal if msg.content]  # blocks may have been removed; providers refuse empty messages
    first = next((i for i, msg in enumerate(legal) if msg.role != "system"), len(legal))
    if first == len(legal) or legal[first].role != "user":
        legal.insert(first, _continuation(new_id))
    # Some providers refuse a last message of the assistant, others continue it as the beginning of the answer.
    if legal[-1].role == "assistant":
        legal[-1] = note(legal[-1], "assistant")
    return tuple(legal)


def _is_legal(messages: tuple[Msg, ...]) -> bool:
    """Whether no change is needed. This is the case for most requests, and checking it costs a quarter of rebuilding them."""
    used: set[str] = set()
    calls: list[str] = []  # the calls of the previous message, which the next one must answer
    before = "system"
    for msg in messages:
        role, content = msg.role, msg.content
        if not content or (calls and role != "tool") or (before == "system" and role not in ("system", "user")):
            return False
        if role == "tool":
            if [getattr(block, "tool_use_id", None) for block in content] != calls or not calls:
                return False
            calls = []
        else:
            for block in content:
                if type(block) is ToolUseBlock:
                    if role != "assistant" or block.id in used:
                        return False
                    used.add(block.id)
                    calls.append(block.id)
                elif type(block) is ToolResultBlock:
                    return False
            if role == "system" and before != "system":
                return False
        before = role
    return before in ("user", "tool") and not calls


def note(msg: Msg, source: str) -> Msg:
    """Return a message as a user message (`NOTE`), for a position at which its role is not legal."""
    text = msg.text.strip()
    marked = Msg.user(NOTE.format(source=source, text=text), id=msg.id) if text else Msg.user(CONTINUED, id=msg.id)
    return with_metadata(marked, synthetic=source)


def _continuation(new_id: Callable[[str], str]) -> Msg:
    return with_metadata(Msg.user(CONTINUED, id=new_id("msg_")), synthetic="legalise")


def _results_by_call(messages: Iterable[Msg]) -> dict[str, ToolResultBlock]:
    results: dict[str, ToolResultBlock] = {}
    for msg in messages:
        if msg.role == "tool":
            for result in msg.tool_results:
                results.setdefault(result.tool_use_id, result)  # the first of repeated results
    return results


def _without(msg: Msg, *kinds: type[ContentBlock]) -> Msg:
    if not any(isinstance(block, kinds) for block in msg.content):
        return msg
    remaining = tuple(block for block in msg.content if not isinstance(block, kinds))
    return Msg(msg.role, remaining, msg.name, msg.id, msg.metadata, msg.usage, msg.finish_reason)


def _unique_calls(msg: Msg, used: set[str]) -> Msg:
    """Remove calls with an id that was used before, such as those of a copied message."""
    content: list[ContentBlock] = []
    for block in msg.content:
        if isinstance(block, ToolUseBlock):
            if block.id in used:
                continue
            used.add(block.id)
        content.append(block)
    if len(content) == len(msg.content):
        return msg
    remaining = tuple(content) or (TextBlock("(repeated)"),)
    return Msg(msg.role, remaining, msg.name, msg.id, msg.metadata, msg.usage, msg.finish_reason)
