"""The picture on the first page: a call with its rounds, tools and events, and the chain of hooks that each event passes."""

from __future__ import annotations

from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Event,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from website.pictures.svg import Colour, Picture

__all__ = ["draw"]


def _event(picture: Picture, x: float, y: float, kind: type[Event], colour: Colour, w: float = 148) -> None:
    """Draw an event, and the verdicts that hooks may return on it."""
    verdicts = " · ".join(verdict.__name__ for verdict in kind.verdicts)
    lines = [(kind.__name__, 13.0, True, True), *([(verdicts, 11.5, False, False)] if verdicts else [])]
    picture.chip(x, y, w, 46, lines, colour)


def _stage(picture: Picture, y: float, work: str, chunks: type[Event], colour: Colour, x: float, w: float) -> None:
    """Draw work inside its wrapping hooks, and the chunks that it yields."""
    picture.box(x, y, w, 82, colour, dash=True)
    picture.text(x + w / 2, y + 17, "around: retry, cache …", colour, size=12, anchor="middle")
    picture.chip(x + 14, y + 26, w - 28, 26, [(work, 13.5, False, True)], colour)
    picture.text(x + w / 2, y + 71, f"⋯ {chunks.__name__} ⋯", colour, size=12, anchor="middle", mono=True)


def draw() -> Picture:
    """Draw the picture."""
    p = Picture(
        960,
        672,
        "A call: PreCall, then rounds of reasoning, each a model call and the tools it asks for, then PostCall and CallEnded. "
        "Each event passes one chain of editing hooks, guards and observers.",
    )
    p.box(16, 16, 928, 444, "call", r=14)
    p.text(34, 44, "agent.call(input)", "call", size=15, mono=True, bold=True)
    p.text(926, 44, "→ Reply", "call", size=15, mono=True, bold=True, anchor="end")
    p.box(186, 58, 568, 388, "plain", r=12)
    p.text(202, 80, "a round of reasoning, until the model answers without tools", "plain", size=13)
    _model(p, 132)
    _tools(p, 316)
    # The lines between the stages.
    p.line("M664 156 L664 202", "model")
    p.text(656, 190, "it asks for tools", "muted", size=12, anchor="end")
    p.line("M566 409 L170 409 L170 142 L200 142", "tool")
    p.text(216, 402, "the next round: the model reads the results", "tool", size=12)
    _event(p, 28, 208, PreCall, "call", 122)
    p.line("M89 208 L89 122 L200 122", "call")
    for line, text in enumerate(("every event is typed;", "below its name:", "the verdicts that", "hooks may return")):
        p.text(89, 276 + 16 * line, text, "call", size=12, anchor="middle")
    p.line("M740 132 L856 132 L856 206", "model")
    p.text(766, 124, "the answer", "muted", size=12)
    _event(p, 786, 208, PostCall, "call", 140)
    p.line("M856 254 L856 284", "call")
    _event(p, 786, 286, CallEnded, "call", 140)
    for line, text in enumerate(("always the last,", "success or failure")):
        p.text(856, 352 + 16 * line, text, "call", size=12, anchor="middle")
    _chain(p, 500)
    return p


def _model(p: Picture, y: float) -> None:
    """Draw the model's stage; `y` is its middle."""
    _event(p, 202, y - 23, PreReasoning, "model", 166)
    _stage(p, y - 41, "the model", ReasoningChunk, "model", 390, 176)
    _event(p, 588, y - 23, PostReasoning, "model", 152)
    p.line(f"M368 {y} L388 {y}", "model")
    p.line(f"M566 {y} L586 {y}", "model")


def _tools(p: Picture, y: float) -> None:
    """Draw the round of tools; `y` is the middle of a single tool."""
    p.box(202, 204, 538, 232, "tool", r=12)
    _event(p, 216, 212, PreToolRound, "tool", 172)
    p.text(402, 231, "once for all tools of the reply;", "tool", size=12)
    p.text(402, 247, "readers in parallel, writers one by one", "tool", size=12)
    for shift in (10, 5, 0):
        p.box(214 + shift, 266 + shift, 502, 96, "tool", r=8)
    _event(p, 224, y - 24, PreActing, "tool", 168)
    _stage(p, y - 43, "the tool", ActingChunk, "tool", 412, 150)
    _event(p, 582, y - 24, PostActing, "tool", 124)
    p.line(f"M392 {y} L410 {y}", "tool")
    p.line(f"M562 {y} L580 {y}", "tool")
    _event(p, 566, 384, PostToolRound, "tool", 160)


def _chain(p: Picture, y: float) -> None:
    """Draw the chain that each event passes, from the event to the reader."""
    p.text(34, y - 16, "Each event passes one chain of hooks", "paper", size=15, bold=True)
    parts: list[tuple[str, Colour, str, tuple[str, str]]] = [
        ("the event", "plain", "open", ("typed fields,", "some writable")),
        ("editing hooks", "call", "by priority", ("change it, or return a", "verdict: deny, answer …")),
        ("guards", "guard", "by priority", ("check the final event;", "may refuse")),
        ("observers", "seen", "the event is sealed", ("see every event;", "change nothing")),
        ("the reader", "fact", "agent.stream(…)", ("gets it as it happens;", "same as the history")),
    ]
    w, gap = 160, 32
    for number, (name, colour, how, said) in enumerate(parts):
        x = 16 + number * (w + gap)
        p.chip(x, y, w, 54, [(name, 14.5, False, True), (how, 12, False, False)], colour)
        for line, text in enumerate(said):
            p.text(x + w / 2, y + 76 + 17 * line, text, "muted", size=12.5, anchor="middle")
        if number:
            p.line(f"M{x - gap + 2} {y + 27} L{x - 3} {y + 27}", "plain")
    p.line(f"M208 {y + 112} L208 {y + 124} L560 {y + 124} L560 {y + 112}", "guard", head=False)
    said_of = "a verdict replaces the work that follows, and is stored in the event"
    p.text(480, y + 150, said_of, "guard", size=13, anchor="middle")
    p.line(f"M384 {y + 124} L384 {y + 136}", "guard", head=False)
