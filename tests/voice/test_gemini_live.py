"""Realtime voice over Gemini's protocol: the server answers by itself, and turns are calls all the same."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from voices import ROME, Speaker, talk, used_up, weather

from agentflow import (
    Agent,
    Deny,
    HookEvent,
    MemoryStore,
    ModelOptions,
    Msg,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    on,
    tool,
)
from agentflow.errors import ModelError, UsageError
from agentflow.models.realtime import GeminiLive
from agentflow.testing.wire import Say, UseTool
from agentflow.testing.wire.realtime import RealtimeServer, tone

UTTERANCE = tone(0.3, 16_000) + bytes(16_000)


def server_for(script: list[Any], heard: Any = (), refusals: int = 0) -> AbstractAsyncContextManager[RealtimeServer]:
    return used_up(RealtimeServer.gemini(script, heard=heard), refusals)


def agent_for(server: RealtimeServer, *, model: dict[str, Any] | None = None, **options: Any) -> Agent[Any]:
    return Agent("assistant", GeminiLive("live", url=server.url, api_key="k", **(model or {})), **options)


async def conversation(agent: Agent[Any], session: str | None = None) -> list[tuple[str, str]]:
    return [(msg.role, msg.text) for msg in await agent.history(session)]


def sent(server: RealtimeServer, kind: str) -> list[Any]:
    return [event[kind] for event in server.received if kind in event]


async def test_a_spoken_turn_is_a_call_with_its_tools_history_and_usage() -> None:
    """Two turns, one with a tool: transcripts of both sides are the history, results go back, audio is played."""
    speaker = Speaker()
    async with server_for(["Hello Ada.", ROME, "It is sunny."], ["I am Ada.", "And Rome?"]) as server:
        agent = agent_for(server, system="Be brief.", tools=[weather], model={"voice": "Kore"})
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            assert (await voice.reply()).text == "Hello Ada."
            await voice.send(UTTERANCE)
            reply = await voice.reply()
        assert (reply.text, reply.usage.model_calls, reply.usage.total_tokens) == ("It is sunny.", 2, 80)
        assert speaker.played == [(400, "whole"), (480, "whole"), (480, "whole")]
        first = [("user voice", "I am Ada."), ("model", "Hello Ada."), ("user voice", "And Rome?")]
        called = [("model", "Let me look."), ("call", 'weather {"city":"Rome"}'), ("output", "sunny in Rome")]
        assert server.contexts == [first[:1], first, first + called]
        setup = sent(server, "setup")[0]
        assert (setup["systemInstruction"], setup["tools"][0]["functionDeclarations"][0]["name"]) == (
            {"parts": [{"text": "Be brief."}]},
            "weather",
        )
        assert await conversation(agent) == [
            ("user", "I am Ada."),
            ("assistant", "Hello Ada."),
            ("user", "And Rome?"),
            ("assistant", "Let me look."),
            ("tool", "sunny in Rome"),
            ("assistant", "It is sunny."),
        ]


@pytest.mark.parametrize("believed", [True, False])
async def test_speech_interrupts_the_agent(believed: bool) -> None:
    """Whether the server believes that it still plays, and reports an interrupt, or only transcribes what is said."""

    async def plays(peer: Any) -> None:
        await peer.speak(Say("One two three four five six.", chunk=5))
        await asyncio.sleep(60)

    speaker = Speaker(hold=8)
    count = plays if believed else "One two three four five six."
    async with server_for([count, "Yes?"], ["Count.", "Stop."]) as server:
        agent = agent_for(server)
        async with talk(agent, speaker) as voice:
            await voice.send(UTTERANCE)
            await speaker.held.wait()
            speaker.hold = None
            await voice.send(UTTERANCE)
            stopped = await voice.reply()
            assert (await voice.reply()).text == "Yes?"
        assert (stopped.outcome, stopped.text) == ("interrupted", "One two three f")
        assert speaker.played == [(900, "cancelled"), (160, "whole")]
        assert dict((await agent.history())[1].metadata) == {"interrupted": True}


async def test_denied_turns_are_not_played_and_edited_ones_are_sent_again() -> None:
    """The server has answered already; the answer is not played."""

    @on
    def guard(event: HookEvent) -> Any:
        match event:
            case PreReasoning() if "politics" in event.input_messages[-1].text:
                return Deny("No politics.")
            case PreCall():
                event.input_messages = [Msg.user(event.input_messages[0].text.replace("12345", "[PIN]"))]
            case _:
                pass
        return event

    speaker = Speaker()
    script = ["Politics is", "It is 12345", "Noted.", "Fine."]
    async with server_for(script, ["Talk politics!", "My PIN is 12345.", "Weather."]) as server:
        agent = agent_for(server, hooks=[guard])
        async with talk(agent, speaker) as voice:
            replies: list[str] = []
            for _ in range(3):
                await voice.send(UTTERANCE)
                replies.append((await voice.reply()).text)
        assert replies == ["No politics.", "Noted.", "Fine."]
        assert speaker.played == [(240, "whole"), (200, "whole")]
        assert sent(server, "clientContent") == [
            {"turns": [{"role": "user", "parts": [{"text": "My PIN is [PIN]."}]}], "turnComplete": True}
        ]


async def test_an_interrupted_tool_call_is_answered_so_that_the_server_continues() -> None:
    """The reply to that is not played; the next turn is answered."""
    started = asyncio.Event()

    @tool
    async def slow() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "never"

    async with server_for([UseTool("slow"), "All right.", "Hi."], []) as server:
        agent = agent_for(server, tools=[slow])
        async with talk(agent, Speaker()) as voice:
            voice.say("Work.")
            await started.wait()
            voice.interrupt("enough")
            assert (await voice.reply()).outcome == "interrupted"
            voice.say("Hello?")
            assert (await voice.reply()).text == "Hi."
        answer = sent(server, "toolResponse")[0]["functionResponses"][0]["response"]
        assert (answer, server.contexts[-1][-1]) == ({"error": "The call was interrupted."}, ("user", "Hello?"))


async def test_a_reply_that_is_interrupted_does_not_mix_with_the_next() -> None:
    """The server still generates when the next turn is typed: what is left of it goes nowhere."""
    heard = asyncio.Event()

    @on
    def note(event: ReasoningChunk) -> None:
        heard.set()

    async def endless(peer: Any) -> None:
        while True:
            await peer.speak(Say("la ", chunk=3))
            await asyncio.sleep(0.001)

    async with server_for([endless, "Done."], []) as server, talk(agent_for(server, hooks=[note])) as voice:
        voice.say("Sing.")
        await heard.wait()
        voice.interrupt("enough")
        assert (await voice.reply()).outcome == "interrupted"
        voice.say("Stop.")
        assert (await voice.reply()).text == "Done."


async def test_a_session_that_was_stored_goes_on_and_typed_turns_work() -> None:
    """The history is sent when the session opens, as text."""
    store = MemoryStore()
    async with server_for([ROME, "Sunny.", "Rome."], []) as server:
        for text in ("Rome?", "What did I ask?"):
            async with talk(agent_for(server, tools=[weather], store=store), session="ada") as voice:
                voice.say(text)
                await voice.reply()
        assert server.contexts[-1] == [
            ("user", "Rome?"),
            ("model", "Let me look."),
            ("call", "weather"),
            ("output", "weather"),
            ("model", "Sunny."),
            ("user", "What did I ask?"),
        ]


async def test_push_to_talk_and_transcripts_that_are_late_or_missing() -> None:
    """A commit ends the turn; a late transcript is waited for, until the reply is complete."""

    async def late(peer: Any) -> None:
        await peer.speak(Say("Hello."))
        await peer.send({"serverContent": {"inputTranscription": {"text": "Hi."}}})
        await peer.finish()

    async with server_for([late, "Pardon?"], [None, None]) as server:
        agent = agent_for(server, model={"turn_detection": None})
        async with talk(agent, Speaker()) as voice:
            for _ in range(2):
                await voice.send(tone(0.1, 16_000))
                await voice.send(tone(0.1, 16_000))
                await voice.commit()
                await voice.reply()
        assert await conversation(agent) == [
            ("user", "Hi."),
            ("assistant", "Hello."),
            ("user", "(speech without a transcript)"),
            ("assistant", "Pardon?"),
        ]
        assert [next(iter(one)) for one in sent(server, "realtimeInput")] == [
            "activityStart",
            "audio",
            "audio",
            "activityEnd",
        ] * 2


def frame(text: str) -> Any:
    async def line(peer: Any) -> None:
        await peer.raw(text)

    return line


async def lost(peer: Any) -> None:
    await peer.speak(Say("Well"))
    await peer.abort()


async def quota(peer: Any) -> None:
    await peer.send({"goAway": {"timeLeft": "0s"}})
    await peer.socket.close(code=1011, message=b"You exceeded your current quota")


FAULTS = {
    "lost": (lost, "broke off"),
    "quota": (quota, "You exceeded your current quota"),
    "no JSON": (frame("{"), "not JSON"),
    "wrong form": (frame('{"toolCall": {"functionCalls": [{"id": "a"}]}}'), "in an unknown form"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_goes_wrong_fails_the_call(fault: str) -> None:
    """The call raises a `ModelError`, and so does the session from then on."""
    line, text = FAULTS[fault]
    async with server_for([line]) as server, talk(agent_for(server), Speaker()) as voice:
        voice.say("Hi.")
        with pytest.raises(ModelError, match=text):
            await voice.reply()
        with pytest.raises(ModelError, match=text):
            await voice.send(UTTERANCE)


async def test_what_the_protocol_cannot_do_is_refused() -> None:
    """Another system prompt, other tools or options during a session, and a setup that the server refuses."""

    @on
    def change(event: PreReasoning) -> None:
        event.tools = []

    async with server_for([], refusals=1) as server:
        for options in ({"hooks": [change]}, {"options": ModelOptions(max_tokens=5)}):
            async with talk(agent_for(server, tools=[weather]), **options) as voice:
                voice.say("Hi.")
                with pytest.raises(UsageError, match="takes these only when the session opens"):
                    await voice.reply()
        with pytest.raises(UsageError, match="is a function"):
            async with talk(agent_for(server, system=lambda context: "Be brief.")):
                pass
        with pytest.raises(ModelError, match=r"Unknown parameter: 'setup.loudness'"):
            async with talk(agent_for(server, model={"params": {"loudness": 3}})):
                pass
