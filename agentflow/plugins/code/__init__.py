"""`code_tool`: the model writes Python, which runs in a sandbox and can call tools (`docs/code.md`)."""

from agentflow.plugins.code.bubblewrap import Bubblewrap
from agentflow.plugins.code.monty import Monty
from agentflow.plugins.code.sandbox import (
    FunctionCall,
    FunctionCalls,
    FunctionResult,
    Program,
    ProgramResult,
    RunningProgram,
    Sandbox,
)
from agentflow.plugins.code.tool import code_tool

__all__ = [
    "Bubblewrap",
    "FunctionCall",
    "FunctionCalls",
    "FunctionResult",
    "Monty",
    "Program",
    "ProgramResult",
    "RunningProgram",
    "Sandbox",
    "code_tool",
]
