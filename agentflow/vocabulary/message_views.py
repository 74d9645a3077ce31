"""Read-only views of a conversation's messages, so that the cost of building a request does not grow with the history.

Messages are only appended, so a view of the first n messages stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import is_
from typing import TYPE_CHECKING, NoReturn, cast, overload

from agentflow.vocabulary.messages import Msg, TextBlock, ToolResultBlock, ToolUseBlock

_READ_ONLY = "Messages of an event are read-only"
_CHANGED_BY = {
    "append": f"{_READ_ONLY}; assign a new list: event.input_messages = [*event.input_messages, msg]",
    "extend": f"{_READ_ONLY}; assign a new list: event.input_messages = [*event.input_messages, *more]",
    "insert": f"{_READ_ONLY}; assign a new list: event.input_messages = [msg, *event.input_messages]",
    **dict.fromkeys(
        ("pop", "remove", "clear", "sort", "reverse", "__setitem__"),
        f"{_READ_ONLY}; assign a new list: event.input_messages = [msg for msg in event.input_messages if ...]",
    ),
}
"""The error text for each list method that changes a list."""


class MessageTuple(tuple[Msg, ...]):
    """The first messages of a call: a tuple whose errors show how to replace each list method."""

    __slots__ = ()

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            problem = _CHANGED_BY.get(name) or f"A tuple of messages has no attribute {name!r}"
            raise AttributeError(f"{problem}.", name=name, obj=self)


class Replacements:
    """Messages that replace others in the requests of one conversation. Entries are only added, so that the cost of a
    request does not grow with their number.

    Example:
        >>> view, replacements = MessageView([Msg.user("a"), Msg.assistant("b")], 2), Replacements()
        >>> replacements.put(view, 0, Msg.user("A"))
        True
        >>> [msg.text for msg in view.with_replacements(replacements)]
        ['A', 'b']
    """

    __slots__ = ("by_place", "order")

    def __init__(self) -> None:
        self.by_place: dict[int, tuple[int, Msg]] = {}
        self.order: list[int] = []

    def put(self, view: MessageView, index: int, instead: Msg) -> bool:
        """Add a replacement.

        Args:
            view: A request without replacements.
            index: The position of the message in the view.
            instead: The replacement, which must have the same role and the same calls or results.

        Returns:
            Whether it was added; a message that has a replacement already keeps it.
        """
        stored = view.place(index)
        # An entry with a later number would be invisible to earlier views, so the first replacement stays.
        if stored is None or stored in self.by_place or _shape(view[index]) != _shape(instead):
            return False
        self.order.append(stored)
        self.by_place[stored] = len(self.order), instead
        return True


def _shape(msg: Msg) -> tuple[object, ...]:
    """Return the properties that decide whether a message is legal at its position."""
    ids = [block.id for block in msg.content if isinstance(block, ToolUseBlock)]
    answered = [block.tool_use_id for block in msg.content if isinstance(block, ToolResultBlock)]
    return msg.role, bool(msg.content), ids, answered


class MessageView(Sequence[Msg]):
    """A read-only view of a growing list: an optional head, the messages from `start` to `stop`, and an optional tail.

    Building a view is O(1), as is adding messages before or after it (`with_head`, `with_tail`).

    Example:
        >>> [m.text for m in MessageView([Msg.user("a"), Msg.user("b")], 1, head=(Msg.system("s"),))]
        ['s', 'a']
    """

    __slots__ = ("_head", "_messages", "_replaced", "_start", "_stop", "_tail")

    def __init__(
        self,
        messages: list[Msg],
        stop: int,
        head: tuple[Msg, ...] = (),
        start: int = 0,
        tail: tuple[Msg, ...] = (),
        replaced: tuple[Replacements, int] | None = None,
    ) -> None:
        self._messages = messages
        self._stop = stop
        self._head = head
        self._start = start
        self._tail = tail
        self._replaced = replaced

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            problem = _CHANGED_BY.get(name) or f"A view of messages has no attribute {name!r}"
            raise AttributeError(f"{problem}.", name=name, obj=self)

        def __setitem__(self, key: object, value: object) -> NoReturn:
            raise TypeError(f"{_CHANGED_BY['__setitem__']}.")

    @property
    def head(self) -> tuple[Msg, ...]:
        """The messages before the stored ones, such as the system prompt or a summary."""
        return self._head

    @property
    def tail(self) -> tuple[Msg, ...]:
        """The messages after the stored ones."""
        return self._tail

    @property
    def replacements(self) -> Replacements | None:
        """The messages that replace stored ones, or None."""
        return None if self._replaced is None else self._replaced[0]

    def with_ends(self, head: tuple[Msg, ...], tail: tuple[Msg, ...]) -> MessageView:
        """Return the same stored messages with another head and tail."""
        return MessageView(self._messages, self._stop, head, self._start, tail, self._replaced)

    def with_head(self, head: tuple[Msg, ...]) -> MessageView:
        """Return the same view with another head."""
        return MessageView(self._messages, self._stop, head, self._start, self._tail, self._replaced)

    def with_tail(self, *messages: Msg) -> MessageView:
        """Return the same view with messages appended."""
        tail = (*self._tail, *messages)
        return MessageView(self._messages, self._stop, self._head, self._start, tail, self._replaced)

    def with_replacements(self, replacements: Replacements) -> MessageView:
        """Return the same view with the replacements added so far."""
        # The number is kept, so that replacements added later do not change this view.
        replaced = replacements, len(replacements.order)
        return MessageView(self._messages, self._stop, self._head, self._start, self._tail, replaced)

    def place(self, index: int) -> int | None:
        """Return the index of a message in the stored conversation; None if it is in the head or the tail."""
        at = index - len(self._head) + self._start
        return at if self._start <= at < self._stop else None

    def shared(self, earlier: Sequence[Msg]) -> int:
        """Return the length of the prefix that this view is known to share with an earlier one, without comparing messages."""
        if (
            not isinstance(earlier, MessageView)
            or earlier._messages is not self._messages
            or earlier._start != self._start
            or not (earlier._head is self._head or _same_objects(earlier._head, self._head))
        ):
            return 0
        shared = min(self._stop, earlier._stop)
        if self._replaced is not None or earlier._replaced is not None:
            shared = self._shared_in(earlier, shared)
        return len(self._head) + max(0, shared - self._start)

    def _shared_in(self, earlier: MessageView, stop: int) -> int:
        """Return the index up to which both views have the same replacements."""
        (ours, now), (theirs, then) = self._replaced or _NONE_REPLACED, earlier._replaced or _NONE_REPLACED
        if ours is not theirs and now and then:  # nothing is known about two different sets
            return self._start
        order = ours.order if now else theirs.order
        # The views differ first at the smallest index among the replacements that only one of them has.
        return min([stop, *order[min(now, then) : max(now, then)]])

    def since(self, index: int) -> list[Msg]:
        """Return the stored messages from an index on; the cost depends only on their number.

        Args:
            index: At least the length of the head.
        """
        begin = index - len(self._head) + self._start
        if self._replaced is None:
            return self._messages[begin : self._stop]
        return list(map(self._stored, range(begin, self._stop)))

    def only_adds_to(self, base: MessageView) -> bool:
        """Whether this view is legal if `base` is: it has the same stored messages, only system messages before them, and
        only user text after them."""
        if self._messages is not base._messages or self._start != base._start or self._stop != base._stop:
            return False
        # Usually the same object, so its messages need not be read.
        if self._head is not base._head:
            for msg in (*self._head, *base._head):
                if msg.role != "system":
                    return False
        return all(map(_plain, self._tail))

    def __len__(self) -> int:
        return len(self._head) + self._stop - self._start + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> Msg: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Msg]: ...
    def __getitem__(self, index: int | slice) -> Msg | Sequence[Msg]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return self._part(first, last) if step == 1 else tuple(self)[index]
        head, start = self._head, self._start
        # The stored messages are tested first, so that the frequent case takes two comparisons.
        at = index - len(head)
        if 0 <= at < self._stop - start:
            return self._messages[start + at] if self._replaced is None else self._stored(start + at)
        if index < 0:
            index += len(self)
            return self[index] if index >= 0 else _no_such_message()
        if at < 0:
            return head[index]
        at -= self._stop - start
        return self._tail[at] if at < len(self._tail) else _no_such_message()

    def _part(self, first: int, last: int) -> tuple[Msg, ...]:
        """Return a slice; the cost depends only on its length, not on that of the history."""
        if self._replaced is not None:
            return tuple([self[index] for index in range(first, last)])
        head, start, stop = len(self._head), self._start, self._stop
        shift, tail_start = start - head, head + stop - start
        if head <= first <= last <= tail_start:
            return tuple(self._messages[first + shift : last + shift])
        stored = self._messages[max(first + shift, start) : min(max(last + shift, start), stop)]
        return (*self._head[first:last], *stored, *self._tail[max(first - tail_start, 0) : max(last - tail_start, 0)])

    def __iter__(self) -> Iterator[Msg]:
        if self._replaced is not None:
            return chain(self._head, map(self._stored, range(self._start, self._stop)), self._tail)
        return chain(self._head, islice(self._messages, self._start, self._stop), self._tail)

    def __reversed__(self) -> Iterator[Msg]:
        stored: Callable[[int], Msg] = self._messages.__getitem__ if self._replaced is None else self._stored
        places = range(self._stop - 1, self._start - 1, -1)
        return chain(reversed(self._tail), map(stored, places), reversed(self._head))

    def _stored(self, index: int) -> Msg:
        replacements, count = self._replaced or _NONE_REPLACED
        number, instead = replacements.by_place.get(index, _NEVER)
        # A replacement with a higher number was added after this view was made.
        return instead if number <= count else self._messages[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str):
            return tuple(self) == tuple(cast("Sequence[object]", other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} messages>"


def _no_such_message() -> NoReturn:
    raise IndexError("message index out of range")


_NONE_REPLACED = Replacements(), 0
_NEVER: tuple[float, Msg] = float("inf"), Msg.user("")


def _same_objects(one: tuple[Msg, ...], other: tuple[Msg, ...]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _plain(msg: Msg) -> bool:
    """Whether a message is only user text, which is legal after any message except in an open round."""
    if msg.role != "user" or not msg.content:
        return False
    for block in msg.content:  # noqa: SIM110 - `all` takes three times as long
        if type(block) is not TextBlock:
            return False
    return True


def with_first(messages: Sequence[Msg], first: Msg, *, instead: bool) -> Sequence[Msg]:
    """Return the messages with `first` before the first message, or instead of it.

    The cost for a view of the history does not depend on its length.
    """
    if isinstance(messages, MessageView) and (messages.head or not instead):
        return messages.with_head((first, *messages.head[instead:]))
    return (first, *messages[instead:])


def with_appended(messages: Sequence[Msg], *added: Msg) -> Sequence[Msg]:
    """Return the messages with others appended; the cost for a view of the history does not depend on its length."""
    return messages.with_tail(*added) if isinstance(messages, MessageView) else (*messages, *added)
