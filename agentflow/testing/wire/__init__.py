"""Loopback HTTP servers that speak the OpenAI and Anthropic wires, scripted and strict. See `docs/testing-wire.md`."""

from agentflow.testing.wire.misbehaviour import Fault
from agentflow.testing.wire.reply import (
    Call,
    Cite,
    Gate,
    Halt,
    HttpAnswer,
    Plan,
    PlanEdit,
    Point,
    Reply,
    Say,
    ToolCall,
    WireUsage,
)
from agentflow.testing.wire.request import ToolAnswer, WireRequest
from agentflow.testing.wire.rules import Dialect, Rule, Violation, describe_rules
from agentflow.testing.wire.script import Brain, Line, Script
from agentflow.testing.wire.server import WireServer, WireServerThread

__all__ = [
    "Brain",
    "Call",
    "Cite",
    "Dialect",
    "Fault",
    "Gate",
    "Halt",
    "HttpAnswer",
    "Line",
    "Plan",
    "PlanEdit",
    "Point",
    "Reply",
    "Rule",
    "Say",
    "Script",
    "ToolAnswer",
    "ToolCall",
    "Violation",
    "WireRequest",
    "WireServer",
    "WireServerThread",
    "WireUsage",
    "describe_rules",
]
