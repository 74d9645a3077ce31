"""agentflow: typed events through one priority-sorted chain of hooks around an LLM agent's ReAct loop.

The names that most programs need are in this package, the others in modules by topic: `agentflow.vocabulary`,
`agentflow.errors`, `agentflow.hooks`, `agentflow.tools`, `agentflow.agent`, `agentflow.models`, `agentflow.state`,
`agentflow.plugins`, `agentflow.recording`, `agentflow.testing`. A name is imported when it is first used, and the adapter of
a model name (`"openai/gpt-5"`) when the model is first called.
"""

import sys

# `python -m agentflow` imports this package before it runs the command; Ctrl-C should end this import too.
if sys.argv[:1] == ["-m"] and ("-m", "agentflow") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    import agentflow_command

    agentflow_command.leave_on_interrupt()

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentflow._support.lazy import lazily, wrong_name

if TYPE_CHECKING:
    from agentflow._support.std_logging import log_to_std
    from agentflow.agent.agent import Agent
    from agentflow.agent.builder import AgentBuilder
    from agentflow.agent.graceful import GracefulShutdown
    from agentflow.agent.queue import TurnQueue
    from agentflow.errors import Veto
    from agentflow.hooks import (
        Hook,
        HookResult,
        after_each_tool,
        after_llm,
        after_tool_round,
        after_turn,
        after_user_input,
        before_each_tool,
        before_llm,
        before_tool_round,
        before_turn,
        on,
        on_complete,
        on_error,
        process_hooks,
    )
    from agentflow.loop.output.output import Output
    from agentflow.loop.schedule import ToolSchedule
    from agentflow.loop.session import Session
    from agentflow.loop.turn import Turn
    from agentflow.reactive import Flux, Mono, threads
    from agentflow.terminal.console import Console
    from agentflow.tools import Dep, ToolContext, ToolEmitter, Toolset, external_tool, tool
    from agentflow.vocabulary.chunks import ModelChunk
    from agentflow.vocabulary.context import RunContext
    from agentflow.vocabulary.events import (
        ActingChunk,
        CallEnded,
        Error,
        HookEvent,
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
    from agentflow.vocabulary.messages import (
        DataBlock,
        Msg,
        Reply,
        TextBlock,
        ThinkingBlock,
        ToolResultBlock,
        ToolUseBlock,
    )
    from agentflow.vocabulary.ports.memory_store import MemoryStore
    from agentflow.vocabulary.ports.model import Model, ModelRequest
    from agentflow.vocabulary.specs import ModelOptions, Usage
    from agentflow.vocabulary.verdicts import Again, Answer, Approve, Deny, Recover, Stop, Suspend

__all__ = [
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


if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    _NAMES = {
        "._support.std_logging": "log_to_std",
        ".agent.agent": "Agent",
        ".agent.builder": "AgentBuilder",
        ".agent.queue": "TurnQueue",
        ".agent.graceful": "GracefulShutdown",
        ".errors": "Veto",
        ".hooks": "Hook HookResult after_each_tool after_llm after_tool_round after_turn after_user_input before_each_tool "
        "before_llm before_tool_round before_turn on on_complete on_error process_hooks",
        ".loop.output.output": "Output",
        ".loop.schedule": "ToolSchedule",
        ".loop.session": "Session",
        ".loop.turn": "Turn",
        ".reactive": "Flux Mono threads",
        ".terminal.console": "Console",
        ".tools": "Dep ToolContext ToolEmitter Toolset external_tool tool",
        ".vocabulary.chunks": "ModelChunk",
        ".vocabulary.context": "RunContext",
        ".vocabulary.events": "ActingChunk CallEnded Error HookEvent MessagesAdded PostActing PostCall PostReasoning "
        "PostToolRound PreActing PreCall PreReasoning PreToolRound ReasoningChunk",
        ".vocabulary.messages": "DataBlock Msg Reply TextBlock ThinkingBlock ToolResultBlock ToolUseBlock",
        ".vocabulary.ports.memory_store": "MemoryStore",
        ".vocabulary.ports.model": "Model ModelRequest",
        ".vocabulary.specs": "ModelOptions Usage",
        ".vocabulary.verdicts": "Again Answer Approve Deny Recover Stop Suspend",
    }
    _MODULES = frozenset({"agent", "hooks", "loop", "reactive", "tools", "vocabulary"})
    """Subpackages that can be used as attributes without an import."""
    _find, __dir__ = lazily(__name__, _NAMES)

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return _find(name)
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        raise wrong_name(name)
