"""Local HTTP servers with the APIs ("wires") of OpenAI and Anthropic: they answer from a script, and refuse every request
that the vendor refuses. See `docs/testing-wire.md`.
"""

from agentflow.testing.wire.batches import BatchPlan, WireBatch
from agentflow.testing.wire.misbehaviour import Fault
from agentflow.testing.wire.reply import (
    Cite,
    Gate,
    Halt,
    HttpAnswer,
    PlanEdit,
    Point,
    ReplyPlan,
    Say,
    ScriptedCall,
    ServerCall,
    UseTool,
    WireReply,
    WireUsage,
)
from agentflow.testing.wire.request import ToolAnswer, WireRequest
from agentflow.testing.wire.rules import Dialect, Violation, WireRule, describe_rules
from agentflow.testing.wire.script import Brain, Line, Script
from agentflow.testing.wire.server import WireServer, WireServerThread

__all__ = [
    "BatchPlan",
    "Brain",
    "Cite",
    "Dialect",
    "Fault",
    "Gate",
    "Halt",
    "HttpAnswer",
    "Line",
    "PlanEdit",
    "Point",
    "ReplyPlan",
    "Say",
    "Script",
    "ScriptedCall",
    "ServerCall",
    "ToolAnswer",
    "UseTool",
    "Violation",
    "WireBatch",
    "WireReply",
    "WireRequest",
    "WireRule",
    "WireServer",
    "WireServerThread",
    "WireUsage",
    "describe_rules",
]
