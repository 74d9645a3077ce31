"""agentflow: typed events through one priority-sorted chain of hooks around an LLM agent's ReAct loop.

The names that most programs need are here. The others are in modules by topic: `agentflow.vocabulary`,
`agentflow.errors`, `agentflow.hooks`, `agentflow.tools`, `agentflow.agent`, `agentflow.models`, `agentflow.state`,
`agentflow.plugins`, `agentflow.recording`, `agentflow.testing`. The adapter of a model name (`"openai/gpt-5"`) is
imported when the model is first called.
"""

import sys

# `python -m agentflow` imports this package before it runs the command: Ctrl-C should end this import too.
if sys.argv[:1] == ["-m"] and ("-m", "agentflow") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    import agentflow_command

    agentflow_command.leave_on_interrupt()

from typing import TYPE_CHECKING, Any

from agentflow._support.lazy import lazily
from agentflow._support.root_names import wrong_name
from agentflow.agent.agent import Agent
from agentflow.agent.builder import AgentBuilder
from agentflow.agent.queue import TurnQueue
from agentflow.agent.shutdown import GracefulShutdown
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
from agentflow.vocabulary.messages import DataBlock, Msg, Reply, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
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


if TYPE_CHECKING:
    from agentflow._support.std_logging import log_to_std
    from agentflow.terminal.console import Console
else:  # a checker must see that a name is wrong
    _LATER = {"Console": ".terminal.console", "log_to_std": "._support.std_logging"}
    _later, __dir__ = lazily(__name__, _LATER)

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return _later(name)
        raise wrong_name(name)
