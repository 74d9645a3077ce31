"""Redaction: what the provider, the reader and tools get, and what is stored."""

import asyncio
import gc
import json
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from eventlog import history, log, use
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from thorough import THOROUGH
from wired import Wired

from agentflow import Agent, Answer, Hook, RunContext, Suspend, on, tool
from agentflow.errors import ModelError, UsageError
from agentflow.loop.session import Session
from agentflow.plugins.cache import ModelCache
from agentflow.plugins.guardrails import InputGuardrail
from agentflow.plugins.redaction import Redaction
from agentflow.plugins.redaction.detectors import DETECTORS, Detector
from agentflow.plugins.redaction.text import Scanner, StreamScanner, scan
from agentflow.plugins.redaction.vault import Vault
from agentflow.recording.entries import RequestEntry
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, fold
from agentflow.vocabulary.events import ActingChunk, PostReasoning, PreActing, PreCall, PreReasoning, ReasoningChunk
from agentflow.vocabulary.facts import Reasoned
from agentflow.vocabulary.messages import Citation, DataBlock, Msg, ThinkingBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.specs import ModelOptions

KEY = "sk-live-Abcdef1234567890"
KEY2 = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
MAIL = "ada@example.com"
CARD = "4111 1111 1111 1111"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@tool
async def send_mail(to: str, body: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {body}, receipt {KEY2}"


def words(events: list[Any]) -> list[str]:
    """Return the chunks of text as a reader gets them."""
    return [e.incremental_chunk.text for e in events if isinstance(e, ReasoningChunk) and e.incremental_chunk.text]


def chunk_events(events: list[Any]) -> list[ReasoningChunk]:
    return [event for event in events if isinstance(event, ReasoningChunk)]


async def events_of(agent: Agent, text: str = "go", **options: Any) -> list[Any]:
    async with agent.stream(text, **options) as events:
        return [event async for event in events]


# ---- over the wire


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_nothing_secret_reaches_the_provider(wired: Wired, how: str) -> None:
    """Input, system prompt, tool arguments, results and history go out as placeholders; reader and tool get originals."""
    got: list[str] = []

    @tool
    async def lookup(address: str) -> str:
        """Look somebody up."""
        got.append(address)
        return f"{address} has card {CARD}"

    store = MemoryStore()
    redaction = Redaction()
    script = [
        WireReply("I ask for <email-1>.", calls=(ScriptedCall("lookup", {"address": "<email-1>"}, "t1"),), chunk=3),
        Say("<email-1> pays with <card-1>, key <secret-1>.", chunk=4),
        Say("Bye."),
    ]
    async with wired.serve(script) as server:
        agent = Agent(
            "a",
            wired.model(server),
            system=f"Your key is {KEY}.",
            tools=[lookup],
            hooks=[redaction],
            store=redaction.store(store),
        )
        if how == "stream":
            events = await events_of(agent, f"Who is {MAIL}?")
            shown = "".join(words(events))
            assert shown == f"I ask for {MAIL}.{MAIL} pays with {CARD}, key {KEY}."
            for event in [event for event in events if isinstance(event, PostReasoning)]:
                chunks = [e.incremental_chunk for e in chunk_events(events) if e.iteration == event.iteration]
                assert fold(chunks, id="").content == event.reasoning_result.content
        else:
            reply = await agent.call(f"Who is {MAIL}?")
            assert reply.text == f"{MAIL} pays with {CARD}, key {KEY}."
        await agent.call("Bye.")
    assert got == [MAIL]
    sent = json.dumps([request.body for request in server.requests])
    kept = repr(store.load("a"))
    for secret in (MAIL, CARD, KEY):
        assert secret not in sent
        assert secret not in kept
    assert [answer.text for answer in server.requests[1].results] == ["<email-1> has card <card-1>"]
    assert "<email-1> pays with <card-1>, key <secret-1>." in sent
    assert history(agent.session())[:3] == [
        "user: Who is <email-1>?",
        f"assistant: I ask for {MAIL}. [t1:lookup(address='<email-1>')]",
        "tool: t1 success '<email-1> has card <card-1>'",
    ]


async def test_what_a_model_thought_goes_back_unchanged(wired: Wired) -> None:
    """A sealed thought that names a placeholder is shown restored, and given back to its provider byte for byte."""

    @tool
    async def ping(to: str) -> str:
        """Ping."""
        return "pong"

    script = [
        WireReply(
            "", thinking="I write to <email-1>.", calls=(ScriptedCall("ping", {"to": "<email-1>"}, "t1"),), chunk=4
        ),
        Say("Done."),
    ]
    async with wired.serve(script) as server:
        options = ModelOptions(thinking=True)
        agent = Agent("a", wired.model(server), tools=[ping], hooks=[Redaction()], options=options)
        events = await events_of(agent, f"Ping {MAIL}")
    thoughts = "".join(e.incremental_chunk.thinking for e in chunk_events(events))
    assert thoughts == f"I write to {MAIL}."
    assert MAIL not in json.dumps([request.body for request in server.requests])


# ---- the reader


SPLIT = ["Your key: sk-li", "ve-Abcdef", "1234567890", ", keep it."]


async def test_a_secret_that_the_model_writes_over_three_chunks_is_never_seen() -> None:
    """Chunks, reply and history hold a placeholder, and it is not restored for the reader afterwards."""
    agent = Agent("a", ScriptedModel([SPLIT, "Again: <secret-1>."]), hooks=[Redaction()])
    events = await events_of(agent)
    assert words(events) == ["Your key: ", "<secret-1>, keep ", "it."]
    assert (await agent.call("Again")).text == "Again: <secret-1>."
    assert KEY not in repr([*events, *agent.session().messages])


async def test_text_is_not_held_longer_than_needed() -> None:
    """Every whole word is delivered with the next chunk; before a call, everything is."""
    model = ScriptedModel([["Hello ", "wor", "ld, how", " are you", use("t1", "send_mail", to="x", body="y")], "Ok."])
    events = await events_of(Agent("a", model, tools=[send_mail], hooks=[Redaction()]))
    assert words(events)[:4] == ["Hello ", "world, ", "how are ", "you"]
    first_call = next(i for i, e in enumerate(chunk_events(events)) if e.incremental_chunk.tool_uses)
    assert "".join(words(chunk_events(events)[: first_call + 1])) == "Hello world, how are you"


def test_code_and_addresses_are_not_held() -> None:
    """Blanks, colons and URLs do not look like the beginning of a secret: a word is held, and never the rest of a reply."""
    text = (
        "def key(a: int):\n        x = {'b': 1}\n\n        return a    # one, two   or  three\n"
        "See https://example.com:8080/a?b=c#d, http://x.example/a:b and  mailto:nobody.\n\tAsk: why?   Your key:   none.\n"
        "| token | pass |\n|---|---|\nAKIA  basic   bearer    secret:  \n\n\n    password  \n    and so on and so on.\n"
    )
    scanner, shown = Scanner(DETECTORS), 0
    stream = StreamScanner(lambda: scanner, masked)
    for at, letter in enumerate(text, 1):
        shown += len(stream.feed(letter))
        assert at - shown <= 25, text[shown:at]


async def test_what_is_held_is_let_go_when_the_model_fails() -> None:
    """A reader of a stream that breaks has seen all that was said, and no secret."""
    agent = Agent("a", ScriptedModel([["All is well, sk-live-Abc", ModelError("gone")]]), hooks=[Redaction()])
    seen: list[Any] = []

    async def read() -> None:
        async with agent.stream("go") as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - what was seen before the failure counts

    with pytest.raises(ModelError):
        await read()
    assert "".join(words(seen)) == "All is well, sk-live-Abc"


async def test_a_retry_starts_the_hold_back_over() -> None:
    """Held text of a failed attempt is not part of the next one, and `restart` is passed on."""

    class Retry(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.retry(2) if isinstance(event, PreReasoning) else source

    model = ScriptedModel([["sk-live-Abc", ModelError("gone")], ["def1234567890 is ", "no key"]])
    events = await events_of(Agent("a", model, hooks=[Retry(), Redaction()]))
    assert [line for line in log(events) if line.startswith("ReasoningChunk")] == [
        "ReasoningChunk sk-live-Abc",
        "ReasoningChunk attempt 2 def1234567890 is no key",
    ]


async def test_a_fallback_model_gets_no_secret() -> None:
    """`source.using` works through the redaction, for another model and for other messages."""
    backup = ScriptedModel(["Here for <email-1>."], name="backup")

    class Fallback(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreReasoning):
                return source
            messages = [Msg.user(f"Short: {MAIL} and {KEY}")]
            return source.catch(lambda error, _: source.using(model=backup, input_messages=messages))

    agent = Agent("a", ScriptedModel([ModelError("gone")]), hooks=[Fallback(), Redaction()])
    assert (await agent.call(f"I am {MAIL}")).text == f"Here for {MAIL}."
    assert [m.text for m in backup.requests[0].messages] == ["Short: <email-1> and <secret-1>"]


async def test_a_cache_of_replies_gives_nobody_anothers_data() -> None:
    """Outside the redaction it would keep restored words, and is refused; inside it keeps placeholders."""
    outside = Agent("a", ScriptedModel(["Hello."]), hooks=[ModelCache(), Redaction()])
    with pytest.raises(UsageError, match="higher priority"):
        await outside.call("hi")

    model = ScriptedModel(["You are <email-1>."])
    agent = Agent("a", model, hooks=[ModelCache(priority=950), Redaction()])
    for name in ("ada@example.com", "eve@example.com"):
        assert (await agent.call(f"I am {name}", session=name)).text == f"You are {name}."
    assert len(model.requests) == 1


async def test_what_hooks_inject_is_redacted() -> None:
    """Messages that other hooks add, even in the chain of the very request, go out as placeholders."""

    class Adds(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                event.context.inject(f"mail {MAIL}")
                event.context.inject(f"key {KEY}", keep=False)
            return event

    for more in ([], [ModelCache(priority=950)], [InputGuardrail(lambda text: None, racing=True)]):
        model = ScriptedModel(["Ok."])
        await Agent("a", model, hooks=[Adds(), Redaction(), *more]).call("go")
        assert [m.text for m in model.requests[0].messages] == ["go", "mail <email-1>", "key <secret-1>"]


# ---- tools


async def test_tools_get_originals_and_their_results_are_redacted() -> None:
    """Arguments are restored before guards evaluate them; the result is redacted wherever it is stored or shown."""
    judged: list[Any] = []

    class Guard(Hook):
        guard = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing):
                judged.append(dict(event.tool_use.input))
            return event

    model = ScriptedModel([use("t1", "send_mail", to="<email-1>", body="Dear <email-1>"), "Done."])
    agent = Agent("a", model, tools=[send_mail], hooks=[Guard(), Redaction()])
    await agent.call(f"Write to {MAIL}")
    assert judged == [{"to": MAIL, "body": f"Dear {MAIL}"}]
    assert history(agent.session())[2] == ("tool: t1 success 'sent to <email-1>: Dear <email-1>, receipt <secret-1>'")


async def test_an_untrusted_tool_gets_placeholders() -> None:
    """A tool that is not trusted gets placeholders, as the model does."""
    model = ScriptedModel([use("t1", "send_mail", to="<email-1>", body="x"), "Done."])
    agent = Agent("a", model, tools=[send_mail], hooks=[Redaction(trusted_tools=["db_*"])])
    await agent.call(f"Write to {MAIL}")
    assert agent.session().messages[2].text.startswith("sent to <email-1>")


async def test_a_secret_in_arguments_is_hidden_however_it_is_written() -> None:
    """Arguments in fragments, with JSON escapes, with a key twice, as a number, or malformed: no chunk shows a secret, also if
    the model gives its reason to finish before the last fragment."""
    raws = [
        json.dumps({"to": "me", "body": KEY}),
        json.dumps({"to": "me", "body": KEY}).replace("sk-", "\\u0073k-"),
        f'{{"to": "{KEY}", "to": "me", "body": "x"}}',
        '{"to": "me", "body": 4111111111111111}',
        f'{{"to": "{KEY}',
    ]
    for raw, early in product(raws, (None, "tool_calls")):
        pieces = [ModelChunk(tool_uses=(ToolUseDelta(0, "t1", "send_mail", raw[:9]),), finish_reason=early)]
        pieces += [ModelChunk(tool_uses=(ToolUseDelta(0, arguments=raw[i : i + 5]),)) for i in range(9, len(raw), 5)]
        model = ScriptedModel([pieces, "Done."])
        agent = Agent("a", model, tools=[send_mail], hooks=[Redaction()])
        events = await events_of(agent)
        chunks = [e.incremental_chunk for e in chunk_events(events) if e.iteration == 1]
        seen = "".join(delta.arguments for chunk in chunks for delta in chunk.tool_uses)
        for secret in (KEY, "\\u0073k-live", "4111111111111111"):
            assert secret not in seen
            assert secret not in repr(agent.session().messages[:2])
        assert ("<secret-1>" in seen or "<card-1>" in seen) is (
            raw.count('"to"') == 1
        )  # of a key twice, the last counts


async def test_a_whole_call_without_secrets_stays_one_chunk() -> None:
    """Other hooks, the fold and the reader get the chunk that the model sent; with a secret they get it redacted."""
    clean, dirty = use("t1", "send_mail", to="me", body="Hi"), use("t2", "send_mail", to="me", body=KEY)
    agent = Agent("a", ScriptedModel([clean, dirty, "Done."]), tools=[send_mail], hooks=[Redaction()])
    chunks = [event.incremental_chunk for event in chunk_events(await events_of(agent))]
    assert [[delta.arguments for delta in chunk.tool_uses] for chunk in chunks if chunk.tool_uses] == [
        [clean.raw],
        [""],
        ['{"to": "me", "body": "<secret-2>"}'],
    ]


@given(
    st.lists(
        st.builds(
            ToolUseDelta,
            st.integers(0, 1),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from(["", "ping", "pong"]),
            st.sampled_from(["", '{"x": ', "1}"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_calls_without_secrets_are_what_they_would_be_without_redaction(deltas: list[ToolUseDelta]) -> None:
    """In whatever fragments they arrive: ids after names, several calls at one index."""
    chunks = [ModelChunk(tool_uses=(delta,)) for delta in deltas]

    def calls(*hooks: Hook) -> list[tuple[str, str, str]]:
        agent = Agent("a", ScriptedModel([chunks, "Done."]), hooks=hooks)
        agent.call("Go").block()
        uses = [use for message in agent.session().messages for use in message.tool_uses]
        return [(use.id if use.id in ("a", "b") else "", use.name, use.raw) for use in uses]

    assert calls(Redaction()) == calls()


async def test_pieces_of_a_tool_are_redacted_over_their_borders() -> None:
    """A secret that a streaming tool splits over two chunks is neither in its chunks nor in its result."""

    @tool
    async def cat() -> Any:
        """Read."""
        yield "key=sk-live-Abc"
        yield "def1234567890\n"
        yield "end"

    agent = Agent("a", ScriptedModel([use("t1", "cat"), "Ok."]), tools=[cat], hooks=[Redaction()])
    events = await events_of(agent)
    assert "".join(e.chunk for e in events if isinstance(e, ActingChunk)) == "key=<secret-1>\nend"
    assert agent.session().messages[2].text == "key=<secret-1>\nend"


# ---- what is kept


async def test_without_restore_nobody_gets_anything_back() -> None:
    """`restore=False`: placeholders in the reply, in tool arguments, and in the history."""
    model = ScriptedModel([use("t1", "send_mail", to="<email-1>", body="x"), "Sent to <email-1>."])
    agent = Agent("a", model, tools=[send_mail], hooks=[Redaction(restore=False)])
    reply = await agent.call(f"Write to {MAIL}")
    assert reply.text == "Sent to <email-1>."
    assert MAIL not in repr(agent.session().messages)
    assert KEY2 not in repr(agent.session().messages)


async def test_stored_original_changes_only_what_is_sent() -> None:
    """`stored="original"`: the session has the originals; the model gets placeholders all the same."""
    model = ScriptedModel([use("t1", "send_mail", to="<email-1>", body="x"), "Sent to <email-1>.", "Yes."])
    agent = Agent("a", model, tools=[send_mail], hooks=[Redaction(stored="original")])
    await agent.call(f"Write to {MAIL}")
    await agent.call("Really?")
    assert history(agent.session())[0] == f"user: Write to {MAIL}"
    assert KEY2 in agent.session().messages[2].text
    asked = repr([request.messages for request in model.requests])
    assert MAIL not in asked
    assert KEY2 not in asked


async def test_a_store_gets_placeholders_whatever_happens() -> None:
    """Interrupted words, suspended calls with their requests, injected messages: nothing secret is in the store."""

    class Asks(Hook):
        guard = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing) and event.approval is None:
                event.context.inject(f"note {MAIL}")
                return Suspend({"why": f"mail to {MAIL}"})
            return event

    kept = MemoryStore()
    redaction = Redaction()
    model = ScriptedModel([["For <email-1>, ", use("t1", "send_mail", to="<email-1>", body=KEY)], "Done <email-1>."])
    agent = Agent("a", model, tools=[send_mail], hooks=[Asks(), redaction], store=redaction.store(kept))
    reply = await agent.call(f"Write to {MAIL}", session="s")
    assert reply.pending[0].request == {"why": f"mail to {MAIL}"}
    assert (await agent.resume("s", {"t1": Answer(f"sent by hand to {MAIL}")})).text == f"Done {MAIL}."
    facts = repr(kept.load("s"))
    assert MAIL not in facts
    assert KEY not in facts
    assert "<email-1>" in facts


async def test_names_are_redacted_too() -> None:
    """Keys of arguments, names of tools that do not exist, a message's name and metadata: the model and the store get none."""

    @tool
    async def note(entries: dict[str, str]) -> str:
        """Take a note."""
        return f"{len(entries)} noted"

    kept, redaction = MemoryStore(), Redaction(values=["note"])
    script = [[use("t1", "note", entries={KEY: "1", MAIL: "2"}), use("t2", KEY2)], "Done."]
    model = ScriptedModel(script)
    agent = Agent("a", model, tools=[note], hooks=[redaction], store=redaction.store(kept))
    metadata = {"of": KEY, KEY: [1, {"by": MAIL}], "n": 7}
    await agent.call(Msg.user("hi", name=MAIL, metadata=metadata), session="s")
    for secret in (KEY, KEY2, MAIL):
        assert secret not in repr([request.messages for request in model.requests])
        assert secret not in repr(kept.load("s"))
    first = model.requests[0].messages[-1]
    assert (first.name, dict(first.metadata)) == (
        "<email-1>",
        {"of": "<secret-1>", "<secret-1>": [1, {"by": "<email-1>"}], "n": 7},
    )
    assert [result.text for result in agent.session("s").messages[2].tool_results] == [
        "2 <secret-3>d",  # `note` is a name that may be called, and a value that is hidden
        "There is no tool named '<secret-2>'. Known tools: <secret-3>.",
    ]


async def test_a_sealed_thought_with_a_secret_is_stored_without_both() -> None:
    """The provider gets its thought back as it was; the store gets it redacted, without the seal that would not fit."""
    secret = [ModelChunk(thinking="key " + KEY), ModelChunk(signature="seal-1")]
    plain = [ModelChunk(thinking="to <email-1>"), ModelChunk(signature="seal-2")]
    model = ScriptedModel([[*secret, "One."], [*plain, "Two."], "Three."])
    kept, redaction = MemoryStore(), Redaction()
    agent = Agent("a", model, hooks=[redaction], store=redaction.store(kept))
    for text in (f"I am {MAIL}", "And?", "So?"):
        await agent.call(text, session="s")

    def thoughts(messages: Any) -> list[Any]:
        return [(b.text, b.signature) for m in messages for b in m.content if isinstance(b, ThinkingBlock)]

    assert thoughts(model.requests[2].messages) == [(f"key {KEY}", "seal-1"), ("to <email-1>", "seal-2")]
    assert thoughts(fact.message for fact in kept.load("s") if isinstance(fact, Reasoned)) == [
        ("key <secret-1>", None),
        ("to <email-1>", "seal-2"),
    ]
    assert KEY not in repr(kept.load("s"))


async def test_placeholders_of_an_earlier_life_are_nobodys() -> None:
    """A session that is loaded with placeholders does not give their names to new values."""
    model = ScriptedModel(["Hello <email-7> and <email-8>."])
    session = Session.fresh([Msg.user("I was <email-7>"), Msg.assistant("Yes.")])
    agent = Agent("a", model, hooks=[Redaction()])
    assert (await agent.call(f"I am {MAIL}", session=session)).text == f"Hello <email-7> and {MAIL}."


def test_a_vault_is_stored_without_its_values() -> None:
    """What a store that keeps session states gets of the vault is counters."""
    vault = Vault()
    scanner = Scanner(DETECTORS)
    assert vault.hide(MAIL, "email", scanner, by_model=False) == "<email-1>"
    adapter = TypeAdapter(Vault)
    assert adapter.dump_json(vault) == b'{"email":1}'
    again = adapter.validate_json(adapter.dump_json(vault))
    assert again.hide("eve@example.com", "email", scanner, by_model=False) == "<email-2>"


async def test_one_instance_serves_fifty_runs_at_once() -> None:
    """Each session has its own placeholders, and no session gets the values of another one."""
    agent = Agent("a", ScriptedModel(lambda request: f"You are {request.messages[-1].text}"), hooks=[Redaction()])
    replies = await asyncio.gather(*(agent.call(f"u{n}@example.com", session=f"s{n}") for n in range(50)))
    assert [reply.text for reply in replies] == [f"You are u{n}@example.com" for n in range(50)]
    assert {agent.session(f"s{n}").messages[0].text for n in range(50)} == {"<email-1>"}


async def test_sub_agents_are_covered() -> None:
    """An agent used as a tool gets originals as its input, and its own model gets placeholders."""
    inner_model = ScriptedModel(["Found <email-1>."])
    inner = Agent("finder", inner_model)
    model = ScriptedModel([use("t1", "finder", message="Find <email-1>"), "It is <email-1>."])
    agent = Agent("a", model, tools=[inner], hooks=[Redaction()])
    assert (await agent.call(f"Find {MAIL}")).text == f"It is {MAIL}."
    assert inner_model.requests[0].messages[-1].text == "Find <email-1>"
    assert model.requests[1].messages[-1].text == "Found <email-1>."


# ---- what is asked on the side


@pytest.mark.parametrize("restore", [True, False])
async def test_what_is_asked_on_the_side_holds_no_secrets(restore: bool) -> None:
    """Hooks and tools, of a sub-agent too: their models get the session's placeholders, and they get originals back."""
    side = ScriptedModel(lambda request: f"{request.messages[-1].text}, {KEY2}")
    got: list[str] = []

    @tool
    async def ask(about: str, context: RunContext) -> str:
        """Ask somebody else."""
        got.append((await context.complete(f"{about} is {MAIL}", model=side)).text)
        return "asked"

    @on("before_llm", scope="tree")
    async def judge(event: PreReasoning) -> None:
        got.append((await event.context.complete(f"judge {MAIL}", model=side)).text)

    inner = Agent("inner", ScriptedModel([use("t2", "ask", about="he"), "asked"]), tools=[ask])
    script = [use("t1", "ask", about="she"), use("t3", "inner", message="go"), "Done."]
    recorder = Recorder()
    hooks = [judge, Redaction(restore=restore), recorder]
    await Agent("a", ScriptedModel(script), tools=[ask, inner], hooks=hooks).call("go")
    asked = [request.messages[-1].text for request in side.requests]
    assert set(asked) == {"he is <email-1>", "judge <email-1>", "she is <email-1>"}
    assert got == [f"{text.replace('<email-1>', MAIL if restore else '<email-1>')}, <secret-1>" for text in asked]
    assert MAIL not in repr([entry for entry in recorder.log.entries if isinstance(entry, RequestEntry)])


async def test_a_side_call_before_the_first_request_takes_no_name_of_an_earlier_life() -> None:
    """A hook that asks before `Redaction` has seen the input: placeholders of the stored history keep their names."""
    side = ScriptedModel(["Fine."])
    session = Session.fresh([Msg.user("I was <email-1>"), Msg.assistant("Yes.")])

    @on("after_user_input")
    async def check(event: PreCall) -> None:
        await event.context.complete(f"Is {MAIL} fine?", model=side)

    await Agent("a", ScriptedModel(["Hello."]), hooks=[check, Redaction()]).call("hi", session=session)
    assert side.requests[0].messages[-1].text == "Is <email-2> fine?"


# ---- finding


def masked(kind: str, text: str) -> str:
    return f"<{kind}>" if kind else text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"key {KEY}.", "key <secret>."),
        ("AKIAIOSFODNN7EXAMPLE", "<secret>"),
        ("password: hunter22, user: bob", "password: <secret>, user: bob"),
        ('{"api_key": "abc123def"}', '{"api_key": "<secret>"}'),
        ("Authorization: Bearer abcdefghijklmnop.qrs", "Authorization: Bearer <secret>"),
        ("password: required", "password: required"),
        (f"aws_secret_access_key={AWS}", "aws_secret_access_key=<secret>"),
        (f'"SecretAccessKey": "{AWS}"', '"SecretAccessKey": "<secret>"'),
        (f"AWS Secret Access Key: {AWS}", "AWS Secret Access Key: <secret>"),
        (f"AKIAIOSFODNN7EXAMPLE, {AWS}", "<secret>, <secret>"),
        (AWS, AWS),  # by itself it has no form
        ("postgresql://u:S3cretPw99@h/db", "postgresql://u:<secret>@h/db"),
        ("redis://:p@ss@cache.example.com:6379 ok", "redis://:<secret>@cache.example.com:6379 ok"),
        ("http://localhost:8080/a@b", "http://localhost:8080/a@b"),
        ("https://example.com/a:b, c@d", "https://example.com/a:b, c@d"),
        ("Authorization: Basic dXNlcjpTM2NyZXRQdzk5", "Authorization: Basic <secret>"),
        ("authorization: basic YTpi", "authorization: basic <secret>"),
        ("basic questions about Basic language", "basic questions about Basic language"),
        ("pass: hunter2hunter2, DB_PASS=hunter22", "pass: <secret>, DB_PASS=<secret>"),
        ("pwd=hunter22 PWD: hunter23", "pwd=<secret> PWD: <secret>"),
        ("compass: north1234", "compass: north1234"),
        ("password\u200b=hunter22", "password\u200b=<secret>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- ok", "<secret> ok"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "<secret>"),
        (f"card {CARD} 12/27", "card <card> 12/27"),
        ("number 4111 1111 1111 1112", "number 4111 1111 1111 1112"),
        ("DE89 3704 0044 0532 0130 00 AND", "<iban> AND"),
        ("DE89 3704 0044 0532 0130 02", "DE89 3704 0044 0532 0130 02"),
        ("a.b+c@mail.example.org.", "<email>."),
        ("536-90-4399", "<ssn>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-def", "<secret>"),
    ],
)
def test_what_is_found(text: str, shown: str) -> None:
    """Secrets are found in their full length; a number with wrong check digits is none."""
    assert Scanner(DETECTORS).replace(text, masked) == shown


def test_patterns_that_cannot_work_are_refused() -> None:
    """A pattern that does not compile or matches nothing, and a kind that makes no placeholder, are refused at once."""
    for kind, pattern, words_ in [
        ("badge", "(", "cannot be compiled"),
        ("badge", "x*", "matches the empty text"),
        ("Badge 1", "x", "lower-case"),
    ]:
        with pytest.raises(UsageError, match=words_):
            Redaction(patterns={kind: pattern})
    with pytest.raises(UsageError, match="list of strings"):
        Redaction(values="secret")


async def test_own_patterns_and_values() -> None:
    """What the user names is found too, the values wherever they occur."""
    model = ScriptedModel(lambda request: request.messages[-1].text)
    redaction = Redaction([], patterns={"badge": r"B-\d{4}"}, values=["Project Blue"])
    agent = Agent("a", model, hooks=[redaction])
    assert (await agent.call(f"B-1234 runs Project Blue, {MAIL}")).text == f"B-1234 runs Project Blue, {MAIL}"
    assert model.requests[0].messages[-1].text == f"<badge-1> runs <secret-1>, {MAIL}"


SECRETS_TOO = (
    KEY,
    KEY2,
    MAIL,
    CARD,
    "DE89 3704 0044 0532 0130 00",
    "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----",
    "AKIAIOSFODNN7EXAMPLE",
    "password=hunter22",
    "hunter22",
    "hunter22@",
    "ftp://u:",
    "://a:b@c@d",
    "Basic dXNlcjpTM2NyZXRQdzk5",
    "DB_PASS: ",
    AWS,
    "<secret-1>",
    "<email-1>",
    "<secre",
)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(SECRETS_TOO), st.text("ab1 -_.@<>:=\n49", max_size=8), st.sampled_from([" ", ", ", ". "])
    ),
    max_size=8,
).map("".join)


@settings(max_examples=300 if THOROUGH else 100, deadline=None)
@given(TEXTS)
def test_a_hint_never_hides_a_find(text: str) -> None:
    """Detectors with hints find the same as without."""
    shown: list[str] = []
    for detectors in (DETECTORS, tuple(replace(detector, hint="", needles=()) for detector in DETECTORS)):
        base, vault = Scanner(detectors), Vault()

        def found(kind: str, value: str, base: Scanner = base, vault: Vault = vault) -> str:
            return vault.hide(value, kind, base, by_model=True) if kind else value

        looked = base.may_find(text)
        pieces = scan(lambda base=base, vault=vault: vault.scanner(base), text, 0, True, found)[0]
        shown.append("".join(pieces) if looked else text)
    assert shown[0] == shown[1]


@settings(max_examples=300 if THOROUGH else 100, deadline=None)
@given(TEXTS, TEXTS)
def test_what_is_clean_as_a_whole_has_no_part_that_is_not(before: str, text: str) -> None:
    """If the JSON text of arguments is clean, no name and no value in it has a secret."""
    base = Scanner(DETECTORS)
    raw = json.dumps({"given": f"{before} {text}"}, ensure_ascii=False)
    if "\\" not in raw and not base.may_find_within(raw):
        assert base.replace(text, lambda kind, value: f"<{kind}>") == text


@pytest.mark.parametrize("hint", ["^B-", r"\bB-", r"(?<![\w])B-", "B-", ""])
async def test_a_hint_that_looks_around_hides_nothing_in_arguments(hint: str) -> None:
    """In the JSON text of arguments a value is not at the start; it is found all the same."""
    badge = Detector("badge", r"(?<!\S)B-\d{6}", hint=hint)
    model = ScriptedModel([use("t1", "note", text="B-123456"), "Noted."])

    @tool
    async def note(text: str) -> str:
        """Note something."""
        return "noted"

    agent = Agent("a", model, tools=[note], hooks=[Redaction([badge])])
    await agent.call("go")
    assert "B-123456" not in str(model.requests[1].messages)


def test_needles_are_small_letters() -> None:
    """Texts are compared in lower-case, so a needle with a capital would hide every find."""
    with pytest.raises(UsageError, match="lower-case"):
        Detector("badge", r"B-\d{6}", needles=("B-",))


@settings(max_examples=300 if THOROUGH else 100, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=12))
def test_any_split_gives_the_same_text_and_no_prefix_holds_a_secret(text: str, cuts: list[int]) -> None:
    """The hold-back law: redacting in chunks equals redacting the whole, and delivered text stays."""
    base = Scanner((*DETECTORS, Detector("badge", r"ab{1,3}1(?!9)")))

    def replacing(vault: Vault) -> Any:
        def found(kind: str, value: str) -> str:
            if not kind:
                return vault.original(value) or value
            return vault.hide(value, kind, base, by_model=True)

        return found

    def fresh() -> Vault:
        vault = Vault()
        vault.hide("bob@example.com", "email", base, by_model=False)
        return vault

    vault = fresh()
    whole = "".join(scan(lambda: vault.scanner(base), text, 0, True, replacing(vault))[0])
    other = fresh()
    stream = StreamScanner(lambda: other.scanner(base), replacing(other))
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    seen = ""
    for start, end in pairwise(places):
        seen += stream.feed(text[start:end])
        assert whole.startswith(seen)
    assert seen + stream.end() == whole


@settings(max_examples=200 if THOROUGH else 100, deadline=None)
@given(
    st.sampled_from((KEY, KEY2, MAIL, CARD, "DE89 3704 0044 0532 0130 00", "AKIAIOSFODNN7EXAMPLE")),
    st.text("abc ,.", max_size=12),
    st.text("abc ,.", max_size=12),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_no_view_of_a_reader_holds_a_secret(secret: str, before: str, after: str, sizes: list[int]) -> None:
    """Whatever the sizes of the chunks, at no moment has the reader seen more of a secret than its first word's
    start.
    """
    scanner = Scanner(DETECTORS)
    stream = StreamScanner(lambda: scanner, masked)
    text, seen, index = f"{before} {secret}\n{after}", "", 0
    while text:
        size, index = sizes[index % len(sizes)], index + 1
        seen += stream.feed(text[:size])
        text = text[size:]
        assert secret[:8] not in seen
    assert secret[:8] not in seen + stream.end()


async def test_thoughts_are_held_back_too() -> None:
    """A secret in a thought over two chunks, before its seal, is not seen; the thought itself is kept for its provider."""
    pieces = [
        ModelChunk(thinking="The key sk-live-Abc"),
        ModelChunk(thinking="def1234567890"),
        ModelChunk(signature="seal"),
        ModelChunk("Done."),
    ]
    model = ScriptedModel([[*pieces], "Ok."])
    agent = Agent("a", model, hooks=[Redaction()])
    events = await events_of(agent)
    assert "".join(e.incremental_chunk.thinking for e in chunk_events(events)) == "The key <secret-1>"
    await agent.call("more")
    thought = model.requests[1].messages[1].content[0]
    assert isinstance(thought, ThinkingBlock)
    assert (thought.text, thought.signature) == (f"The key {KEY}", "seal")


def file(text: str, media_type: str = "text/plain", name: str = "letter.txt") -> DataBlock:
    return DataBlock.from_bytes(text.encode(), media_type, name=name)


@pytest.mark.parametrize(
    ("text", "media_type", "masked"),
    [
        (f"key: {KEY}\n", "text/plain", "key: <secret-1>\n"),
        (f'{{"to": "ada@example.com", "key":"{KEY}"}}', "application/json", '{"to": "<email-1>", "key":"<secret-1>"}'),
        ('{"to":"ada\\u0040example.com"}', "application/json", '{"to": "<email-1>"}'),
        ("<svg><text>ada@example.com</text></svg>", "image/svg+xml", "<svg><text><email-1></text></svg>"),
        ("ada@example.com", "application/octet-stream", "<email-1>"),
        ("nothing in it", "text/plain", "nothing in it"),
    ],
)
async def test_files_that_are_text_are_looked_into(text: str, media_type: str, masked: str) -> None:
    """Files of the user and of tools, in requests and in stored data; a clean file is the same object."""
    given = file(text, media_type)

    @tool(type="read")
    async def read() -> DataBlock:
        return given

    model = ScriptedModel([use("t1", "read"), "Done."])
    agent = Agent("clerk", model, tools=[read], hooks=[Redaction()])
    await agent.call(Msg.user("Look.", given))
    asked, _, answered = model.requests[1].messages
    shown = answered.tool_results[0].content[-1]
    assert isinstance(shown, DataBlock)
    assert [one.to_bytes().decode() for one in (*asked.data, *agent.session().messages[0].data, shown)] == [masked] * 3
    if text == masked:
        assert asked.data[0] is given


async def test_names_and_addresses_of_files_are_masked() -> None:
    """Also those of a picture, whose content is unchanged; invalid base64, and binary data, pass unchanged."""
    picture = DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n.", name="ada@example.com (1).png")
    away = DataBlock.from_url("https://ada:s3cret9@example.com/a.png")
    odd = DataBlock("text/plain", data="???")
    binary = DataBlock.from_bytes(b"\xff\xfe" + "ada@example.com".encode("utf-16-le"), "text/plain")
    model = ScriptedModel(["Done."])
    await Agent("clerk", model, hooks=[Redaction()]).call(Msg.user("Look.", picture, away, odd, binary))
    sent = model.requests[0].messages[0].data
    assert [one.name for one in sent[:1]] == ["<email-1> (1).png"]
    assert "s3cret9" not in str(sent[1].url)
    assert (sent[0].data, sent[2], sent[3]) == (picture.data, odd, binary)


async def test_what_a_citation_quotes_is_masked_like_the_words() -> None:
    """Streamed and stored, in its own form too; a picture passes as it is."""
    quoted = Citation.of({"type": "char_location", "cited_text": "write to ada@example.com", "document_title": "Desk"})
    said = [ModelChunk("See ada@exa"), ModelChunk("mple.com"), ModelChunk(citations=(quoted,)), ModelChunk(" there.")]
    agent = Agent("clerk", ScriptedModel([said]), hooks=[Redaction()])
    picture = DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n.")
    reply = await agent.call(Msg.user("Where?", picture))
    [masked] = reply.citations
    assert reply.text == "See <email-1> there."
    assert (masked.text, masked.raw["cited_text"]) == ("write to <email-1>", "write to <email-1>")
    asked, answered = agent.session().messages
    assert (asked.data, answered.citations) == ((picture,), (masked,))


SHOWN_LATER = ("I log in with Zq7Hx2PqLm91 there", "config: password=Zq7Hx2PqLm91")


@pytest.mark.parametrize("blocks", [SHOWN_LATER, (" ".join(SHOWN_LATER),)], ids=["two blocks", "one block"])
@pytest.mark.parametrize("comes", ["in history", "injected", "from a hook", "as the system prompt"])
async def test_a_secret_is_masked_before_the_words_that_show_that_it_is_one(
    blocks: tuple[str, ...], comes: str
) -> None:
    """In the same message, in this request and in later ones."""
    msg = Msg.user(*blocks)

    @on(PreReasoning)
    def adds(event: PreReasoning) -> None:
        if comes == "injected" and len(event.context.history) == 1:
            event.context.inject(msg)
        if comes == "from a hook":
            event.input_messages = [*event.input_messages, msg]

    model = ScriptedModel(["ok", "ok"])
    system = msg.text if comes == "as the system prompt" else None
    agent = Agent("clerk", model, system=system, hooks=[adds, Redaction()])
    session = Session.fresh([msg, Msg.assistant("yes")] if comes == "in history" else [])
    for words in ("hi", "more"):
        await agent.call(words, session=session)
    sent = [one.text for request in model.requests for one in request.messages]
    assert len(sent) > 2
    assert not [text for text in sent if "Zq7Hx2PqLm91" in text]


async def test_a_session_forgets_the_hooks_of_finished_calls() -> None:
    """A hook for each call, over one session: what the first ones have searched is not kept."""
    agent = Agent("clerk", ScriptedModel(lambda _: "ok"))
    kept: list[int] = []
    for n in range(30):
        await agent.call(f"hi {n}", session="s", hooks=[Redaction()])
        gc.collect()
        kept.append(sum(isinstance(one, Scanner) for one in gc.get_objects()))
    assert kept[14] == kept[29]
