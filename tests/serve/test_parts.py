"""The parts of a reply on a page, which the routes of AG-UI and of the AI SDK encode."""

from __future__ import annotations

from agentflow.serve.parts import PageCall, PageChange, PagePart, PageParts
from agentflow.serve.view import (
    EndEvent,
    GapEvent,
    Public,
    Question,
    ReplyEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    ToolOutputEvent,
)


def changes(parts: PageParts, *events: Public) -> list[PageChange]:
    return [change for event in events for change in parts.changes(event)]


def test_text_with_thinking_in_its_midst() -> None:
    """Texts and thinking are opened and closed in turns; together they are the reply's text, so nothing is corrected."""
    parts, reply = PageParts("m", ()), ReplyEvent(id="1", text="One two.")
    told = changes(parts, TextEvent(text="One "), ThinkingEvent(text="Hm."), TextEvent(text="two."), reply)
    assert (told, parts.text_differs, parts.has_extra_text) == (
        [
            PagePart("start", "text", "m_1"),
            PagePart("delta", "text", "m_1", "One "),
            PagePart("end", "text", "m_1"),
            PagePart("start", "thinking", "m_2"),
            PagePart("delta", "thinking", "m_2", "Hm."),
            PagePart("end", "thinking", "m_2"),
            PagePart("start", "text", "m_3"),
            PagePart("delta", "text", "m_3", "two."),
            PagePart("end", "text", "m_3"),
            reply,
        ],
        False,
        False,
    )


def test_a_restarted_reply_is_wrong_and_the_next_one_is_not() -> None:
    """The page has the text of the first attempt: its reply is corrected, and the conversation at the end."""
    parts = PageParts("m", ())
    changes(parts, TextEvent(text="On"), TextEvent(text="One.", restart=True), ReplyEvent(id="1", text="One."))
    first = parts.text_differs, parts.has_extra_text
    changes(parts, TextEvent(text="Two."), ReplyEvent(id="2", text="Two."))
    assert (first, parts.text_differs, parts.has_extra_text) == ((True, True), False, True)


def test_the_end_completes_what_is_open() -> None:
    """A call without arguments, a question's call and a text are complete before the end; the reason of the end is text."""
    parts = PageParts("m", ["old"])
    question = Question(id="b", kind="approval", name="pay", input={"euros": 5})
    end = EndEvent(outcome="suspended", text="Wait.", questions=[question])
    running = [ToolEvent(id=key, name="pay", state="running") for key in ("a", "old")]
    assert changes(parts, *running, TextEvent(text="One"), end) == [
        PageCall("a", "pay"),
        PagePart("start", "text", "m_1"),
        PagePart("delta", "text", "m_1", "One"),
        PagePart("end", "text", "m_1"),
        PagePart("start", "text", "m_2"),
        PagePart("delta", "text", "m_2", "Wait."),
        PagePart("end", "text", "m_2"),
        PageCall("b", "pay"),
        PageCall("b", "pay", None, {"euros": 5}),
        question,
        PageCall("a", "pay", input={}),
        end,
    ]


def test_output_of_a_call_that_began_in_a_gap() -> None:
    """Output of a call that the page does not have is left out; its result opens the call."""
    parts, gap = PageParts("m", ()), GapEvent()
    result = ToolEvent(id="a", name="pay", state="success")
    assert (changes(parts, gap, ToolOutputEvent(id="a", text="1"), result), parts.has_extra_text) == (
        [gap, PageCall("a", "pay"), PageCall("a", "pay", None, {}), result],
        True,
    )
