"""Paused runs on the page: their data, and the actions on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentflow.errors import UsageError
from agentflow.plugins.debugger.deciding import VERDICTS, parse_value, parse_verdict
from agentflow.plugins.debugger.pause import Pause
from agentflow.vocabulary.text import message_text
from agentflow.vocabulary.verdicts import Deny

_LAST = 20


class Pauses:
    """The runs that are paused for a user of the page.

    Attributes:
        version: A number that changes with the set of pauses.
    """

    def __init__(self) -> None:
        self.version = 0
        self._waiting: dict[str, Pause] = {}
        self._changed: set[asyncio.Future[None]] = set()

    async def show(self, pause: Pause) -> None:
        """Show a pause until it ends."""
        self._waiting[pause.id] = pause
        self._note()
        try:
            await pause.over
        finally:
            self._waiting.pop(pause.id, None)
            self._note()

    def _note(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, set()
        for future in changed:
            loop = future.get_loop()
            loop.call_soon_threadsafe(_settle, future)  # a run can be in another thread than the page's server

    async def changed(self, version: int, seconds: float) -> None:
        """Wait until the version changes, with a time limit in seconds."""
        if version != self.version:
            return
        future = asyncio.get_running_loop().create_future()
        self._changed.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            self._changed.discard(future)
            future.cancel()

    def shown(self) -> list[dict[str, Any]]:
        """Return the pauses as data for the page."""
        return [_shown(pause) for pause in tuple(self._waiting.values())]

    def act(self, pause_id: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Perform an action from the page.

        Raises:
            UsageError: The pause has ended, or the action is not possible.
        """
        pause = self._waiting.get(pause_id)
        if pause is None:
            raise UsageError("This pause has ended: the run has continued or finished.")
        match data:
            case {"do": "continue" | "step" as how}:
                pause.resume(step=how == "step")
            case {"do": "edit", "field": str(field), "value": str(value)}:
                # A text is taken as it is, even if it looks like JSON.
                as_text = field in pause.writable and isinstance(pause.value(field), str)
                pause.edit(field, value if as_text else parse_value(value))
                return {"value": pause.value(field)}
            case {"do": "decide", "verdict": str(name), "value": str(value)} if name in VERDICTS:
                pause.decide(parse_verdict(VERDICTS[name], value))
            case _:
                raise UsageError("Unknown action for a paused run.")
        return {}


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _shown(pause: Pause) -> dict[str, Any]:
    event = pause.event
    done = "denied" if pause.otherwise == "deny" and Deny in pause.verdicts else "continued"
    return {
        "id": pause.id,
        "type": type(event).__name__,
        "agent": f"{event.source}/{event.agent.name}" if event.source else event.agent.name,
        "round": event.iteration,
        "writable": pause.writable,
        "verdicts": [kind.__name__ for kind in pause.verdicts],
        "chain": [
            {"hook": place.hook, "kind": place.kind, "priority": place.priority, "here": place.here}
            for place in pause.chain
        ],
        "fields": pause.fields,
        "history": [{"role": msg.role, "text": message_text(msg)} for msg in pause.history[-_LAST:]],
        "ends": "" if pause.limit is None else f"{done} after {pause.limit:g} s",
    }
