"""Makes a `Recorder`'s records of what was seen: a message once, values by digest and in short.

Nothing here runs where agents run: what is seen is kept as references to values that nobody can change, and made into
records by whoever writes or reads them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from agentflow.events import Event
from agentflow.hooks.recording import FieldChange
from agentflow.messages import Msg
from agentflow.plugins.recorder_records import (
    AddedRecord,
    Edit,
    HookRecord,
    MessageRecord,
    Record,
    Shown,
    Via,
    message_digest,
    show,
)
from agentflow.verdicts import AnyVerdict, carried

__all__ = ["Deed", "Making", "Place", "place_of"]


class Place(NamedTuple):
    """Where and when an event was."""

    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0


def place_of(event: Event) -> Place:
    """The place of an event; one built by hand belongs to no run."""
    frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
    if frame is None:
        return Place(iteration=event.iteration, seq=event.seq, time=event.time)
    return Place(frame.run_id, frame.call_id, frame.session_id, frame.source, event.iteration, event.seq, event.time)


class Deed(NamedTuple):
    """What a hook did, as it was seen; it holds no event, which would keep a whole run alive."""

    hook: str
    priority: float
    event: str
    via: Via
    duration_ms: float
    tool_use_id: str
    place: Place
    changes: tuple[FieldChange, ...] = ()
    verdict: Any = None
    error: str = ""
    detail: str = ""


class Making:
    """Makes records; knows which messages it has written. One at a time: whoever calls it holds a lock.

    Args:
        short: Most characters of the short forms; 0: digests only.
        every_call: Whether what changed nothing is recorded too.
        most: How many messages it remembers.
    """

    def __init__(self, short: int, every_call: bool, most: int) -> None:
        self._short = short
        self._every_call = every_call
        self._most = most
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._digests: OrderedDict[int, tuple[Msg, str]] = OrderedDict()

    def messages(self, messages: Iterable[Msg], event: str, place: Place) -> list[Record]:
        """The messages that are new."""
        made: list[Record] = []
        for msg in messages:
            key = msg.id, self._digest(msg)
            if key in self._known:
                continue
            self._known[key] = None
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            calls = [*(use.id for use in msg.tool_uses), *(result.tool_use_id for result in msg.tool_results)]
            made.append(
                MessageRecord(
                    id=msg.id,
                    digest=key[1],
                    role=msg.role,
                    event=event,
                    calls=tuple(calls),
                    message=msg.to_dict() if self._short else None,
                    **place._asdict(),
                )
            )
        return made

    def added(self, messages: Sequence[Msg], origin: str, event: str, place: Place) -> list[Record]:
        """Messages that no other event carries."""
        made = self.messages(messages, event, place)
        shown = tuple((msg.id, self._digest(msg)) for msg in messages)
        sources = tuple(str(msg.metadata.get("synthetic", "")) for msg in messages)
        return [*made, AddedRecord(origin=origin, messages=shown, sources=sources, **place._asdict())]

    def deed(self, deed: Deed) -> list[Record]:
        """What a hook did, behind the messages that are new with it."""
        made: list[Record] = []
        edits: list[Edit] = []
        for change in deed.changes:
            field, before, after = change.field, change.before, change.after
            if deed.via != "around":
                made += self.messages(_messages_in(before), deed.event, deed.place)
                made += self.messages(_messages_in(after), deed.event, deed.place)
            was, now = self._show(before), self._show(after)
            if was != now:
                edits.append(Edit(field, was, now))
            if deed.via != "around":
                edits.extend(_marked(field, before, after, self._short))
        if edits or deed.verdict is not None or deed.error or self._every_call:
            made.append(
                HookRecord(
                    hook=deed.hook,
                    priority=deed.priority,
                    event=deed.event,
                    via=deed.via,
                    edits=tuple(edits),
                    verdict="" if deed.verdict is None else type(deed.verdict).__name__,
                    detail=self._detail(deed.detail if deed.verdict is None else deed.verdict),
                    error=deed.error,
                    duration_ms=deed.duration_ms,
                    tool_use_id=deed.tool_use_id,
                    **deed.place._asdict(),
                )
            )
        return made

    # ---- in short

    def _show(self, value: Any) -> Shown:
        return show(value, self._short, self._digest)

    def _digest(self, msg: Msg) -> str:
        found = self._digests.get(id(msg))
        if found is not None and found[0] is msg:
            return found[1]
        digest = message_digest(msg)
        # Holding the message keeps its identity from being given to another one.
        self._digests[id(msg)] = msg, digest
        if len(self._digests) > self._most:
            self._digests.popitem(last=False)
        return digest

    def _detail(self, value: object) -> str:
        if not self._short or not value:
            return ""
        if not isinstance(value, AnyVerdict):
            return show(str(value), self._short).short
        given = carried(value)
        return "" if given is None else show(given, self._short).short


def _marked(field: str, before: object, after: object, short: int) -> Iterable[Edit]:
    """What has changed in the metadata of messages that are there before and after."""
    old = {msg.id: msg for msg in _messages_in(before)}
    for msg in _messages_in(after):
        was = old.get(msg.id)
        if was is None or was is msg or was.metadata == msg.metadata:
            continue
        shown = [show(", ".join(f"{k}={v!r}" for k, v in sorted(one.metadata.items())), short) for one in (was, msg)]
        yield Edit(f"{field}.metadata", *(Shown(one.digest, one.short, ((msg.id, one.digest),)) for one in shown))


def _messages_in(value: object) -> Iterable[Msg]:
    if isinstance(value, Msg):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [item for item in cast("Sequence[object]", value) if isinstance(item, Msg)]
    return ()
