"""The public surface is a sorted list, and every name in it has a docstring."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import agentflow
import agentflow.testing
import agentflow.vocabulary.facts
from agentflow import Agent, Output, RunContext, Session, Turn, TurnQueue, tool
from agentflow._support.facade import objects_of, public_names
from agentflow.agent import Receipt
from agentflow.hooks import HookSet
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = [
    "ActingChunk",
    "Again",
    "Agent",
    "AgentBuilder",
    "Answer",
    "Approve",
    "CallEnded",
    "Console",
    "DataBlock",
    "Deny",
    "Dep",
    "Error",
    "Flux",
    "GracefulShutdown",
    "Hook",
    "HookEvent",
    "HookResult",
    "MemoryStore",
    "MessagesAdded",
    "Model",
    "ModelChunk",
    "ModelOptions",
    "ModelRequest",
    "Mono",
    "Msg",
    "Output",
    "PostActing",
    "PostCall",
    "PostReasoning",
    "PostToolRound",
    "PreActing",
    "PreCall",
    "PreReasoning",
    "PreToolRound",
    "ReasoningChunk",
    "Recover",
    "Reply",
    "RunContext",
    "Session",
    "Stop",
    "Suspend",
    "TextBlock",
    "ThinkingBlock",
    "ToolContext",
    "ToolEmitter",
    "ToolResultBlock",
    "ToolSchedule",
    "ToolUseBlock",
    "Toolset",
    "Turn",
    "TurnQueue",
    "Usage",
    "Veto",
    "after_each_tool",
    "after_llm",
    "after_tool_round",
    "after_turn",
    "after_user_input",
    "before_each_tool",
    "before_llm",
    "before_tool_round",
    "before_turn",
    "external_tool",
    "log_to_std",
    "on",
    "on_complete",
    "on_error",
    "process_hooks",
    "threads",
    "tool",
]
"""The names of `from agentflow import ...`. A change here is a change for users: it belongs into CHANGELOG.md."""

TESTING = [
    "Case",
    "Check",
    "Evaluation",
    "Finding",
    "FindingKind",
    "FindingsError",
    "FireResult",
    "HookReport",
    "IndexFlaw",
    "IndexReport",
    "Judge",
    "Line",
    "MemoryFlaw",
    "MemoryReport",
    "ModelFlaw",
    "ModelReport",
    "ModelScene",
    "Probe",
    "RunChangedError",
    "ScriptedModel",
    "StagedModel",
    "StoreFlaw",
    "StoreReport",
    "TermEmbedder",
    "Trial",
    "Verifier",
    "VirtualClockLoop",
    "assert_replays",
    "check_hook",
    "check_hook_async",
    "check_index",
    "check_index_async",
    "check_memory",
    "check_memory_async",
    "check_model",
    "check_model_async",
    "check_store",
    "check_store_async",
    "evaluate",
    "fire",
    "run_context",
    "run_virtual",
    "verify",
]
"""The names of `from agentflow.testing import ...`."""

FACTS = [
    "CallClosed",
    "CallOpened",
    "CallResumed",
    "Compacted",
    "Fact",
    "Injected",
    "ModelRecord",
    "Reasoned",
    "RoundClosed",
    "RoundSuspended",
    "SessionBegan",
    "StateKept",
    "ToolDecided",
    "ToolFinished",
    "ToolStarted",
    "TurnRecord",
]
"""The names of `from agentflow.vocabulary.facts import ...`, for authors and readers of stores."""

ALIASES = {
    "ContentBlock",
    "FindingKind",
    "HookEvent",
    "HookResult",
    "Outcome",
    "Resolution",
    "ToolType",
    "Verdict",
    "Dep",
}
"""Type aliases: Python keeps no docstring for them; the line under them in the source is one."""


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class or one of our bases of it defines."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "agentflow":
            continue
        for name, member in vars(base).items():
            wraps = isinstance(member, (property, staticmethod, classmethod)) or inspect.isfunction(member)
            if name[0] != "_" and wraps:
                yield f"{base.__module__}.{base.__qualname__}.{name}", member


def inherited(cls: type, name: str) -> bool:
    """Whether another class of ours, or a base from elsewhere, documents a method of this name."""
    return any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__[1:])


def test_the_public_names_are_these() -> None:
    """Nothing becomes public, or stops being it, by accident; the list is sorted."""
    assert agentflow.__all__ == PUBLIC
    assert sorted(set(PUBLIC)) == PUBLIC


def test_the_testing_kit_offers_these() -> None:
    """The same for the testing kit, which is part of the product."""
    assert sorted(set(agentflow.testing.__all__)) == TESTING


def test_the_facts_are_public() -> None:
    """Facts are in a module of their own; each is a named tuple with a docstring, and `Fact` is all that are stored."""
    assert agentflow.vocabulary.facts.__all__ == FACTS
    stored = {kind.__name__ for kind in typing.get_args(agentflow.vocabulary.facts.Fact)}
    assert stored == set(FACTS) - {"Fact", "ModelRecord", "TurnRecord"}
    bare = [name for name in stored if (getattr(agentflow.vocabulary.facts, name).__doc__ or "").startswith(f"{name}(")]
    assert bare == []


def test_every_public_name_exists_and_comes_from_a_module_of_ours() -> None:
    """`__all__` promises nothing that is not there, and the root defines nothing itself."""
    foreign = [
        name
        for name in PUBLIC
        if name not in ALIASES and not getattr(agentflow, name).__module__.startswith("agentflow.")
    ]
    assert foreign == []


def test_every_public_name_is_documented() -> None:
    """Each public class and function has a docstring of its own, not dataclass's."""
    bare: list[str] = []
    for module, names in ((agentflow, PUBLIC), (agentflow.testing, TESTING)):
        for name in names:
            value = getattr(module, name)
            if name in ALIASES or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            about = value.__doc__ or ""
            made_up = dataclasses.is_dataclass(value) and about.startswith(f"{name}(")
            if not about.strip() or made_up:
                bare.append(name)
    assert bare == []


def test_every_public_method_of_a_public_class_is_documented() -> None:
    """No public method or property goes unexplained; one that overrides a documented one may leave it to that."""
    bare: set[str] = set()
    for module, names in ((agentflow, PUBLIC), (agentflow.testing, TESTING)):
        for name in names:
            value = getattr(module, name)
            if not inspect.isclass(value):
                continue
            for path, member in members(value):
                about = member.__doc__ if isinstance(member, property) else inspect.unwrap(member).__doc__
                if not (about or "").strip() and not inherited(value, path.rpartition(".")[2]):
                    bare.add(path)
    assert sorted(bare) == []


def test_every_module_says_what_it_is_and_sorts_its_names() -> None:
    """Each module of the package has a docstring (an empty `__init__` needs none) and a sorted `__all__`, if any."""
    wrong: list[str] = []
    for info in pkgutil.walk_packages(agentflow.__path__, "agentflow."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        source = Path(module.__file__ or "").read_text("utf-8")
        if source.strip() and not (module.__doc__ or "").strip():
            wrong.append(f"{info.name} has no docstring")
        names = getattr(module, "__all__", None)
        if names is not None and sorted(set(names)) != sorted(names):
            wrong.append(f"{info.name}.__all__ repeats itself")
        wrong.extend(f"{info.name}.__all__: {name} is not there" for name in names or () if not hasattr(module, name))
    assert wrong == []


LISTS = (
    "agent",
    "agent.orchestration",
    "hooks",
    "models",
    "plugins",
    "recording",
    "serve.inspector",
    "state",
    "terminal",
    "tools",
    "vocabulary",
)
"""The modules that list the public names of one kind."""


@pytest.mark.parametrize("name", LISTS)
def test_what_a_list_names_is_there(name: str) -> None:
    """Each name that a listing module promises exists, is documented and comes from a module of ours; `dir` shows it."""
    module = importlib.import_module(f"agentflow.{name}")
    assert list(module.__all__) == sorted(module.__all__)
    for public in module.__all__:
        value = getattr(module, public)
        assert public in dir(module)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith("agentflow."), public
            assert (value.__doc__ or "").strip(), public
    with pytest.raises(AttributeError):
        _ = module.nothing_of_this_name


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("UsageError", "it is in agentflow.errors: from agentflow.errors import UsageError"),
        ("PreTurn", "it is in agentflow.vocabulary: from agentflow.vocabulary import PreTurn"),
        ("Recorder", "it is in agentflow.recording: from agentflow.recording import Recorder"),
        ("SqlStore", "it is in agentflow.state: from agentflow.state import SqlStore"),
        ("ScriptedModel", "it is in agentflow.testing: from agentflow.testing import ScriptedModel"),
        ("before_tool", "it could mean 'before_tool_round' or 'before_each_tool'."),
        ("after_lm", "it could mean 'after_llm'."),
        ("Agnet", "did you mean 'Agent'?"),
        ("StateGraph", "see `agentflow.__all__`."),
    ],
)
def test_a_wrong_name_gets_the_right_one(name: str, cure: str) -> None:
    """`from agentflow import x` and `agentflow.x` name the module of x, or suggest another name."""
    text = f"agentflow has no {name!r} at its root; {cure}"
    with pytest.raises(ImportError) as imported:
        exec(f"from agentflow import {name}", {})
    assert str(imported.value) == text
    with pytest.raises(AttributeError) as read:
        getattr(agentflow, name)
    assert str(read.value) == text
    assert not hasattr(agentflow, name)


@pytest.mark.parametrize(
    ("package", "name", "cure"),
    [
        ("plugins", "RateLimiter", "did you mean RateLimit?"),
        ("plugins", "Zebra", "see `agentflow.plugins.__all__`."),
        ("testing", "ScriptModel", "did you mean ScriptedModel?"),
    ],
)
def test_a_wrong_name_of_a_package_gets_the_right_one(package: str, name: str, cure: str) -> None:
    """`from agentflow.plugins import x` suggests similar names; a module of the package can be imported by name."""
    text = f"agentflow.{package} has no {name!r}; {cure}"
    with pytest.raises(ImportError) as imported:
        exec(f"from agentflow.{package} import {name}", {})
    assert str(imported.value) == text
    module = importlib.import_module(f"agentflow.{package}")
    with pytest.raises(AttributeError) as read:
        getattr(module, name)
    assert str(read.value) == text


FACADES: dict[type, str] = {
    Agent: (
        "as_tool ask branch builder call chat close description forget from_dict from_json graph history hook hooks"
        " interrupt live_toolsets name on open output put queue remove resume resume_stream run send session stream to_dict"
        " to_json tools unfinished"
    ),
    RunContext: (
        "agent approve approved call_id clock compact compaction complete deps has_dep history inject interrupt measure new_id"
        " run_id searches_tools session_id session_state shadows source state trace usage window"
    ),
    HookSet: "describe",
    Output: "description end form name prompt read read_result retries value_schema via write",
    Session: "busy check copy fresh from_dict from_json id interrupt messages pending state status store to_dict to_json",
    Turn: (
        "approval arguments copy deps duration_ms end_time from_dict from_json hook hooks id metadata on output queued"
        " remove returning running sender sender_run start_time stop_reason tags timeout to_dict to_json tool yielding"
    ),
    Tool: (
        "external function hook hooks idempotent lock name on prepare remove renamed requires_approval retries spec"
        " streaming tags timeout type validate"
    ),
    TurnQueue: "clear current limit pause paused prefer put remove restore resume run running to_dict turns",
    Receipt: "cancel done seen to turn",
}
"""The public members of classes that have more for the package. A change here is a change for users."""


@pytest.mark.parametrize("cls", FACADES)
def test_a_facade_shows_what_users_need(cls: type) -> None:
    """What a class defines and annotates, its bases included; what the package needs besides is in `FullX`."""
    assert sorted(public_names(cls)) == FACADES[cls].split()


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Bag:
    """Has a tool."""

    @tool
    async def count(self) -> int:
        """Count."""
        return 0


async def test_an_object_shows_what_its_class_shows() -> None:
    """`dir` of an object lists the public members, regardless of its origin."""
    seen: list[object] = []
    agent = Agent("a", ScriptedModel(["Hello."]), tools=[add])
    agent.on("before_llm", lambda event: seen.append(event.context))
    await agent.call("Hi")
    turn = Turn(add, {"a": 1, "b": 2})
    receipt = await agent.put(turn)
    async for _ in agent.run():
        pass
    seen += [
        agent,
        agent.branch("b"),
        add,
        Bag().count,
        receipt,
        turn,
        turn.copy(),
        agent.queue,
        agent.hooks,
        agent.session(),
        Session.fresh(),
        Session.fresh().copy("c"),
        Output(int),
    ]
    for shown in seen:
        cls = next(kind for kind in FACADES if isinstance(shown, kind))
        assert [name for name in dir(shown) if name[0] != "_"] == FACADES[cls].split()
        assert (type(shown).__name__, type(shown).__doc__) == (cls.__name__, cls.__doc__)
    assert {kind for kind in FACADES for shown in seen if isinstance(shown, kind)} == set(FACADES)


def test_a_subclass_of_a_facade_is_the_full_class_too() -> None:
    """Users may inherit from what they see; made once for each of their classes, and what they define comes first."""

    class Facade:
        def __init__(self, n: int) -> None:
            self.n = n

    @objects_of(Facade)
    class FullFacade(Facade):
        def told(self) -> str:
            return f"{self.n} from the package"

    class Mine(Facade):
        def __init__(self) -> None:
            super().__init__(3)

        def told(self) -> str:
            return "mine"

    class Further(Mine):
        pass

    mine, further = Mine(), Further()
    assert isinstance(mine, FullFacade)
    assert isinstance(further, FullFacade)
    assert (mine.n, mine.told(), further.told(), FullFacade.told(mine)) == (3, "mine", "mine", "3 from the package")
    assert type(mine) is type(Mine())
    assert (type(mine).__name__, type(further).__name__) == ("Mine", "Further")
    assert str(inspect.signature(Facade)) == "(n: 'int') -> 'None'"
    with pytest.raises(TypeError, match=r"Session.__init__\(\) missing 1 required positional argument: 'id'"):
        Session()


async def test_copies_of_a_users_object_are_of_its_class() -> None:
    """What a turn's `copy`, a tool's `renamed` and a bound tool give is of the class that it was made of, and runs."""

    class MyTool(Tool[..., Any]):
        pass

    class MyTurn(Turn[Any]):
        pass

    class Holder:
        @MyTool
        async def kept(self) -> int:
            return 1

    mine = MyTool(add.function)
    turn = MyTurn(mine, {"a": 1, "b": 2}).copy()
    assert [isinstance(made, MyTool) for made in (mine, mine.renamed("other"), Holder().kept)] == [True] * 3
    assert isinstance(turn, MyTurn)
    assert (await turn.returning(), await Holder().kept()) == (3, 1)


def test_a_subclass_of_a_facade_with_slots_is_told_of() -> None:
    """Python does not join two classes that both have slots; the error says what to leave out."""

    class Kept(Session):
        __slots__ = ("place",)

    with pytest.raises(TypeError, match="Kept cannot be created: subclasses of Session must not define __slots__"):
        Kept("s")
