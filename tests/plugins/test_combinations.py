"""All plugins together: each still does its work, and none takes another's away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eventlog import history, use
from thorough import THOROUGH
from wired import WIRES, Wired, normal_history

from agentflow import (
    Agent,
    Approve,
    Hook,
    ModelChunk,
    Msg,
    PostActing,
    PreReasoning,
    Session,
    Suspend,
    Turn,
    Usage,
    on,
    tool,
)
from agentflow.errors import ModelError, SessionConflictError
from agentflow.plugins.approval import Allow, Approval, ApprovalRequest
from agentflow.plugins.cache import ModelCache, ToolCache
from agentflow.plugins.clearing import ClearOldResults
from agentflow.plugins.compaction import SUMMARISE, SummaryCompaction
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.goal import GoalJudge
from agentflow.plugins.guardrails import InputGuardrail, OutputGuardrail, ToolGuardrail
from agentflow.plugins.limits import UsageLimits
from agentflow.plugins.logging import EventLog
from agentflow.plugins.offload import OffloadResults
from agentflow.plugins.progress import NoProgress
from agentflow.plugins.rate_limit import RateLimit
from agentflow.plugins.react import ChainOfThought, ReActThoughts
from agentflow.plugins.redaction import Redaction
from agentflow.plugins.reflection import Reflection
from agentflow.plugins.reminders import DynamicContext, SystemReminder, current_time
from agentflow.plugins.retry import ModelRetry, ToolRetry
from agentflow.plugins.shell import ShellApproval
from agentflow.plugins.skills import Skills
from agentflow.plugins.steering import Steering
from agentflow.recording.recorder import Recorder
from agentflow.state.sql import SqlStore
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply

MAIL = "ada@example.com"


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"{MAIL} was at {place}; {'x' * 400}"


@tool
async def note(text: str) -> str:
    """Write a note."""
    return f"noted {text}"


@tool
async def bash(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def other(text: str = "All is well.") -> ScriptedModel:
    """The model that thinks, judges, sums up."""
    return ScriptedModel(lambda request: text)


def all_plugins(**instead: Hook) -> list[Hook]:
    """Every plugin at once, each doing something."""
    hooks: dict[str, Hook] = {
        "log": EventLog(json=True),
        "limits": UsageLimits(tokens=10_000_000, tool_calls=10_000, seconds=10_000),
        "model_retry": ModelRetry(first_wait=0, jitter=0),
        "fallback": ModelFallback(other("The backup.")),
        "rate": RateLimit(calls=100_000, tokens=100_000_000, per=1),
        "tool_rate": RateLimit(calls=100_000, per=1, tools=("*",)),
        "tool_retry": ToolRetry(first_wait=0, jitter=0),
        "tool_cache": ToolCache(),
        "model_cache": ModelCache(priority=950),
        "approval": Approval([Allow("*")]),
        "shell": ShellApproval(allow=["ls *"]),
        "redaction": Redaction(),
        "input": InputGuardrail(lambda text: None),
        "racing": InputGuardrail(lambda text: None, racing=True),
        "output": OutputGuardrail(lambda text: None),
        "tools": ToolGuardrail(lambda event: None),
        "reflection": Reflection(other(), every=3),
        "thoughts": ReActThoughts(other(), keep=False),
        "chain": ChainOfThought(),
        "goal": GoalJudge(lambda event: True),
        "progress": NoProgress(),
        "compaction": SummaryCompaction(at_messages=20, keep_rounds=2, model=other("Much was looked at.")),
        "clearing": ClearOldResults(keep=2, step=2, min_chars=100),
        "offload": OffloadResults(200, preview_chars=50),
        "steering": Steering(),
        "reminder": SystemReminder("Be careful.", every=2),
        "context": DynamicContext(current_time()),
        "recorder": Recorder(),
    }
    return list({**hooks, **instead}.values())


# ---- everything at once


WAYS = [(wire, how) for wire in WIRES for how in ("call", "stream")]


async def test_plugins_that_add_to_the_system_prompt_keep_its_other_fields(tmp_path: Path) -> None:
    """A hook before them may have set a name or a reason; only the text grows."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "SKILL.md").write_text("---\nname: demo\ndescription: Shows.\n---\nShow.", "utf-8")
    first = Msg.system("You help.", name="boss", finish_reason="written", metadata={"by": "me"})

    @on(PreReasoning, priority=1)
    def lead(event: PreReasoning) -> None:
        event.input_messages = (first, *event.input_messages)

    model = ScriptedModel(["Hello."])
    plugins = [Skills(tmp_path), DynamicContext(lambda event: "It rains.", position="system"), ChainOfThought("Think!")]
    await Agent("a", model, hooks=[lead, *plugins]).call("Hi")
    sent = model.requests[0].messages[0]
    assert all(text in sent.text for text in ("You help.", "demo", "It rains.", "Think!"))
    assert replace(sent, content=first.content) == first


@pytest.mark.ci
@pytest.mark.parametrize(("wired", "how"), WAYS if THOROUGH else [WAYS[0], WAYS[-1]], indirect=["wired"])
async def test_all_plugins_work_for_thirty_rounds_over_the_wire(wired: Wired, how: str) -> None:
    """Each of 31 requests is legal and without secrets, old rounds are summed up, and the user reads real words."""

    def brain(request: Any) -> WireReply | str:
        number = request.index + 1
        if number > 30:
            return Say("Written to <email-1>.")
        calls = (("look", {"place": number}), ("note", {"text": f"<email-1> {number}"}), ("bash", {"command": "ls -l"}))
        return WireReply(f"Round {number}.", calls=tuple(ScriptedCall(name, given) for name, given in calls))

    said: list[str] = []
    steering, recorder = Steering(), Recorder()
    async with wired.serve(brain) as server:
        hooks = all_plugins(steering=steering, recorder=recorder)
        agent = Agent("a", wired.model(server), tools=[look, note, bash], hooks=hooks, max_iterations=40)
        agent.on("after_each_tool", lambda event: said.append(event.tool_use.input.get("text", "")))
        steering.send("Begin at the top.", session="s")
        if how == "call":
            reply = await agent.call(f"I am {MAIL}, my key is sk-abcdefghijklmnop1234", session="s")
            assert (reply.text, reply.outcome) == (f"Written to {MAIL}.", "completed")
        else:
            async with agent.stream(f"I am {MAIL}, my key is sk-abcdefghijklmnop1234", session="s") as events:
                assert [event.outcome async for event in events if type(event).__name__ == "CallEnded"] == ["completed"]
        assert len(server.requests) == 31
        sent = [str(request.body) for request in server.requests]
    assert [text for text in sent if MAIL in text or "sk-abc" in text] == []
    assert "Much was looked at." in sent[-1]
    assert max(len(request.messages) for request in server.requests) < 45
    assert [text for text in said if text] == [f"{MAIL} {number}" for number in range(1, 31)]
    stored = normal_history(agent.session("s").messages)
    assert stored[:2] == ["user: Begin at the top.", "user: I am <email-1>, my key is <secret-1>"]
    assert stored[-1] == f"assistant: Written to {MAIL}. (stop)"
    assert len(stored) == 2 + 30 * 2 + 10 + 1
    assert recorder.explain(agent.session("s").messages[-1]).hooks == ("Redaction", "GoalJudge")


class Passes(Hook):
    """Stands in for a plugin."""

    def on_event(self, event: Any) -> Any:
        return event


async def test_fifty_runs_of_three_agents_share_all_plugins() -> None:
    """One instance of each plugin: no run reads secrets, answers or results of another one."""

    def brain(request: Any) -> Any:
        answered = any(msg.role == "tool" for msg in request.messages)
        mine = next(msg.text for msg in request.messages if msg.role == "user" and "synthetic" not in msg.metadata)
        return f"{mine} <email-1>" if answered else [use("t1", "look", place=1), use("t2", "note", text="<email-1>")]

    hooks = all_plugins(log=Passes(), context=Passes())
    agents = [Agent(name, ScriptedModel(brain), tools=[look, note], hooks=hooks) for name in ("ann", "bob", "cid")]
    calls = [agents[i % 3].call(f"{i}: u{i}@example.org", session=f"s{i}") for i in range(50)]
    replies = await asyncio.gather(*calls)
    assert [reply.text for reply in replies] == [f"{i}: u{i}@example.org u{i}@example.org" for i in range(50)]


async def test_turns_of_a_queue_pass_all_plugins() -> None:
    """Where there is no conversation nothing fails for the lack of one, and values stay values."""

    @tool
    async def count(to: int) -> AsyncIterator[str]:
        """Count."""
        for number in range(to):
            yield f"{MAIL} {number}"

    agent = Agent("a", ScriptedModel([]), tools=[look, count], hooks=all_plugins())
    for turn in (Turn(look, {"place": 1}), Turn(count, {"to": 3}), Turn(look, {"place": 1})):
        await agent.put(turn)
    values = [value async for _, value in agent.run()]
    assert [value[:14] for value in values] == [
        "<email-1> was ",
        *(f"<email-1> {n}" for n in range(3)),
        "<email-1> was ",
    ]


async def test_a_cancelled_call_leaves_all_plugins_ready_for_the_next() -> None:
    """A call is cancelled while a tool runs: the session's next call goes through the same hooks as if nothing was."""
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait forever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    steering = Steering()
    model = ScriptedModel([use("t1", "wait"), "Here again."])
    agent = Agent("a", model, tools=[wait], hooks=all_plugins(steering=steering))
    call = asyncio.ensure_future(agent.call("Wait", session="s"))
    await begun.wait()
    steering.send("Never mind.", session="s")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    reply = await agent.call("And now?", session="s")
    assert reply.text == "Here again."
    assert history(agent.session("s"))[-3:] == ["user: Never mind.", "user: And now?", "assistant: Here again."]


# ---- redaction, cache, retry, fallback


async def test_a_cached_reply_is_restored_for_whoever_asks(wired: Wired) -> None:
    """The second session's request is the first one's, placeholders and all: it gets the cached reply with its own words."""
    hooks = [
        ModelFallback(other("The backup.")),
        ModelRetry(first_wait=0, jitter=0),
        ModelCache(priority=950),
        Redaction(),
        Recorder(),
    ]
    async with wired.serve([Say("Hello <email-1>.")]) as server:
        agent = Agent("a", wired.model(server), hooks=hooks)
        replies = [await agent.call(f"I am {name}@example.com", session=name) for name in ("ada", "bob")]
    assert [reply.text for reply in replies] == ["Hello ada@example.com.", "Hello bob@example.com."]


async def test_a_recorder_takes_nothing_from_the_hooks_that_it_watches() -> None:
    """Cache, fallback and compaction know the request and can ask another, recorded or not."""
    main = ScriptedModel([ModelError("down", retryable=True)] * 3, name="main")
    backup = ScriptedModel(["From the backup."], name="backup")
    hooks = [ModelCache(), ModelFallback(backup), ModelRetry(first_wait=0, jitter=0), Recorder()]
    agents = [Agent(name, main, hooks=hooks) for name in ("ann", "bob")]
    first = await agents[0].call("Hi")
    main_again = Agent("bob", ScriptedModel([ModelError("down")], name="main"), hooks=hooks)
    second = await main_again.call("Hi")
    assert (first.text, second.text, len(backup.requests)) == ("From the backup.", "From the backup.", 1)


async def test_attempts_of_all_layers_are_one_account() -> None:
    """Retry within fallback: the limit counts each attempt, and ends both; the failure says that it was the limit."""
    models = [ScriptedModel([ModelError("down", retryable=True)] * 9, name=name) for name in ("main", "backup")]
    hooks = [ModelFallback(models[1]), ModelRetry(2, first_wait=0, jitter=0), UsageLimits(model_calls=3), ModelCache()]
    with pytest.raises(ModelError, match="down") as caught:
        await Agent("a", models[0], hooks=hooks).call("Hi")
    notes = "\n".join(caught.value.__notes__)
    assert "There was no retry: Usage limit reached: 3 of 3 model calls are used in this run." in notes
    assert [len(model.requests) for model in models] == [2, 1]


@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_limit_counts_a_sub_agent_once(everywhere: bool) -> None:
    """Whether the sub-agent has the hook too or only inherits it: three of its calls and two of the caller's are five."""
    limits = UsageLimits(model_calls=5)

    def brain(request: Any) -> Any:
        rounds = len([msg for msg in request.messages if msg.role == "tool"])
        usage = ModelChunk(usage=Usage(input_tokens=1, output_tokens=1), finish_reason="stop")
        return [use(f"s{rounds}", "look", place=rounds) if rounds < 2 else "Looked.", usage]

    child = Agent("child", ScriptedModel(brain), tools=[look], hooks=[limits] if everywhere else [])
    asks = [[use("c0", "child", message="go")], [use("c1", "child", message="go")], "never"]
    top = Agent("top", ScriptedModel(asks), tools=[child.as_tool(description="Looks.")], hooks=[limits])
    reply = await top.call("Go")
    assert reply.outcome == "stopped"
    results = [result.text for msg in top.session().messages for result in msg.tool_results]
    assert results == ["Looked.", "Usage limit reached: 5 of 5 model calls are used in this run."]


async def test_what_judges_and_summaries_are_asked_holds_no_secrets() -> None:
    """Replies are restored before judges read them, and are in this form in the history that is summarised."""
    side = ScriptedModel(lambda request: '{"done": true}')
    model = ScriptedModel(lambda request: "Dear <email-1>,")
    hooks = [
        Redaction(),
        GoalJudge("It is polite.", side),
        SummaryCompaction(at_messages=2, keep_rounds=1, model=side),
    ]
    agent = Agent("a", model, hooks=hooks)
    for _ in range(3):
        await agent.call(f"Write to {MAIL}")
    assert agent.session().messages[1].text == f"Dear {MAIL},"
    asked = [request.messages[0].text == SUMMARISE for request in side.requests]
    assert asked == [False, False, True, False]
    assert [msg.text for request in side.requests for msg in request.messages if MAIL in msg.text] == []


# ---- long conversations


async def test_a_conversation_that_somebody_steered_from_its_start_is_compacted() -> None:
    """The history may begin with a message of a hook: the place is found all the same."""
    steering = Steering()
    model = ScriptedModel([*[use(f"t{n}", "look", place=n) for n in range(6)], "Done."])
    hooks = [steering, SummaryCompaction(at_messages=6, keep_rounds=1, cooldown=0, model=other("In short."))]
    agent = Agent("a", model, tools=[look], hooks=hooks)
    steering.send("Be quick.", session="s")
    await agent.call("Go", session="s")
    assert [len(request.messages) for request in model.requests] == [2, 4, 6, 4, 6, 4, 6]
    assert len(agent.session("s").messages) == 2 + 12 + 1


async def test_summary_clearing_and_offloading_together() -> None:
    """Each of the three does its part, results that were put aside can be read later, and the history keeps it all."""

    def brain(request: Any) -> Any:
        brain.calls += 1  # type: ignore[attr-defined]
        number = brain.calls  # type: ignore[attr-defined]
        if number == 9:
            return use("r", "read_offloaded", id="t0", offset=400)
        return use(f"t{number - 1}", "look", place=number) if number < 9 else "Done."

    brain.calls = 0  # type: ignore[attr-defined]
    model = ScriptedModel(brain)
    hooks = [
        ClearOldResults(keep=1, step=1, min_chars=120),
        OffloadResults(200, preview_chars=50),
        SummaryCompaction(at_messages=9, keep_rounds=3, cooldown=0, model=other("In short.")),
    ]
    agent = Agent("a", model, tools=[look], hooks=hooks)
    await agent.call("Go", session="s")
    longest = max(len(request.messages) for request in model.requests)
    results = [result.text for msg in agent.session("s").messages for result in msg.tool_results]
    assert longest <= 9
    assert all(f'id="t{n}"' in result for n, result in enumerate(results[:8]))
    assert results[8].endswith("[Characters 400 to 426 of 426; this is the end.]")
    cleared = [result.text for msg in model.requests[-2].messages for result in msg.tool_results]
    assert [text.startswith("[An old result of look") for text in cleared] == [True] * (len(cleared) - 1) + [False]


@pytest.mark.parametrize("first", ["redaction", "offload"])
async def test_what_is_put_aside_is_redacted_whichever_was_registered_first(first: str) -> None:
    """A secret never gets into the store of long results."""
    kept: dict[tuple[str, str], str] = {}
    hooks: list[Hook] = [Redaction(), OffloadResults(200, store=kept, preview_chars=10)]
    agent = Agent(
        "a",
        ScriptedModel([use("t1", "look", place=1), "Done."]),
        tools=[look],
        hooks=hooks if first == "redaction" else hooks[::-1],
    )
    await agent.call("Go", session="s")
    assert [text[:20] for text in kept.values()] == ["<email-1> was at 1; "]


# ---- approvals


async def test_two_approvals_and_a_tool_that_needs_one_ask_once_for_each_call() -> None:
    """An approved call runs, one that a deny rule names does not, and no person is asked twice about one call."""

    @tool(requires_approval=True)
    async def shell(command: str) -> str:
        """Run a command."""
        return f"ran {command}"

    asked: list[tuple[str, str]] = []

    async def ask(request: ApprovalRequest) -> str:
        asked.append((request.tool_use.id, request.reason))
        return "once"

    hooks = [
        Approval([Allow("shell")], ask=ask),
        ShellApproval(["shell"], allow=["ls *"], deny=["rm"], ask=ask),
    ]
    calls = [
        use("t1", "shell", command="make && git push"),
        use("t2", "shell", command="ls; rm -r /"),
        use("t3", "note", text="hi"),
    ]
    agent = Agent("a", ScriptedModel([calls, "Done."]), tools=[shell, note], hooks=hooks)
    reply = await agent.call("Go", session="s")
    assert reply.outcome == "completed"
    assert asked == [("t1", "no rule allows 'make'"), ("t3", "no rule allows it")]
    assert history(agent.session("s"))[2] == (
        "tool: t1 success 'ran make && git push'; "
        "t2 denied \"Denied: the shell command runs 'rm -r /', and rm is not allowed here\"; t3 success 'noted hi'"
    )


async def test_one_decision_answers_all_who_wait_for_it(tmp_path: Path) -> None:
    """Two hooks and the tool itself wait, another process resumes: one approval runs it, a deny rule still holds."""

    @tool(requires_approval=True)
    async def shell(command: str) -> str:
        """Run a command."""
        return f"ran {command}"

    def agent(model: ScriptedModel, store: SqlStore) -> Agent:
        hooks = [Approval(suspend=True), ShellApproval(["shell"], deny=["rm"], suspend=True)]
        return Agent("a", model, tools=[shell], hooks=hooks, store=store)

    url = f"sqlite:///{tmp_path / 'a.db'}"
    calls = [use("t1", "shell", command="make"), use("t2", "shell", command="rm x")]
    async with SqlStore(url) as store:
        reply = await agent(ScriptedModel([calls]), store).call("Go", session="s")
        assert [pending.id for pending in reply.pending] == ["t1"]
    async with SqlStore(url) as store:
        reply = await agent(ScriptedModel([]), store).resume("s", {"t1": Approve()})
        assert [pending.id for pending in reply.pending] == ["t2"]
    async with SqlStore(url) as store:
        last = agent(ScriptedModel(["Done."]), store)
        assert (await last.resume("s", {"t2": Approve()})).text == "Done."
        assert [result.state for result in last.session("s").messages[2].tool_results] == ["success", "denied"]


# ---- sent back to work


@pytest.mark.parametrize(
    ("hooks", "outcome", "asked"),
    [
        (lambda: [GoalJudge(lambda event: False, max_rounds=100), NoProgress(3)], "stopped", 3),
        (lambda: [GoalJudge(lambda event: False, max_rounds=2)], "completed", 3),
        (lambda: [GoalJudge(lambda event: False, max_rounds=100), UsageLimits(model_calls=4)], "stopped", 4),
        (lambda: [GoalJudge(lambda event: False, max_rounds=100)], "limited", 11),
        (lambda: [GoalJudge(lambda event: False), GoalJudge(lambda event: False), NoProgress(9)], "completed", 4),
        (lambda: [GoalJudge(lambda event: False), OutputGuardrail(lambda text: "bad", times=2)], "stopped", 3),
    ],
)
async def test_whoever_sends_back_ends_by_the_tightest_bound(hooks: Any, outcome: str, asked: int) -> None:
    """A guard of progress, limits, judges (two of them reject in one round): the call ends where the first bound is."""
    model = ScriptedModel(lambda request: "The same answer.")
    reply = await Agent("a", model, hooks=hooks(), max_iterations=10).call("Go")
    assert (reply.outcome, len(model.requests)) == (outcome, asked)


async def test_steering_and_a_judge_lose_no_message() -> None:
    """Both continue the agent: the judge's reason and the message are added, each once."""
    steering = Steering()

    def judge(event: Any) -> bool:
        if event.iteration == 1:
            steering.send("And be kind.", session="s")
        return event.iteration > 1

    hooks = [steering, GoalJudge(judge)]
    agent = Agent("a", ScriptedModel(["One.", "Two."]), hooks=hooks)
    await agent.call("Go", session="s")
    lines = history(agent.session("s"))
    assert sorted(lines[2:4]) == [
        "user: And be kind.",
        "user: [goal] This answer is not accepted: the goal is not reached\nKeep working, then answer again.",
    ]
    assert (lines[:2], lines[4:]) == (["user: Go", "assistant: One."], ["assistant: Two."])
    assert steering.waiting() == ()


async def test_a_message_for_a_suspended_call_gets_in_when_it_goes_on(tmp_path: Path) -> None:
    """Sent while the session waits for a decision: it follows the round's results, once, also in another process."""

    @on(PostActing)
    def never(event: PostActing) -> None:
        """Another hook at the same tools."""

    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with SqlStore(url) as store:
        steering = Steering()
        hooks = [steering, Approval(suspend=True), never]
        agent = Agent("a", ScriptedModel([use("t1", "note", text="x")]), tools=[note], hooks=hooks, store=store)
        assert (await agent.call("Go", session="s")).outcome == "suspended"
    async with SqlStore(url) as store:
        steering = Steering()
        hooks = [steering, Approval(suspend=True), never]
        agent = Agent("a", ScriptedModel(["Done."]), tools=[note], hooks=hooks, store=store)
        steering.send("Hurry.", session="s")
        await agent.resume("s", {"t1": Approve()})
        assert history(agent.session("s")) == [
            "user: Go",
            "assistant: [t1:note(text='x')]",
            "tool: t1 success 'noted x'",
            "user: Hurry.",
            "assistant: Done.",
        ]
    assert steering.waiting() == ()


# ---- redaction and stores


async def test_a_redacting_store_is_as_good_as_the_one_behind_it(tmp_path: Path) -> None:
    """Versions and lists work with `redaction.store`: two writers of one session do not mix."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with SqlStore(url) as one, SqlStore(url) as two:
        agents: list[Agent] = []
        for store in (one, two):
            redaction = Redaction()
            model = ScriptedModel(lambda request: "Noted.")
            agents.append(Agent("a", model, hooks=[redaction], store=redaction.store(store)))
        await agents[0].call(f"I am {MAIL}", session="s")
        await agents[1].call("I am there too", session="s")
        with pytest.raises(SessionConflictError, match="known here"):
            await agents[0].call("And I", session="s")
        await agents[0].call("And I", session="s")
        assert history(agents[0].session("s"))[::2] == ["user: I am <email-1>", "user: I am there too", "user: And I"]
        assert [info.id for info in await redaction.store(one).sessions()] == ["s"]  # type: ignore[attr-defined]
        assert MAIL not in repr(await one.load("s"))


async def test_no_tool_acts_on_a_placeholder_whose_value_is_gone(tmp_path: Path) -> None:
    """A suspended call is approved after a restart: the value of the placeholder is not stored, so the tool does not
    run.
    """
    url = f"sqlite:///{tmp_path / 'a.db'}"
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    class Asks(Hook):
        guard = True

        def on_event(self, event: Any) -> Any:
            return Suspend() if type(event).__name__ == "PreActing" and event.approval is None else event

    for script in ([use("t1", "send", to="<email-1>")], "Who was it?"):
        async with SqlStore(url) as store:
            agent = Agent("a", ScriptedModel([script]), tools=[send], hooks=[Redaction(), Asks()], store=store)
            if script == "Who was it?":
                await agent.resume("s", {"t1": Approve()})
            else:
                await agent.call(f"Write to {MAIL}", session="s")
    assert sent == []
    why = "the value of <email-1> was lost with a restart; ask the user for it again"
    assert history(agent.session("s"))[2:] == [f"tool: t1 denied 'Denied: {why}'", "assistant: Who was it?"]


async def test_a_placeholder_of_somebody_else_is_a_text_like_any_other() -> None:
    """`<email-7>` that was never given out is passed to tools as it is."""
    session = Session.fresh([Msg.user("See <email-7>"), Msg.assistant("Yes.")])
    agent = Agent("a", ScriptedModel([use("t1", "note", text="<email-7>"), "Ok."]), tools=[note], hooks=[Redaction()])
    await agent.call("Go", session=session)
    assert history(session)[4] == "tool: t1 success 'noted <email-7>'"
