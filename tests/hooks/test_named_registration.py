"""Every way to register a hook gives the same run; hooks of installed packages are found by name."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eventlog import history, streamed, use

from agentflow import (
    Agent,
    Hook,
    HookEvent,
    HookResult,
    PostActing,
    PostCall,
    PreActing,
    PreCall,
    PreReasoning,
    after_each_tool,
    after_user_input,
    before_each_tool,
    before_llm,
    on,
    on_complete,
    tool,
)
from agentflow.errors import UsageError
from agentflow.hooks import installed_hook_names, installed_hooks
from agentflow.hooks.scope import ProcessHooks
from agentflow.testing import ScriptedModel

SOURCE = '''
"""A tiny plugin, as a package would ship it."""

from dataclasses import replace

from agentflow import (
    Deny, Hook, Msg, PostActing, PostCall, PreActing, PreCall, PreReasoning,
    after_each_tool, after_user_input, before_each_tool, before_llm, on_complete,
)


def tidy(event: PreCall) -> None:
    event.input_messages = [Msg.user(msg.text.strip()) for msg in event.input_messages]


def remind(event: PreReasoning) -> None:
    event.input_messages = [*event.input_messages, Msg.user("Be careful.")]


def no_deletes(event: PreActing) -> Deny | None:
    return Deny("not today") if event.tool_use.name == "delete_all" else None


def mask(event: PostActing) -> PostActing:
    return event.replace(tool_result=replace(event.tool_result, content=event.tool_result.text.replace("3", "*")))


def sign(event: PostCall) -> None:
    event.final_message = Msg.assistant(event.final_message.text + " -- a")


class Everything(Hook):
    name = "no_deletes"

    def on_event(self, event):
        match event:
            case PreCall():
                return tidy(event)
            case PreReasoning():
                return remind(event)
            case PreActing():
                return no_deletes(event)
            case PostActing():
                return mask(event)
            case PostCall():
                return sign(event)
        return event


def a_list():
    return [after_user_input(tidy), [before_llm(remind), before_each_tool(no_deletes)], a_marked, on_complete(sign)]


a_marked = after_each_tool(mask)
an_instance = Everything()
a_nested_list = [[after_user_input(tidy)], a_marked]
not_a_hook = 3


def broken_factory():
    raise RuntimeError("no licence")


class NeedsArguments(Hook):
    def __init__(self, key):
        self.key = key
'''

ENTRY_POINTS = """
[agentflow.hooks]
acme = acme_hooks:a_list
everything = acme_hooks:Everything
instance = acme_hooks:an_instance
marked = acme_hooks:a_marked
nested = acme_hooks:a_nested_list
number = acme_hooks:not_a_hook
broken = acme_hooks:broken_factory
needy = acme_hooks:NeedsArguments
gone = acme_hooks.nowhere:Hook
"""


def install(site: Path, name: str, version: str, entries: str) -> None:
    """Write what an installer writes of a package to a directory of `sys.path`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on `sys.path` with the package `acme-hooks` installed."""
    install(tmp_path, "acme-hooks", "1.0", ENTRY_POINTS)
    (tmp_path / "acme_hooks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("acme_hooks", None)


@pytest.fixture
def acme(site: Path) -> ModuleType:
    """Its module."""
    return importlib.import_module("acme_hooks")


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def delete_all() -> str:
    """Delete."""
    return "deleted"


def script() -> ScriptedModel:
    return ScriptedModel([[use("t1", "add", a=1, b=2), use("t2", "delete_all")], ["do", "ne"]])


def made(hooks: Any) -> Agent:
    return Agent("a", script(), tools=[add, delete_all], hooks=hooks)


def by_list(acme: Any) -> Agent:
    return made(
        [
            after_user_input(acme.tidy),
            before_llm(acme.remind),
            before_each_tool(acme.no_deletes),
            after_each_tool(acme.mask),
            on_complete(acme.sign),
        ]
    )


def by_nested_lists(acme: Any) -> Agent:
    return made(
        [[before_llm(acme.remind), [before_each_tool()(acme.no_deletes)]], acme.a_nested_list, on_complete(acme.sign)]
    )


def by_mapping(acme: Any) -> Agent:
    return made(
        {
            "on_complete": acme.sign,
            "before_llm": [acme.remind],
            "before_each_tool": (acme.no_deletes,),
            "after_user_input": acme.tidy,
            "after_each_tool": [acme.mask],
        }
    )


def by_builder(acme: Any) -> Agent:
    builder = Agent.builder().name("a").model(script()).tools([add]).tool(delete_all)
    builder.hook(after_user_input(acme.tidy)).hooks([before_llm(acme.remind), [before_each_tool(acme.no_deletes)]])
    return builder.hooks({"after_each_tool": acme.mask}).hook(on_complete(acme.sign)).build()


def by_agent_on(acme: Any) -> Agent:
    agent = made([])
    agent.on("after_user_input", acme.tidy)
    agent.on("before_llm")(acme.remind)
    agent.on("before_each_tool", acme.no_deletes)
    agent.on("after_each_tool", acme.mask)
    agent.on("on_complete")(acme.sign)
    return agent


def by_annotation(acme: Any) -> Agent:
    return made([on(acme.tidy), on(acme.remind), on(acme.no_deletes), on()(acme.mask), on(acme.sign)])


def by_class(acme: Any) -> Agent:
    hooks = [on(PreCall)(acme.tidy), on(PreReasoning)(acme.remind), on(PreActing)(acme.no_deletes)]
    return made([*hooks, on(PostActing)(acme.mask), on(PostCall)(acme.sign)])


def by_name(acme: Any) -> Agent:
    hooks = [on("after_user_input")(acme.tidy), on("before_llm")(acme.remind), on("on_complete")(acme.sign)]
    return made([*hooks, on("before_each_tool")(acme.no_deletes), on("after_each_tool")(acme.mask)])


def by_subclass(acme: Any) -> Agent:
    return made(acme.Everything())


def by_entry_point(acme: Any) -> Agent:
    return made(installed_hooks("acme"))


FORMS = [
    by_list,
    by_nested_lists,
    by_mapping,
    by_builder,
    by_agent_on,
    by_annotation,
    by_class,
    by_name,
    by_subclass,
    by_entry_point,
]


@pytest.mark.parametrize("form", FORMS)
async def test_all_forms_give_the_same_run(form: Callable[[Any], Agent], acme: ModuleType) -> None:
    """The same agent, with its hooks registered in each of ten ways: the event log, the history and the model's
    requests are the same.
    """
    agent = form(acme)
    assert await streamed(agent, "  go  ") == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        'ReasoningChunk [t1:add {"a":1,"b":2}][t2:delete_all {}]',
        "PostReasoning [t1:add(a=1, b=2)] [t2:delete_all()]",
        "PreToolRound t1:add(a=1, b=2), t2:delete_all()",
        "PreActing t1:add(a=1, b=2)",
        "PostActing t1 success '*'",
        "PreActing t2:delete_all() -> Deny(no_deletes)",
        "PostActing t2 denied 'Denied: not today'",
        "PostToolRound t1 success '*'; t2 denied 'Denied: not today'",
        "PreReasoning 2 reason",
        "ReasoningChunk done",
        "PostReasoning done",
        "PostCall completed 'done -- a'",
        "CallEnded completed",
    ]
    assert [msg.text for msg in agent.config.model.requests[1].messages][-1] == "Be careful."  # type: ignore[union-attr]
    assert history(agent.session()) == [
        "user: go",
        "assistant: [t1:add(a=1, b=2)] [t2:delete_all()]",
        "tool: t1 success '*'; t2 denied 'Denied: not today'",
        "assistant: done -- a",
    ]


# ---- installed packages


def test_nothing_is_loaded_by_itself(site: Path) -> None:
    """An installed package that is not requested is not even imported; its names can be listed."""
    Agent("a", script())
    assert installed_hooks() == []
    assert installed_hook_names()["acme"] == "acme-hooks 1.0"
    assert "acme_hooks" not in sys.modules


def test_an_entry_point_may_be_a_hook_a_class_a_function_or_a_list(acme: Any) -> None:
    """An entry point resolves to hooks; classes and functions are called each time, so agents share nothing that the
    package does not share itself.
    """
    found = installed_hooks("instance", "marked", "nested")
    assert [hook.name for hook in found] == ["no_deletes", "mask", "tidy", "mask"]
    assert found[0] is acme.an_instance
    first, second = installed_hooks("everything"), installed_hooks("everything")
    assert type(first[0]) is acme.Everything
    assert first[0] is not second[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "acne",
            (
                "No installed package offers a hook 'acne'. Did you mean 'acme'? Installed: acme (acme-hooks 1.0), broken "
                "(acme-hooks 1.0), everything (acme-hooks 1.0), gone (acme-hooks 1.0), instance (acme-hooks 1.0), marked "
                "(acme-hooks 1.0), needy (acme-hooks 1.0), nested (acme-hooks 1.0), number (acme-hooks 1.0)."
            ),
        ),
        (
            "gone",
            (
                "Hook 'gone' of package acme-hooks 1.0 (acme_hooks.nowhere:Hook) cannot be loaded: ModuleNotFoundError: No "
                "module named 'acme_hooks.nowhere'; 'acme_hooks' is not a package."
            ),
        ),
        (
            "broken",
            (
                "Hook 'broken' of package acme-hooks 1.0 (acme_hooks:broken_factory) cannot be created: RuntimeError: no "
                "licence. An entry point is called without arguments; if it needs some, import it and create the hook yourself."
            ),
        ),
        (
            "needy",
            (
                "Hook 'needy' of package acme-hooks 1.0 (acme_hooks:NeedsArguments) cannot be created: TypeError: "
                "NeedsArguments.__init__() missing 1 required positional argument: 'key'. An entry point is called without "
                "arguments; if it needs some, import it and create the hook yourself."
            ),
        ),
        (
            "number",
            (
                "Hook 'number' of package acme-hooks 1.0 (acme_hooks:not_a_hook) is not a hook: A hook is a Hook, a function "
                "decorated with @on or @after_llm, or a list of these, not int."
            ),
        ),
    ],
)
def test_what_cannot_be_loaded_names_its_package(site: Path, name: str, text: str) -> None:
    """An unknown name lists the installed ones; a broken entry point names its package."""
    with pytest.raises(UsageError) as caught:
        installed_hooks(name)
    assert str(caught.value) == text


def test_two_packages_with_one_name(site: Path) -> None:
    """Neither shadows the other: the name alone is refused, and the error names the two qualified names."""
    install(site, "other-hooks", "2.0", "[agentflow.hooks]\nmarked = acme_hooks:a_nested_list\n")
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match="Use 'acme-hooks:marked' or 'other-hooks:marked'"):
        installed_hooks("marked")
    assert [hook.name for hook in installed_hooks("other-hooks:marked")] == ["tidy", "mask"]


# ---- a living agent


async def test_a_handle_takes_off_what_it_added_and_nothing_else() -> None:
    """Each `agent.on` has its own handle; disposing it twice has no further effect; `off` removes one of two equal
    ones.
    """
    seen: list[str] = []

    def note(event: Any) -> None:
        seen.append(type(event).__name__)

    agent = Agent("a", ScriptedModel(["1", "2", "3", "4"]))
    first, second = agent.on("after_llm", note), agent.on("after_llm", note)
    agent.on("on_complete", note)
    await agent.call("go")
    first.dispose()
    first.dispose()
    await agent.call("go")
    second.dispose()
    await agent.call("go")
    assert agent.remove(note)
    await agent.call("go")
    assert seen == ["PostReasoning", "PostReasoning", "PostCall", "PostReasoning", "PostCall", "PostCall"]


def test_threads_that_register_at_once_lose_nothing() -> None:
    """A thousand `on` and `off` from eight threads: the remaining hooks are there, once."""
    agent = Agent("a", ScriptedModel([]), default_hooks=())
    ready = threading.Barrier(8)
    kept: list[Callable[[Any], None]] = []
    before = sys.getswitchinterval()

    def work() -> None:
        ready.wait()
        for _ in range(60):

            def stays(event: Any) -> None: ...

            def goes(event: Any) -> None: ...

            kept.append(stays)
            agent.on("after_llm", stays)
            agent.on("before_llm", goes)
            assert agent.remove(goes)

    threads = [threading.Thread(target=work) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    handlers = [hook.handler for hook in agent.hooks]  # type: ignore[attr-defined]
    assert sorted(map(id, handlers)) == sorted(map(id, kept))


async def test_hooks_of_one_call() -> None:
    """`agent.call(..., hooks=...)` takes the same forms, for that call only."""
    seen: list[str] = []

    class Sees(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostCall):
                seen.append("class")
            return event

    agent = Agent("a", ScriptedModel(["1", "2", "3"]))
    await agent.call("go", hooks=[Sees(), [on_complete(lambda event: seen.append("function"))]])
    await agent.call("go", hooks={"on_complete": lambda event: seen.append("mapping")})
    await agent.call("go")
    assert seen == ["class", "function", "mapping"]


async def test_options_on_a_living_agent() -> None:
    """`agent.on` takes the options of the decorators, in both forms, and refuses the same."""
    seen: list[str] = []
    agent = Agent("a", script(), tools=[add, delete_all])
    agent.on("before_each_tool", lambda event: seen.append(f"late {event.tool_use.name}"), priority=200)

    @agent.on("before_each_tool", tools=["delete_*"], priority=10)
    def early(event: PreActing) -> None:
        seen.append(f"early {event.tool_use.name}")

    await agent.call("go")
    assert seen == ["late add", "early delete_all", "late delete_all"]
    assert agent.remove(early)
    with pytest.raises(UsageError, match="Did you mean 'priority'"):
        agent.on("after_llm", print, priorty=1)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="selects events by their tool"):
        agent.on("after_llm", tools="add")(print)


async def test_stacked_decorators_on_a_tool_and_in_the_process() -> None:
    """A function with two decorators handles both events, also on a tool or process-wide; once removed, it handles
    neither.
    """
    seen: list[str] = []

    @before_each_tool
    @after_each_tool
    def both(event: HookEvent) -> None:
        seen.append(type(event).__name__)

    everywhere = ProcessHooks()
    handle = everywhere.hook(both)
    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "end"]), tools=[add], process_hooks=everywhere)
    await agent.call("go")
    assert seen == ["PreActing", "PostActing"]
    handle.dispose()
    assert len(everywhere) == 0
