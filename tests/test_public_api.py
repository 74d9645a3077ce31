"""The public surface is a sorted list, and every name in it says what it is."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentflow
import agentflow.facts
import agentflow.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = [
    "ActingChunk",
    "ActingEvent",
    "Again",
    "Agent",
    "AgentBuilder",
    "AgentFlowError",
    "AgentFlux",
    "AgentRegistry",
    "AgentView",
    "Answer",
    "Approve",
    "CallEnded",
    "CallEvent",
    "CallTimeoutError",
    "Clock",
    "ContentBlock",
    "DataBlock",
    "Decided",
    "Decision",
    "Deny",
    "Dep",
    "DuplicateNameError",
    "Error",
    "ErrorPhase",
    "Flux",
    "FunctionHook",
    "GracefulShutdown",
    "Hook",
    "HookContractError",
    "HookError",
    "HookEvent",
    "HookOptions",
    "HookResult",
    "HookSet",
    "HookTimeoutError",
    "HooksByName",
    "MemoryStore",
    "MessagesAdded",
    "MissingOutputError",
    "Model",
    "ModelChunk",
    "ModelError",
    "ModelOptions",
    "ModelRequest",
    "Mono",
    "Msg",
    "NeverEndsError",
    "NotRegisteredError",
    "Notification",
    "Outcome",
    "Paused",
    "Pending",
    "PostActing",
    "PostCall",
    "PostPut",
    "PostReasoning",
    "PostToolRound",
    "PostTurn",
    "PreActing",
    "PreCall",
    "PrePut",
    "PreReasoning",
    "PreToolRound",
    "PreTurn",
    "ProcessHooks",
    "QueueFullError",
    "ReasoningChunk",
    "ReasoningEvent",
    "Receipt",
    "Recover",
    "Reply",
    "Resolution",
    "Resumed",
    "RetryEmptyAnswers",
    "RetryTruncatedAnswers",
    "RunContext",
    "SafeExecutionError",
    "ScriptError",
    "Session",
    "SessionConflictError",
    "SessionInfo",
    "SessionStore",
    "ShutdownError",
    "ShutdownReport",
    "Stop",
    "StopReason",
    "Store",
    "StoreError",
    "Subscription",
    "Suspend",
    "SuspendedError",
    "SystemClock",
    "TextBlock",
    "ThinkingBlock",
    "Tool",
    "ToolArgumentError",
    "ToolContext",
    "ToolContractError",
    "ToolEmitter",
    "ToolError",
    "ToolNotFoundError",
    "ToolRegistry",
    "ToolResultBlock",
    "ToolSchedule",
    "ToolSpec",
    "ToolType",
    "ToolUseBlock",
    "ToolUseDelta",
    "Toolset",
    "Transcript",
    "TranscriptError",
    "Turn",
    "TurnDeniedError",
    "TurnEvent",
    "TurnOptions",
    "TurnQueue",
    "TurnTimeoutError",
    "TurnValue",
    "TurnView",
    "Usage",
    "UsageError",
    "Verdict",
    "Veto",
    "WrongRunMethodError",
    "after_each_tool",
    "after_llm",
    "after_tool_round",
    "after_user_input",
    "before_each_tool",
    "before_llm",
    "before_tool_round",
    "default_agents",
    "default_hooks",
    "default_tools",
    "external_tool",
    "fold",
    "fold_events",
    "fold_facts",
    "installed_hook_names",
    "installed_hooks",
    "legalise",
    "new_id",
    "on",
    "on_complete",
    "on_error",
    "process_hooks",
    "resolve_model",
    "shutdown",
    "threads",
    "tool",
]
"""What `from agentflow import ...` offers. A change here is a change for users: it belongs into CHANGELOG.md."""

TESTING = [
    "Finding",
    "FindingKind",
    "FindingsError",
    "HookReport",
    "Line",
    "ModelFlaw",
    "ModelReport",
    "ModelScene",
    "Probe",
    "ScriptedModel",
    "Staged",
    "StoreFlaw",
    "StoreReport",
    "Verifier",
    "VirtualClockLoop",
    "check_hook",
    "check_hook_async",
    "check_model",
    "check_model_async",
    "check_store",
    "check_store_async",
    "run_virtual",
    "verify",
]
"""What `from agentflow.testing import ...` offers."""

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
"""What `from agentflow.facts import ...` offers to those who write a store or read one."""

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
    """Facts stand in a module of their own; each is a named tuple with a docstring, and `Fact` is all that are stored."""
    assert agentflow.facts.__all__ == FACTS
    stored = {kind.__name__ for kind in typing.get_args(agentflow.facts.Fact)}
    assert stored == set(FACTS) - {"Fact", "ModelRecord", "TurnRecord"}
    bare = [name for name in stored if (getattr(agentflow.facts, name).__doc__ or "").startswith(f"{name}(")]
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
