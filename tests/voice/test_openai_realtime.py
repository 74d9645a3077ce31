"""Realtime voice over OpenAI's protocol: turns are calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from garbage import garbage_of
from voices import ROME, UTTERANCE, Speaker, agent_for, openai_server, talk, weather

from agentflow import (
    Agent,
    Deny,
    HookEvent,
    MemoryStore,
    ModelOptions,
    Msg,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    Reply,
    Session,
    Suspend,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import ModelError, SuspendedError, UsageError
from agentflow.models.realtime import OpenAIRealtime, RealtimeSession
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, UseTool, WireReply
from agentflow.testing.wire.jsonish import dump
from agentflow.testing.wire.realtime import RealtimePeer, RealtimeServer, tone
from agentflow.vocabulary.verdicts import Approve


def sent(server: Any, kind: str) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in one.items() if k not in ("event_id", "type")}
        for one in server.received
        if one["type"] == kind
    ]


async def conversation(agent: Agent[Any], session: str | None = None) -> list[tuple[str, str]]:
    return [(msg.role, msg.text or str([use.name for use in msg.tool_uses])) for msg in await agent.history(session)]


async def test_a_spoken_turn_is_a_call_with_its_events_tools_history_and_usage() -> None:
    """Two turns, one with a tool: events as with any other model, and the server keeps what was said as audio."""
    seen: list[tuple[str, int]] = []
    speaker = Speaker()

    @on
    def note(event: HookEvent) -> None:
        if type(event).__name__ != "ReasoningChunk":
            seen.append((type(event).__name__, event.iteration))

    async with openai_server(["Hello Ada.", ROME, "It is sunny."], ["I am Ada.", "And Rome?"]) as server:
        agent = agent_for(server, system="Be brief.", tools=[weather], hooks=[note])
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            assert (await voice.reply()).text == "Hello Ada."
            spoken_first, seen[:] = [*seen], []
            await voice.send(UTTERANCE)
            reply = await voice.reply()
        assert (reply.text, reply.outcome, reply.usage.model_calls, reply.usage.total_tokens) == (
            "It is sunny.",
            "completed",
            2,
            150,
        )
        assert speaker.played == [(400, "whole"), (480, "whole"), (480, "whole")]
        first = [("user voice", "I am Ada."), ("assistant voice", "Hello Ada."), ("user voice", "And Rome?")]
        called = [("assistant voice", "Let me look."), ("call", 'weather {"city":"Rome"}'), ("output", "sunny in Rome")]
        assert server.contexts == [first[:1], first, first + called]
        asked = sent(server, "response.create")[0]["response"]
        assert (asked["instructions"], [one["name"] for one in asked["tools"]]) == ("Be brief.", ["weather"])
        assert await conversation(agent) == [
            ("user", "I am Ada."),
            ("assistant", "Hello Ada."),
            ("user", "And Rome?"),
            ("assistant", "Let me look."),
            ("tool", "sunny in Rome"),
            ("assistant", "It is sunny."),
        ]
    spoken, seen[:] = [*seen], []
    call = Msg.assistant("Let me look.", ToolUseBlock("call_1", "weather", {"city": "Rome"}))
    twin = Agent("assistant", ScriptedModel(["Hello Ada.", call, "It is sunny."]), tools=[weather], hooks=[note])
    await twin.call("I am Ada.")
    assert seen == spoken_first
    seen.clear()
    await twin.call("And Rome?")
    assert seen == spoken


async def test_speech_that_begins_while_the_agent_speaks_interrupts_it() -> None:
    """The reply has the text that was played, the server gets its length, and the next turn continues from there."""
    speaker = Speaker(hold=8)
    async with openai_server(["One two three four five six.", "Yes?"], ["Count.", "Stop."]) as server:
        agent = agent_for(server)
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            await speaker.held.wait()
            speaker.hold = None
            await voice.send(UTTERANCE)
            cut = await voice.reply()
            assert (cut.outcome, cut.text) == ("interrupted", "One two three four f")
            assert (await voice.reply()).text == "Yes?"
        assert [(one["content_index"], one["audio_end_ms"]) for one in sent(server, "conversation.item.truncate")] == [
            (0, 800)
        ]
        assert (speaker.played, sent(server, "response.cancel")) == ([(900, "cancelled"), (160, "whole")], [])
        assert server.contexts[1] == [("user voice", "Count."), ("assistant voice", "(audio)"), ("user voice", "Stop.")]
        kept = (await agent.history())[1]
        assert (kept.text, dict(kept.metadata)) == ("One two three four f", {"interrupted": True})


async def test_an_interrupt_while_the_reply_is_generated_cancels_it() -> None:
    """The client cancels what the server still generates; its usage is billed with the next reply."""
    heard, cancelled = asyncio.Event(), asyncio.Event()
    chunks: list[str] = []

    @on
    def note(event: ReasoningChunk) -> None:
        chunks.append(event.incremental_chunk.text)
        if len(chunks) == 2:
            heard.set()

    async def endless(peer: RealtimePeer) -> None:
        await peer.speak(Say("Well, ", chunk=5))  # type: ignore[attr-defined]
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with openai_server([endless, "Done."], ["Go on.", "Stop."]) as server:
        agent = agent_for(server, hooks=[note])
        async with talk(agent, Speaker()) as voice:
            await voice.send(UTTERANCE)
            await heard.wait()
            assert voice.interrupt("enough")
            cut = await voice.reply()
            await cancelled.wait()
            await voice.send(UTTERANCE)
            reply = await voice.reply()
        assert (cut.outcome, cut.text, reply.text) == ("interrupted", "Well, ", "Done.")
        assert len(sent(server, "response.cancel")) == 1
        assert reply.usage.input_tokens == 20 + 40


async def test_speech_while_a_tool_runs_is_the_next_turn() -> None:
    """A tool is not interrupted by speech; the reply waits until the user is silent, and the turn follows."""
    started, done = asyncio.Event(), asyncio.Event()

    @tool
    async def search(what: str) -> str:
        """Search."""
        started.set()
        await done.wait()
        return "found"

    script = [UseTool("search", {"what": "x"}), "Found it.", "Yes."]
    async with openai_server(script, ["Search.", "Is it there?"]) as server:
        agent = agent_for(server, tools=[search])
        async with talk(agent, Speaker()) as voice:
            await voice.send(UTTERANCE)
            await started.wait()
            await voice.send(UTTERANCE)
            while voice._work.empty():  # noqa: ASYNC110 - the turn is in line
                await asyncio.sleep(0)
            done.set()
            assert [(await voice.reply()).text for _ in range(2)] == ["Found it.", "Yes."]
        assert [text for _, text in server.contexts[-1]] == [
            "Search.",
            'search {"what":"x"}',
            "found",
            "Found it.",
            "Is it there?",
        ]


async def test_what_hooks_make_of_messages_is_what_the_model_has() -> None:
    """An edited transcript replaces the audio, an edited reply too, and a tool that is denied does not run."""

    @on
    def edits(event: HookEvent) -> Any:
        match event:
            case PreCall():
                event.input_messages = [Msg.user(event.input_messages[0].text.replace("12345", "[PIN]"))]
            case PostReasoning(reasoning_result=reply) if reply.text == "Noted: 12345.":
                event.reasoning_result = Msg.assistant("Noted.")
            case PreActing():
                return Deny("Not today.")
            case _:
                pass
        return event

    async with openai_server(["Noted: 12345.", ROME, "No."], ["My PIN is 12345.", "Rome?"]) as server:
        agent = agent_for(server, tools=[weather], hooks=[edits])
        async with talk(agent, Speaker()) as voice:
            await voice.send(UTTERANCE)
            assert (await voice.reply()).text == "Noted."
            await voice.send(UTTERANCE)
            assert (await voice.reply()).text == "No."
        assert server.contexts[-1] == [
            ("user", "My PIN is [PIN]."),
            ("assistant", "Noted."),
            ("user", "Rome?"),
            ("assistant voice", "Let me look."),
            ("call", 'weather {"city":"Rome"}'),
            ("output", "Denied: Not today."),
        ]


async def test_a_denied_call_asks_for_no_reply() -> None:
    """Neither does a call that a hook answers: nothing is spoken, and the next reply has the conversation of the history."""

    @on
    def guard(event: PreReasoning) -> Any:
        return Deny("No politics.") if "politics" in event.input_messages[-1].text else event

    async with openai_server(["Fine."], ["Talk politics!", "Weather, then."]) as server:
        agent = agent_for(server, hooks=[guard])
        async with talk(agent, Speaker()) as voice:
            await voice.send(UTTERANCE)
            denied = await voice.reply()
            await voice.send(UTTERANCE)
            assert (await voice.reply()).text == "Fine."
        assert (denied.outcome, len(sent(server, "response.create"))) == ("denied", 1)
        assert server.contexts == [
            [("user voice", "Talk politics!"), ("assistant", "No politics."), ("user", "Weather, then.")]
        ]


async def test_an_approval_suspends_the_turn() -> None:
    """The reply waits; another turn is refused as any call is; the decision continues, and the answer is spoken."""

    @on
    def ask(event: PreActing) -> Any:
        return Suspend("sure?") if event.approval is None else event

    async with openai_server([ROME, "Sunny."], ["Rome?", "Hello?"]) as server:
        agent = agent_for(server, tools=[weather], hooks=[ask])
        async with talk(agent, Speaker(), session="ada") as voice:
            await voice.send(UTTERANCE)
            waits = await voice.reply()
            await voice.send(UTTERANCE)
            with pytest.raises(SuspendedError):
                await voice.reply()
            voice.resume({waits.pending[0].id: Approve()})
            assert (waits.outcome, (await voice.reply()).text) == ("suspended", "Sunny.")


async def test_no_reply_is_requested_while_the_user_speaks() -> None:
    """A tool that ends in the middle of a sentence: the model answers when the sentence has ended."""
    started, done, ran = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def search() -> str:
        """Search."""
        started.set()
        await done.wait()
        return "found"

    @on
    def note(event: PostToolRound) -> None:
        ran.set()

    async with (
        openai_server([UseTool("search"), "Found it.", "Yes."], ["Search.", "Is it there?"]) as server,
        talk(agent_for(server, tools=[search], hooks=[note]), Speaker()) as voice,
    ):
        await voice.send(UTTERANCE)
        await started.wait()
        await voice.send(tone(0.3))
        while voice._live is None or voice._live._quiet.is_set():  # noqa: ASYNC110 - speech is detected
            await asyncio.sleep(0)
        done.set()
        await ran.wait()
        await asyncio.sleep(0.1)  # time to make a mistake
        requested = len(sent(server, "response.create"))
        await voice.send(bytes(24_000))
        assert (requested, [(await voice.reply()).text for _ in range(2)]) == (1, ["Found it.", "Yes."])


async def break_off(peer: RealtimePeer) -> None:
    await peer.speak(Say("Well", chunk=2))  # type: ignore[attr-defined]
    await peer.abort()


async def close(peer: RealtimePeer) -> None:
    await peer.socket.close(code=1001, message=b"session expired")


def frame(text: str) -> Any:
    async def line(peer: RealtimePeer) -> None:
        await peer.raw(text)

    return line


async def fail(peer: Any) -> None:
    error = {"type": "server_error", "code": "rate_limit_exceeded", "message": "Too many."}
    await peer.finish("failed", {"type": "failed", "error": error})


async def no_base64(peer: Any) -> None:
    await peer.raw(dump({"type": "response.output_audio.delta", "response_id": peer.response["id"], "delta": "*"}))


async def silence(peer: RealtimePeer) -> None:
    await asyncio.sleep(60)


FAULTS = {
    "lost": (break_off, "could not be"),
    "closed": (close, "session expired"),
    "no JSON": (frame('{"type": "response.done"'), "sent a frame that is not JSON"),
    "no object": (frame("[1]"), "sent a frame with a list"),
    "wrong form": (frame('{"type": "response.done", "response": 7}'), "sent an event in an unknown form"),
    "no base64": (no_base64, "sent an event in an unknown form"),
    "huge": (frame('{"type": "new", "x": "' + "x" * 70_000 + '"}'), "broke off: .* exceeds limit 65536"),
    "failed": (fail, "Too many."),
    "silent": (silence, "sent nothing for 0.5 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_goes_wrong_fails_the_call(fault: str) -> None:
    """The call raises a `ModelError` and ends as failed; after a lost connection, so does everything later."""
    line, text = FAULTS[fault]
    ends: list[str] = []

    @on
    def note(event: HookEvent) -> None:
        if type(event).__name__ == "CallEnded":
            ends.append(event.outcome)  # type: ignore[attr-defined]

    alive = fault in ("failed", "silent")
    async with openai_server([line, *["Again."] * alive], ["Hi."]) as server:
        agent = agent_for(server, hooks=[note], model={"timeout": 0.5, "max_frame": 65_536})
        async with talk(agent, Speaker()) as voice:
            await voice.send(UTTERANCE)
            with pytest.raises(ModelError, match=text):
                await voice.reply()
            voice.say("Once more.")
            if alive:
                assert (await voice.reply()).text == "Again."
            else:
                with pytest.raises(ModelError, match=text):
                    await voice.reply()
                with pytest.raises(ModelError, match=text):
                    await voice.send(UTTERANCE)
                with pytest.raises(ModelError, match=text):
                    await voice.reply()
    assert ends == ["failed", "completed" if alive else "failed"]


async def test_unknown_events_and_errors_of_other_events_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Vendors add events; an error that names no event of the reply is logged."""

    async def line(peer: Any) -> None:
        await peer.raw('{"type": "response.sung", "item": [1], "response": 7}')
        await peer.raw('{"type": 7}')
        await peer.send(
            {"type": "error", "error": {"type": "invalid_request_error", "message": "Odd.", "event_id": "x"}}
        )
        await peer.speak(Say("Fine."))
        await peer.finish("completed")

    async with openai_server([line], ["Hi."]) as server, talk(agent_for(server), Speaker()) as voice:
        await voice.send(UTTERANCE)
        assert (await voice.reply()).text == "Fine."


async def test_a_request_that_is_refused_fails_the_call_and_the_next_one_works() -> None:
    """An error that names an event of the request: the call raises it, and the server gets the next request."""
    async with openai_server(["Fine."], [], refusals=1) as server:
        agent = agent_for(server)
        async with talk(agent, Speaker(), options=ModelOptions(extra={"loudness": 3})) as voice:
            voice.say("Hi.")
            with pytest.raises(ModelError, match=r"Unknown parameter: 'response.loudness'"):
                await voice.reply()
        async with talk(agent, Speaker()) as voice:
            voice.say("Hi again.")
            assert (await voice.reply()).text == "Fine."
        assert server.contexts == [[("user", "Hi."), ("user", "Hi again.")]]


async def test_a_key_that_is_refused_is_a_model_error() -> None:
    """The handshake fails, and nothing is left."""
    async with openai_server() as server:
        nobody = Agent("assistant", OpenAIRealtime("gpt-realtime", url=server.url))
        with pytest.raises(ModelError, match="refused the API key") as raised:
            async with talk(nobody):
                pass
    assert raised.value.kind == "authentication"


async def test_a_player_that_is_too_slow_fails_the_call() -> None:
    """The audio that waits is bounded; the reply is cancelled."""
    speaker = Speaker(hold=0)
    async with openai_server([Say("word " * 40, chunk=5)], ["Talk."]) as server:
        agent = agent_for(server, model={"max_pending": 2.0})
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            await speaker.held.wait()
            speaker.go.set()
            with pytest.raises(ModelError, match="more than max_pending= allows"):
                await voice.reply()


async def test_a_player_that_fails_fails_the_call_and_one_that_stops_does_not() -> None:
    """Its exception is what the caller sees."""
    tries: list[int] = []

    async def play(speech: AsyncIterator[bytes]) -> None:
        tries.append(len(await anext(speech)))
        if len(tries) == 1:
            raise OSError("no device")

    async with (
        openai_server(["Hello Ada.", "Hello again."], ["Hi.", "Hi?"]) as server,
        talk(agent_for(server), play) as voice,
    ):
        await voice.send(UTTERANCE)
        with pytest.raises(OSError, match="no device"):
            await voice.reply()
        await voice.send(UTTERANCE)
        assert (await voice.reply()).text == "Hello again."


async def test_closing_while_the_agent_speaks_interrupts_it() -> None:
    """The block ends at once: the player is cancelled, the server notified, and the history has the text that was
    played.
    """
    speaker = Speaker(hold=2)
    async with openai_server(["One two three."], ["Count."]) as server:
        agent = agent_for(server)
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            await speaker.held.wait()
        assert speaker.played == [(300, "cancelled")]
        assert await conversation(agent) == [("user", "Count."), ("assistant", "One t")]
        assert len(sent(server, "conversation.item.truncate")) == 1
        with pytest.raises(UsageError, match="already opened"):
            await voice.__aenter__()


async def test_a_cancelled_owner_leaves_nothing_behind() -> None:
    """The task that holds the session is cancelled while the agent speaks."""
    speaker = Speaker(hold=2)
    async with openai_server(["One two three."], ["Count."]) as server:

        async def hold() -> None:
            async with talk(agent_for(server), speaker) as voice:
                await voice.send(UTTERANCE)
                await voice.reply()

        task = asyncio.create_task(hold())
        await speaker.held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert speaker.played == [(300, "cancelled")]


async def test_two_sessions_of_one_agent_do_not_meet() -> None:
    """Each has its connection, its conversation and its replies."""
    async with openai_server(["A1", "B1", "A2", "B2"], []) as server:
        agent = agent_for(server)
        async with talk(agent, Speaker(), session="a") as one, talk(agent, Speaker(), session="b") as two:
            replies: list[str] = []
            for text in ("first", "second"):
                for voice in (one, two):
                    voice.say(text)
                    replies.append((await voice.reply()).text)
        assert replies == ["A1", "B1", "A2", "B2"]
        assert await conversation(agent, "a") == [
            ("user", "first"),
            ("assistant", "A1"),
            ("user", "second"),
            ("assistant", "A2"),
        ]
        assert server.contexts[3] == [("user", "first"), ("assistant voice", "B1"), ("user", "second")]


async def test_a_session_that_was_stored_goes_on() -> None:
    """Another connection is given the history as text, calls and results included."""
    store = MemoryStore()
    async with openai_server([ROME, "Sunny.", "You asked about Rome."], []) as server:
        for text in ("Rome?", "What did I ask?"):
            async with talk(agent_for(server, tools=[weather], store=store), session="ada") as voice:
                voice.say(text)
                await voice.reply()
        assert server.contexts[-1] == [
            ("user", "Rome?"),
            ("assistant", "Let me look."),
            ("call", 'weather {"city":"Rome"}'),
            ("output", "sunny in Rome"),
            ("assistant", "Sunny."),
            ("user", "What did I ask?"),
        ]


async def test_push_to_talk_text_replies_and_speech_without_a_transcript() -> None:
    """Without detection a commit ends the turn; silence is no turn; speech without a transcript still reaches the
    model.
    """
    script = [WireReply("Hello.", finish="refusal", chunk=2), "Pardon?"]
    async with openai_server(script, ["Hi.", "", None], refusals=2) as server:
        agent = agent_for(server, model={"turn_detection": None})
        async with talk(agent) as voice:
            replies: list[Reply] = []
            for utterances in (1, 2):
                for _ in range(utterances):
                    await voice.send(tone(0.2))
                    await voice.commit()
                replies.append(await voice.reply())
            await voice.commit()  # there is nothing
            voice.say(Msg.user("Bye."))
            with pytest.raises(ModelError, match="no more replies"):
                await voice.reply()
        assert [(one.text, one.finish_reason) for one in replies] == [("Hello.", "content_filter"), ("Pardon?", "stop")]
        assert await conversation(agent) == [
            ("user", "Hi."),
            ("assistant", "Hello."),
            ("user", "(speech without a transcript)"),
            ("assistant", "Pardon?"),
            ("user", "Bye."),
        ]
        assert server.contexts[1] == [("user voice", "Hi."), ("assistant", "Hello."), ("user voice", "(audio)")]


async def test_what_a_realtime_model_cannot_do_is_refused() -> None:
    """Calls outside a session, side calls that would be spoken, options it lacks, and agents with another model."""
    with pytest.raises(UsageError, match="does not speak"):
        RealtimeSession(Agent("a", ScriptedModel([])))
    found: list[str] = []

    @on
    async def aside(event: PostReasoning) -> None:
        try:
            await event.context.complete("Is this fine?")
        except UsageError as error:
            found.append(str(error))

    async with openai_server(["Hello."], []) as server:
        agent = agent_for(server, hooks=[aside])
        with pytest.raises(UsageError, match="answers only the turns of a RealtimeSession"):
            await agent.call("Hi.")
        async with talk(agent, options=ModelOptions(temperature=1)) as voice:
            voice.say("Hi.")
            with pytest.raises(UsageError, match=r"does not support options\.temperature"):
                await voice.reply()
        async with talk(agent) as voice:
            voice.say("Hi.")
            assert (await voice.reply()).text == "Hello."
        with pytest.raises(UsageError, match="not open"):
            RealtimeSession(agent).say("Hi.")
    assert ["answers only the turns" in text for text in found] == [True]


async def test_a_session_leaves_no_garbage_of_ours() -> None:
    """A closed session is freed at once; what is left is aiohttp's connector, which refers to itself."""
    async with RealtimeServer.openai(["Hello."] * 9) as server:
        agent = agent_for(server)

        async def work() -> None:
            async with talk(agent, Speaker(), session=Session.fresh()) as voice:
                voice.say("Hi.")
                await voice.reply()

        assert [found for found in await garbage_of(work) if found.startswith("agentflow.")] == []
