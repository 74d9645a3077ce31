"""A note in a run's requests, with the matches of the user's input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentflow.plugins._counting import LastRequest
from agentflow.vocabulary.events import PreReasoning
from agentflow.vocabulary.messages import Msg, with_metadata
from agentflow.vocabulary.transcript import with_appended


class MatchingNote:
    """The note for a run's input: the same in all its requests, so that the provider's prompt cache applies."""

    def __init__(self) -> None:
        self._input = ""
        self._requests = LastRequest()
        self._text: str | None = None

    async def add(self, event: PreReasoning, find: Callable[[str], Awaitable[str]], form: str, source: str) -> None:
        """Add the note to a request.

        Args:
            event: The event of the request.
            find: Returns the matches of an input, as lines; empty if there are none.
            form: The note, with `{lines}` for the matches.
            source: The note's mark.
        """
        request = self._requests.of(event.input_messages)
        text = "" if request is None else request.text
        if self._text is None or self._input != text:
            lines = await find(text) if text else ""
            self._input, self._text = text, form.format(lines=lines) if lines else ""
        if self._text:
            note = with_metadata(Msg.user(self._text, id=event.context.new_id("msg_")), synthetic=source)
            event.input_messages = with_appended(event.input_messages, note)
