"""Frequent first mistakes, and the one line of the error, which says what to write."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow import (
    Agent,
    Approve,
    Console,
    Deny,
    Hook,
    ModelOptions,
    Msg,
    PostCall,
    PreActing,
    ToolUseBlock,
    Turn,
    Usage,
    after_user_input,
    before_each_tool,
    before_llm,
    on_complete,
    tool,
)
from agentflow.agent.orchestration import ask, handoffs, workflow
from agentflow.errors import AgentFlowError, UsageError
from agentflow.mcp import agent_server
from agentflow.plugins import Skills, UsageLimits
from agentflow.plugins.approval import Allow, Approval, Refuse
from agentflow.plugins.code import Bubblewrap, code_tool
from agentflow.plugins.retrieval import Retrieve
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay
from agentflow.state import MemoryStore
from agentflow.testing import ScriptedModel, fire
from agentflow.vocabulary.ports.retry import model_may_recover

MODEL = ScriptedModel(lambda request: "ok")


class Words:
    """A model whose stream yields texts."""

    name = "words"

    async def stream(self, request: object) -> AsyncIterator[Any]:
        """Yield a text."""
        yield "Hello."


class Texts(Hook):
    def around_model(self, event: Any, source: Any) -> Any:
        return source.map(lambda chunk: chunk.text)


class Misspelt(Hook):
    """A hook with a misspelt option."""

    priorty = 3

    def on_event(self, event: Any) -> None: ...


class Nameless(Hook):
    """A hook whose method is never called."""

    def on_evnt(self, event: Any) -> None: ...


class Shop:
    """Has a tool that is a method."""

    @tool
    async def sell(self, article: str) -> str:
        """Sell."""
        return f"sold {article}"


def agent_of(*hooks: Any) -> Agent:
    return Agent("a", MODEL, hooks=hooks)


def told(change: Callable[[Any], object]) -> Any:
    """A hook function."""

    def hook(event: Any) -> None:
        change(event)

    return hook


def setting(owner: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    return lambda event: setattr(owner(event), name, "x")


ENDED = PostCall(final_message=Msg.assistant("Hi."))
ASKED = PreActing(tool_use=ToolUseBlock("t1", "add", {"a": 1}))
VIEW = "Messages of an event are read-only; assign a new list: event.input_messages ="
OF_MSG = (
    "is computed from its fields (role, content, name, id, metadata, usage, finish_reason), and those are read-only"
)

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "agent.run(text)": (lambda: agent_of().run("hi"), "To ask the model: await agent.call('Hi')"),
    "agent.invoke": (lambda: agent_of().invoke("hi"), "To ask it: agent.call('Hi').block()"),
    "Agent()": (Agent, "An agent needs a name and a model: Agent('assistant', 'openai/gpt-5')."),
    "no model": (lambda: Agent("a"), "Agent 'a' was given no model: Agent('a', 'openai/gpt-5')"),
    "system_prompt=": (
        lambda: Agent("a", MODEL, system_prompt="Be brief."),
        "Agent takes no system_prompt=; here that is system=.",
    ),
    "llm=": (lambda: Agent("a", llm=MODEL), "Agent takes no llm=; here that is model=."),
    "temperature=": (lambda: Agent("a", MODEL, temperature=1), "here that is options=ModelOptions(temperature=..."),
    "a misspelt argument": (lambda: Agent("a", MODEL, sistem="x"), "Agent takes no sistem=; did you mean system="),
    "model=3": (lambda: Agent("a", 3), "model= takes a Model or a name like 'openai/gpt-5', not 3."),
    "tools=[function]": (lambda: Agent("a", MODEL, tools=[print]), "tools= takes tools and agents, not"),
    "options={...}": (
        lambda: Agent("a", MODEL, options={"temperature": 1}),
        "options={'temperature': 1} is a dict. Write options=ModelOptions(temperature=1).",
    ),
    "call(options={...})": (
        lambda: agent_of().call("Hi", options={"temperature": 1}).block(),
        "Write options=ModelOptions(temperature=1).",
    ),
    "store=path": (lambda: Agent("a", MODEL, store="x.db"), 'Write store="sqlite:///agentflow.db" (a file)'),
    "name and model swapped": (
        lambda: Agent(MODEL, "a"),
        "An agent needs a name and a model: Agent('assistant', 'openai/gpt-5'), not <",
    ),
    "name=3": (lambda: Agent(3, MODEL), "Agent('assistant', 'openai/gpt-5'), not 3 as the name."),
    "a model's class": (
        lambda: Agent("a", ScriptedModel),
        "model= takes a Model or a name like 'openai/gpt-5', not <class",
    ),
    "a store's class": (lambda: Agent("a", MODEL, store=MemoryStore), "is not a store. Write store="),
    "a schedule's name": (lambda: Agent("a", MODEL, schedule="parallel"), "Write schedule=ToolSchedule.PARALLEL"),
    "system=[...]": (lambda: Agent("a", MODEL, system=["Be brief."]), "system= takes a text, a Msg or a function"),
    "an agent's class": (lambda: Agent("a", MODEL, tools=[Agent]), "tools= takes tools and agents, not type (Agent)."),
    "two agents with one name": (
        lambda: Agent("a", MODEL, tools=[Agent("b", MODEL), Agent("b", MODEL)]),
        "Two tools are named 'b': the agent 'b' and the agent 'b'. Rename one of them: @tool(name=...), or agent.as_tool(",
    ),
    "a number as text": (
        lambda: ModelOptions(temperature="1"),
        "ModelOptions(temperature='1'): it must be a number, not str.",
    ),
    "half a token": (lambda: ModelOptions(max_tokens=1.5), "max_tokens=1.5): it must be a whole number, not float."),
    "a limit as text": (lambda: UsageLimits(tokens="5"), "UsageLimits(tokens='5'): it must be a number."),
    "handoffs([...])": (lambda: handoffs([agent_of()]), "handoffs(...) takes agents, each as an argument, not ["),
    "Retrieve(path)": (lambda: Retrieve("docs.db"), "Retrieve('docs.db'): it takes an index, such as SqliteIndex("),
    "code_tool([...])": (
        lambda: code_tool([Shop().sell], sandbox=Bubblewrap()),
        "code_tool(...) takes tools, each as an argument, not [",
    ),
    "Skills([...])": (lambda: Skills(["a"]), "Skills(...) takes folders, each as an argument, not ['a']."),
    "Replay(recorder)": (lambda: Replay(Recorder()), "Replay(...) takes a run log or its path, not Recorder."),
    "agent_server([...])": (lambda: agent_server([agent_of()]), "agent_server(...) takes one agent, not ["),
    "store={}": (lambda: Agent("a", MODEL, store={}), "store={} is not a store."),
    "a misspelt option": (
        lambda: agent_of(Misspelt()),
        "Hook 'Misspelt' has 'priorty', which is never used. Did you mean 'priority'?",
    ),
    "a misspelt method": (lambda: agent_of(Nameless()), "Did you mean 'on_event' by 'on_evnt'?"),
    "a model of texts": (
        lambda: Agent("a", Words()).call("Hi").block(),
        "(a str), but must yield ModelChunks: yield ModelChunk(text).",
    ),
    "a hook that turns chunks into texts": (
        lambda: Agent("a", MODEL, hooks=[Texts()]).call("Hi").block(),
        "or a hook that wraps it yielded '",
    ),
    "stream as a call": (
        lambda: agent_of().stream("Hi").block(),
        "it is a stream of events. `await agent.stream(...)",
    ),
    "a dict as message": (
        lambda: agent_of().call({"role": "user", "content": "Hi"}).block(),
        "Messages are a str, a Msg or a sequence of them, not dict. Write Msg.user('hello')",
    ),
    "dicts as messages": (
        lambda: agent_of().call([{"role": "user", "content": "Hi"}]).block(),
        "A message is a str or a Msg, not dict ({'role': 'user', 'content': 'Hi'}). Write Msg.user('hello')",
    ),
    "a misspelt keyword of call": (
        lambda: agent_of().call("Hi", sesion="s"),
        "agent.call(...) takes no sesion=; did you mean session=?",
    ),
    "a misspelt keyword of stream": (
        lambda: agent_of().stream("Hi", childen=True),
        "agent.stream(...) takes no childen=; did you mean children=?",
    ),
    "an unknown keyword of resume": (
        lambda: agent_of().resume("s", xyz=1),
        "agent.resume(...) takes no xyz=; it takes output, options, timeout, deps, hooks.",
    ),
    "an unknown keyword of resume_stream": (
        lambda: agent_of().resume_stream("s", childern=1),
        "did you mean children=?",
    ),
    "another library's limit": (
        lambda: UsageLimits(max_tokens=5),
        "UsageLimits(...) takes no max_tokens=; did you mean tokens=?",
    ),
    "a misspelt limit": (lambda: UsageLimits(cots=5), "did you mean cost= or count=?"),
    "a method of a class as a tool": (
        lambda: Agent("a", MODEL, tools=[Shop.sell]),
        "Tool 'sell' is a method of Shop, and the model cannot provide `self`. Take the tool from an object: tools=[Sho",
    ),
    "a verdict's class": (
        lambda: agent_of(after_user_input(lambda event: Deny)).call("Hi").block(),
        "answered PreCall with the class Deny instead of a verdict object: Deny(...)",
    ),
    "a file with two slashes": (
        lambda: Agent("a", MODEL, store="sqlite://foo.db"),
        "'sqlite://foo.db' has two slashes, but a SQLite file needs three: 'sqlite:///foo.db'",
    ),
    "a text as script": (lambda: ScriptedModel("Hi"), "A script must be a list of replies: ScriptedModel(['Hi'])."),
    "a tool use without id": (
        lambda: ToolUseBlock("add", {"a": 1}),
        "name must be a text, not dict. Was the id left out?",
    ),
    "insert": (
        lambda: (
            agent_of(before_llm(told(lambda event: event.input_messages.insert(0, Msg.user("x"))))).call("Hi").block()
        ),
        f"{VIEW} [msg, *event.input_messages].",
    ),
    "append": (
        lambda: agent_of(before_llm(told(lambda event: event.input_messages.append(Msg.user("x"))))).call("Hi").block(),
        f"{VIEW} [*event.input_messages, msg].",
    ),
    "append to a call's": (
        lambda: (
            agent_of(after_user_input(told(lambda event: event.input_messages.append(Msg.user("x")))))
            .call("Hi")
            .block()
        ),
        f"{VIEW} [*event.input_messages, msg].",
    ),
    "pop": (
        lambda: agent_of(before_llm(told(lambda event: event.input_messages.pop()))).call("Hi").block(),
        f"{VIEW} [msg for msg in event.input_messages if ...].",
    ),
}

FROZEN: dict[str, tuple[Any, Any, Callable[[Any], object], str]] = {
    "msg.text": (on_complete, ENDED, setting(lambda event: event.final_message, "text"), f"Msg.text {OF_MSG}"),
    "msg.role": (on_complete, ENDED, setting(lambda event: event.final_message, "role"), "Msg.role is read-only"),
    "msg.nothing": (
        on_complete,
        ENDED,
        setting(lambda event: event.final_message, "nothing"),
        "Msg has no field 'nothing' (role, content,",
    ),
    "tool_use.name": (
        before_each_tool,
        ASKED,
        setting(lambda event: event.tool_use, "name"),
        "ToolUseBlock.name is read-only. Build a new block: block.replace(name=...)",
    ),
    "an argument": (
        before_each_tool,
        ASKED,
        lambda event: event.tool_use.input.__setitem__("a", 2),
        "event.tool_use = event.tool_use.replace(input={**event.tool_use.input, key: value})",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_that_says_what_to_write(mistake: str) -> None:
    """The first line of the error has the correction, and no attempt is made again."""
    make, cure = MISTAKES[mistake]
    with pytest.raises((AgentFlowError, AttributeError)) as caught:
        make()
    assert cure in str(caught.value).splitlines()[0]
    assert not model_may_recover(caught.value)


async def test_a_call_that_was_not_awaited_is_no_reply() -> None:
    """Reading an attribute of the reply, or iterating it, raises an error with the correct use."""
    call = agent_of().call("Hi")
    with pytest.raises(AttributeError, match="it is a call that has not run"):
        _ = call.text  # type: ignore
    with pytest.raises(AgentFlowError, match=r"Console shows a stream, not CallMono: Console\(agent.stream\('Hi'\)\)"):
        Console(call)  # type: ignore
    assert (await call).text == "ok"


@pytest.mark.parametrize("value", FROZEN)
async def test_a_frozen_value_says_how_to_change_it(value: str) -> None:
    """Fields, computed properties, and unknown attributes."""
    name, event, change, cure = FROZEN[value]
    with pytest.raises((AttributeError, TypeError)) as caught:
        await fire(name(told(change)), event)
    assert cure in str(caught.value)
    with pytest.raises(AttributeError, match=r"Usage\.total_tokens is computed from its fields"):
        Usage().total_tokens = 3  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_url_is_a_store(tmp_path: Path) -> None:
    """`store="sqlite:///…"` keeps sessions in that file: another agent continues the conversation."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    await Agent("a", ScriptedModel(["Hello Ada."]), store=url).call("I am Ada.", session="ada")
    other = Agent("a", ScriptedModel([]), store=url)
    assert [msg.text for msg in await other.history("ada")] == ["I am Ada.", "Hello Ada."]
    built = Agent.builder().name("a").model(MODEL).store(url).build()
    assert len(await built.history("ada")) == 2


def test_a_method_of_another_library_is_named_as_here() -> None:
    """Every object on which hooks are registered names the way to add and to remove them; an unknown name is only
    unknown.
    """

    @tool
    async def price(article: str) -> float:
        """Look up a price."""
        return 1.0

    here = {"off": "remove(hook)", "add_hook": "hook(hook)", "add_listener": "on(PreActing, function)"}
    holders: list[Any] = [Agent("a", ScriptedModel(["x"])), price, Turn(price, {"article": "bread"})]
    for holder in holders:
        for name, right in here.items():
            with pytest.raises(AttributeError, match=f"no attribute '{name}'.*here: {re.escape(right)}"):
                getattr(holder, name)
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            _ = holder.nonsense


async def test_a_stream_is_not_awaited() -> None:
    """The error says how a stream is read, and how to get the reply; nothing runs."""
    with pytest.raises(AgentFlowError, match=r"it is a stream of events.*agent\.stream\(\.\.\.\)\.reply\(\)"):
        await agent_of().stream("Hi")
    assert (await agent_of().stream("Hi").reply()).text == "ok"
    assert (await agent_of().stream("Hi").to_list())[-1].outcome == "completed"


def test_a_method_of_an_object_is_a_tool() -> None:
    """The same method, taken from an object."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "sell", {"article": "bread"}), "ok"]), tools=[Shop().sell])
    agent.call("Hi").block()
    assert agent.session().messages[2].text == "sold bread"


async def result_of(tool: Any, use: ToolUseBlock, *hooks: Any) -> str:
    """What the model reads of a call."""
    agent = Agent("a", ScriptedModel([use, "Done."]), tools=[tool], hooks=hooks)
    await agent.call("Go")
    return agent.session().messages[2].text


async def test_a_tool_that_forgets_an_await_fails() -> None:
    """The model reads no repr of a coroutine, and the coroutine is closed."""

    async def fetch() -> str:
        return "fetched"

    @tool
    async def look() -> str:
        """Look."""
        return fetch()  # type: ignore[return-value]

    read = await result_of(look, ToolUseBlock("t1", "look"))
    assert "fetch(...), which was not awaited, so it did not run. Write: return await" in read


@pytest.mark.parametrize(
    ("rules", "read"),
    [
        (
            [Refuse("sell", artcle="secret"), Allow("sell")],
            (
                "Denied: Approval: Refuse('sell', artcle=...) can never match, because sell has no argument 'artcle'. "
                "Its arguments: article"
            ),
        ),
        ([Refuse("*", artcle="secret"), Allow("sell")], "sold bread"),
        ([Refuse("sell", article="secret"), Allow("sell")], "sold bread"),
        (Allow("sell"), "sold bread"),
    ],
)
async def test_a_rule_for_an_argument_that_the_tool_lacks_denies_the_call(rules: Any, read: str) -> None:
    """A misspelt name in a `Refuse` allows nothing; a pattern for several tools may name arguments of some."""
    use = ToolUseBlock("t1", "sell", {"article": "bread"})
    assert await result_of(Shop().sell, use, Approval(rules)) == read


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_step_that_is_not_awaited_is_refused(awaited: bool) -> None:
    """The workflow fails instead of leaving the step out, before the first round and after one."""
    helper = Agent("helper", MODEL)

    @workflow(helper)
    async def program(message: str) -> str:
        if awaited:
            await ask(helper, "first")
        ask(helper, "second")
        return "done"

    with pytest.raises(UsageError, match="returned without awaiting its step 'helper'"):
        await program.call("Go")


async def test_decisions_need_the_calls_that_they_decide() -> None:
    """A list of verdicts names no call."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "sell", {"article": "x"}), "Done."]), tools=[Shop().sell])
    agent.hook(Approval(suspend=True))
    reply = await agent.call("Go")
    assert reply.outcome == "suspended"
    decisions: Any = [Approve()]
    with pytest.raises(UsageError, match="which names no pending call"):
        await agent.resume(None, decisions)
    assert (await agent.resume(None, {reply.pending[0].id: Approve()})).text == "Done."
