"""`code_tool`: the model writes Python, which runs in a sandbox and can call tools (`docs/code.md`)."""

from agentflow.plugins.code.bubblewrap import Bubblewrap
from agentflow.plugins.code.monty import Monty
from agentflow.plugins.code.sandbox import (
    Finished,
    FunctionCall,
    FunctionCalls,
    FunctionResult,
    Program,
    RunningProgram,
    Sandbox,
)
from agentflow.plugins.code.tool import code_tool

__all__ = [
    "Bubblewrap",
    "Finished",
    "FunctionCall",
    "FunctionCalls",
    "FunctionResult",
    "Monty",
    "Program",
    "RunningProgram",
    "Sandbox",
    "code_tool",
]
