"""Whatever hooks inject, edit, drop or reorder, strict providers accept the conversation, over real HTTP, on both
wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import THOROUGH
from wired import EVERY, Wired

from agentflow import (
    Agent,
    DataBlock,
    Hook,
    Msg,
    Recover,
    RunContext,
    Session,
    TextBlock,
    ThinkingBlock,
    ToolEmitter,
    ToolResultBlock,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import UsageError
from agentflow.models.clients import close_clients
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Fault, Say, ScriptedCall, UseTool, WireReply, WireServer
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    Event,
    MessagesAdded,
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
from agentflow.vocabulary.transcript import legalise


@tool(type="read")
async def look(at: str, emitter: ToolEmitter) -> str:
    """Look."""
    await emitter.emit(f"looking at {at}")
    if at == "nowhere":
        raise LookupError("there is no such place")
    return f"saw {at}"


@tool
async def walk(to: str) -> str:
    """Walk."""
    return f"walked to {to}"


ROUND = WireReply(
    "Let me see.",
    calls=(
        ScriptedCall("look", {"at": "left"}, "t1"),
        ScriptedCall("look", {"at": "nowhere"}, "t2"),
        ScriptedCall("walk", {"to": "right"}, "t3"),
        ScriptedCall("fly", {}, "t4"),
    ),
)
SCRIPT = [ROUND, UseTool("walk", {"to": "home"}, id="t5"), Say("Done."), Say("Welcome.")]

KINDS: list[type[Event]] = [
    PreCall,
    PreReasoning,
    ReasoningChunk,
    PostReasoning,
    PreToolRound,
    PreActing,
    ActingChunk,
    Error,
    PostActing,
    PostToolRound,
    PostCall,
    MessagesAdded,
]


class Injects(Hook):
    """Injects a user's and an assistant's message at each event of one kind, numbered."""

    def __init__(self, kind: type[Event], keep: bool) -> None:
        self.kind = kind
        self.keep = keep
        self.count = 0

    def on_event(self, event: Any) -> None:
        if isinstance(event, self.kind) and not (isinstance(event, MessagesAdded) and self.count > 3):
            self.count += 1
            said = (f"note {self.count}", Msg.assistant(f"thought {self.count}"))
            event.context.inject(*said, keep=self.keep, source="injects")


def _first_note(event: PreToolRound) -> None:
    """Inject one message in any case."""
    event.context.inject("by the way", source="first")


def texts(body: Any) -> str:
    """Return a request's body as text, for searching."""
    return repr(body)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "transient"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_injected_from_any_event(wired: Wired, kind: type[Event], keep: bool) -> None:
    """From each event, in a run with parallel tools, a failing and an unknown one: the wire accepts all requests.
    Kept messages are in the history, marked with their source; transient ones are in one request and never in the
    history.
    """
    hook = Injects(kind, keep)
    async with wired.serve(SCRIPT) as server:
        hooks = [hook, on("before_tool_round")(_first_note)]
        agent = Agent("a", wired.model(server, retries=0), tools=[look, walk], hooks=hooks, system="Be good.")
        async with agent.stream("Go.") as events:
            seen = [event async for event in events]
        first = hook.count
        await agent.call("And now?")
    assert first > 0
    assert [type(event) for event in seen].count(CallEnded) == 1
    stored = [msg for msg in agent.session().messages if msg.metadata.get("synthetic") == "injects"]
    sent = [request.body for request in server.requests]
    if keep:
        assert len(stored) == 2 * hook.count
        assert all(f"note {n}" in texts(sent[-1]) for n in range(1, first + 1))
    else:
        assert stored == []
        for n in range(1, hook.count + 1):
            where = [index for index, body in enumerate(sent) if f"note {n}'" in texts(body)]
            assert len(where) <= 1


async def test_an_injected_message_lands_behind_the_round(wired: Wired) -> None:
    """Messages that hooks of parallel tools inject wait for the round's end, and follow it in call order, marked with
    their source.
    """
    turn = asyncio.Event()

    class Notes(Hook):
        async def on_event(self, event: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PostActing):
                if event.tool_use.id == "t1":
                    await turn.wait()
                event.context.inject(f"about {event.tool_use.id}", source="notes")
                turn.set()

    script = [WireReply(calls=ROUND.calls[:2]), Say("Done.")]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[Notes()])
        await agent.call("Go.")
    messages = agent.session().messages
    assert [msg.role for msg in messages] == ["user", "assistant", "tool", "user", "user", "assistant"]
    assert [(msg.text, msg.metadata["synthetic"]) for msg in messages[3:5]] == [
        ("about t1", "notes"),
        ("about t2", "notes"),
    ]


async def test_injected_while_an_error_is_reported(wired: Wired) -> None:
    """A message injected while a broken model call is reported is stored, whether the call recovers or fails; the
    next call works.
    """

    class Saves(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, Error) and event.fatal:
                event.context.inject("it broke", source="saves")
                return Recover("Sorry.") if event.context.session_id == "saved" else None
            return None

    async with wired.serve(
        [Fault.status(400), Fault.status(400), Say("Hello."), Say("Hello.")], strict=False
    ) as server:
        agent = Agent("a", wired.model(server, retries=0), hooks=[Saves()])
        assert (await agent.call("Go.", session="saved")).text == "Sorry."
        with pytest.raises(Exception, match="400"):
            await agent.call("Go.", session="lost")
        for session in ("saved", "lost"):
            assert (await agent.call("Again.", session=session)).text == "Hello."
            assert "it broke" in [msg.text for msg in agent.session(session).messages]


# ---- edits


MAKE: dict[str, Callable[[list[Msg]], list[Msg]]] = {
    "nothing at all": lambda messages: [],
    "without the first": lambda messages: messages[1:],
    "without the user": lambda messages: [msg for msg in messages if msg.role != "user"],
    "without the results": lambda messages: [msg for msg in messages if msg.role != "tool"],
    "without the calls": lambda messages: [msg for msg in messages if msg.role != "assistant"],
    "reversed": lambda messages: messages[::-1],
    "twice": lambda messages: [*messages, *messages],
    "a thought at the end": lambda messages: [*messages, Msg.assistant("I think ...")],
    "a system message at the end": lambda messages: [*messages, Msg.system("Stop soon.")],
    "a system message between": lambda messages: [m for msg in messages for m in (msg, Msg.system("Hm."))],
    "a note between calls and results": lambda messages: [m for msg in messages for m in (msg, Msg.user("Hm."))],
    "a thought between calls and results": lambda messages: [
        m for msg in messages for m in (msg, Msg.assistant("Hm."))
    ],
    "only assistants": lambda messages: [Msg.assistant("a"), Msg.assistant("b")],
    "only a system message": lambda messages: [Msg.system("Be good.")],
    "empty messages": lambda messages: [Msg.user(""), Msg.assistant("  "), *messages, Msg.user(" \n")],
    "a call nobody answered": lambda messages: [*messages, Msg("assistant", (ToolUseBlock("x1", "walk", {}),), id="x")],
    "a result nobody asked for": lambda messages: [
        *messages,
        Msg("tool", (ToolResultBlock("x9", "walk", "there"),), id="x"),
    ],
    "a call of the user": lambda messages: [*messages, Msg("user", (ToolUseBlock("x1", "walk", {}),), id="x")],
    "a result of the user": lambda messages: [*messages, Msg("user", (ToolResultBlock("t1", "walk", "x"),), id="x")],
    "ids that no wire takes": lambda messages: [
        *messages,
        Msg("assistant", (ToolUseBlock("a b/ü", "walk", {}), ToolUseBlock("", "no such tool!", {})), id="x"),
    ],
    "unsigned thoughts": lambda messages: [
        Msg.user("Go."),
        Msg("assistant", (ThinkingBlock("hm", None),), id="x"),
        Msg("assistant", (ThinkingBlock("hm", None), ToolUseBlock("x1", "walk", {})), id="y"),
    ],
    "the round doubled": lambda messages: [*messages[:1], *[m for msg in messages[1:] for m in (msg, msg)]],
}


@pytest.mark.parametrize("edit", MAKE)
async def test_edits_of_a_request(wired: Wired, edit: str) -> None:
    """Whatever a hook changes in `PreReasoning.input_messages`, before any request of a run, the wire accepts it."""

    class Edits(Hook):
        def on_event(self, event: Any) -> None:
            if isinstance(event, PreReasoning):
                event.input_messages = MAKE[edit](list(event.input_messages))

    async with wired.serve(SCRIPT) as server:
        agent = Agent("a", wired.model(server, retries=0), tools=[look, walk], hooks=[Edits()], system="Be good.")
        await agent.call("Go.")
        await agent.call("And now?")
        assert len(server.requests) == 4


def ids(prefix: str) -> st.SearchStrategy[str]:
    return st.sampled_from([f"{prefix}1", f"{prefix}2", "t1", "t2", "h1", "h2", "", "a b"])


TEXTS = st.sampled_from(["", " ", "note", "a\nb", "ü", "\t"])
USES = st.builds(ToolUseBlock, ids("x"), st.sampled_from(["walk", "look", "gone", ""]), st.just({"to": "a"}))
RESULTS = st.builds(ToolResultBlock, ids("x"), st.just("walk"), TEXTS)
THOUGHTS = st.builds(ThinkingBlock, TEXTS, st.sampled_from([None, "", "sig"]))
WORDS = st.builds(TextBlock, TEXTS)
IMAGE = st.just(DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n"))
INSERTED = st.one_of(
    st.builds(Msg.user, TEXTS),
    st.builds(Msg.assistant, TEXTS),
    st.builds(Msg.system, TEXTS),
    st.builds(
        lambda blocks: Msg("assistant", tuple(blocks), id="m"), st.lists(st.one_of(WORDS, USES, THOUGHTS), max_size=3)
    ),
    st.builds(lambda blocks: Msg("tool", tuple(blocks), id="m"), st.lists(RESULTS, max_size=2)),
    st.builds(
        lambda blocks: Msg("user", tuple(blocks), id="m"), st.lists(st.one_of(WORDS, IMAGE, RESULTS), max_size=2)
    ),
)
PLACE = st.integers(0, 12)
EDIT = st.one_of(
    st.tuples(st.just("drop"), PLACE, st.none()),
    st.tuples(st.just("copy"), PLACE, PLACE),
    st.tuples(st.just("move"), PLACE, PLACE),
    st.tuples(st.just("insert"), PLACE, INSERTED),
    st.tuples(st.just("keep"), PLACE, PLACE),
)


def edited(messages: list[Msg], edits: list[Any]) -> list[Msg]:
    """Return the messages after some edits; positions are taken modulo the length."""
    for kind, place, what in edits:
        at = place % (len(messages) or 1)
        if kind == "insert":
            messages.insert(at, what)
        elif messages and kind == "drop":
            del messages[at]
        elif messages and kind == "copy":
            messages.insert(what % len(messages), messages[at])
        elif messages and kind == "move":
            messages.insert(what % len(messages), messages.pop(at))
        elif messages and kind == "keep":
            messages = messages[at : at + what]
    return messages


def base() -> list[Msg]:
    """Return a conversation with two rounds, one of them with two tools."""
    return [
        Msg.user("Go."),
        Msg(
            "assistant",
            (
                TextBlock("Let me see."),
                ToolUseBlock("h1", "look", {"at": "a"}),
                ToolUseBlock("h2", "walk", {"to": "b"}),
            ),
            id="1",
        ),
        Msg("tool", (ToolResultBlock("h1", "look", "saw a"), ToolResultBlock("h2", "walk", "walked")), id="2"),
        Msg("assistant", (ToolUseBlock("h3", "walk", {"to": "c"}),), id="3"),
        Msg("tool", (ToolResultBlock("h3", "walk", "no", "error"),), id="4"),
        Msg.assistant("Done."),
    ]


class Rewrites(Hook):
    """Applies the given edits to every request."""

    def __init__(self, edits: list[Any]) -> None:
        self.edits = edits

    def on_event(self, event: Any) -> None:
        if isinstance(event, PreReasoning):
            event.input_messages = edited(list(event.input_messages), self.edits)


class Line:
    """A server and a model on a loop that outlives the examples."""

    def __init__(self, wire: str, adapter: str) -> None:
        self.runner = asyncio.Runner()
        self.wired = Wired(wire, adapter)
        self.calls = 0
        build = WireServer.anthropic if wire == "anthropic" else WireServer.openai
        self.server = build(self.answer)
        self.runner.run(self.server.__aenter__())
        self.model = self.wired.model(self.server, retries=0)

    def answer(self, request: Any) -> Any:
        self.calls += 1
        if self.calls % 2:
            return WireReply(
                thinking="Hm.",
                calls=(
                    ScriptedCall("look", {"at": "a"}, f"t{self.calls}a"),
                    ScriptedCall("walk", {"to": "b"}, f"t{self.calls}b"),
                ),
            )
        return Say("Done.")

    def call(self, *hooks: Hook) -> str:
        """Make two calls on the base conversation; no request may be refused."""
        hook_list = [*hooks]
        agent = Agent("a", self.model, tools=[look, walk], hooks=hook_list, system="Be good.", default_hooks=())
        before = len(self.server.requests)
        self.calls = 0
        session = Session.fresh(messages=base())
        reply = self.runner.run(agent.call("And now?", session=session))
        again = self.runner.run(agent.call("And then?", session=session))
        refused = [request.refused for request in self.server.requests[before:]]
        assert refused == [None] * len(refused)
        assert len(refused) >= 2
        return f"{reply.outcome} {again.outcome}"

    def close(self) -> None:
        self.runner.run(close_clients())
        self.runner.run(self.server.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def wire_line(request: pytest.FixtureRequest) -> Iterator[Line]:
    """Return a wire and an adapter, with one server for all examples."""
    made = Line(*request.param)
    yield made
    made.close()


class Replaces(Hook):
    """Replaces every request."""

    def __init__(self, messages: list[Msg]) -> None:
        self.messages = messages

    def on_event(self, event: Any) -> None:
        if isinstance(event, PreReasoning):
            event.input_messages = self.messages


class Remembers(Hook):
    """Rewrites stored messages: inputs, replies, results and the last message."""

    def __init__(self, replies: list[Msg], results: list[str], said: str) -> None:
        self.replies = replies
        self.results = results
        self.said = said

    def on_event(self, event: Any) -> None:
        match event:
            case PreCall():
                event.input_messages = [Msg.user(self.said), Msg.assistant(self.said), *event.input_messages]
            case PostReasoning() if self.replies:
                event.reasoning_result = self.replies.pop(0)
            case PostActing() if self.results:
                use = event.tool_use
                event.tool_result = ToolResultBlock(use.id, use.name, self.results.pop(0))
            case PostCall() if not event.final_message.tool_uses:
                event.final_message = Msg.assistant(self.said)
            case _:
                pass


REPLIES = st.builds(
    lambda blocks: Msg("assistant", tuple(blocks), id="m"), st.lists(st.one_of(WORDS, USES, THOUGHTS), max_size=4)
)
CHANGES: dict[str, st.SearchStrategy[Hook]] = {
    "edits (drop, copy, move, insert anything) of requests": st.builds(Rewrites, st.lists(EDIT, max_size=6)),
    "requests of anything at all": st.builds(Replaces, st.lists(INSERTED, max_size=6)),
    "history": st.builds(Remembers, st.lists(REPLIES, max_size=2), st.lists(TEXTS, max_size=4), TEXTS),
}
PROPERTY = settings(
    max_examples=60 if THOROUGH else 20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def adapters(*, litellm: bool) -> pytest.MarkDecorator:
    """Return each wire, over LiteLLM or directly."""
    chosen = [line for line in EVERY if (line[1] == "litellm") == litellm]
    return pytest.mark.parametrize("wire_line", chosen, ids="-".join, indirect=True)


@adapters(litellm=False)
@pytest.mark.parametrize("changes", CHANGES)
@PROPERTY
@given(data=st.data())
def test_random_changes_of_a_run(wire_line: Line, changes: str, data: st.DataObject) -> None:
    """Whatever hooks change in the messages of a run with tools, the wire never refuses."""
    assert wire_line.call(data.draw(CHANGES[changes])) == "completed completed"


@pytest.mark.ci
@adapters(litellm=True)
@settings(PROPERTY, max_examples=20 if THOROUGH else 8)
@given(hook=st.one_of(*CHANGES.values()))
def test_random_changes_of_a_run_over_litellm(wire_line: Line, hook: Hook) -> None:
    """Fewer examples, because LiteLLM is slow, and its requests are made from the same messages."""
    assert wire_line.call(hook) == "completed completed"


async def test_a_compaction_never_cuts_a_round() -> None:
    """`context.compact` within a round, open or closed, is refused: calls stay together with their results."""
    said: list[str] = []

    def cut(context: RunContext) -> None:
        history = context.history
        for until in range(len(history) + 2):
            try:
                context.compact(until, Msg.user("gist"))
            except UsageError as error:
                said.append(f"{until} of {len(history)}: {str(error).partition(' would ')[2] or error}")
            else:
                said.append(f"{until} of {len(history)}: taken")

    @tool
    async def look(context: RunContext) -> str:
        """Compact within the round."""
        cut(context)
        return "seen"

    @on(PreReasoning)
    def behind(event: PreReasoning) -> None:
        if event.iteration == 2:
            cut(event.context)

    model = ScriptedModel([ToolUseBlock("t1", "look", {}), "end"])
    agent = Agent("a", model, tools=[look], hooks=[behind])
    await agent.call("go")
    between = "separate tool calls from their results."
    assert said == [
        "0 of 2: taken",
        "1 of 2: taken",
        f"2 of 2: {between}",
        "3 of 2: compact(until=3): the history has 2 messages. Use a number from 0 to 2.",
        "0 of 3: taken",
        "1 of 3: taken",
        f"2 of 3: {between}",
        "3 of 3: taken",
        "4 of 3: compact(until=4): the history has 3 messages. Use a number from 0 to 3.",
    ]
    assert [msg.text for msg in agent.session().messages] == ["go", "", "seen", "end"]
    request = model.requests[1].messages
    assert legalise(request) == tuple(request)
