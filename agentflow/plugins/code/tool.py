"""`code_tool`: a tool that runs the model's Python code in a sandbox, where it can call the agent's tools.

Rules:

1. The code is a workflow whose steps are the calls of its functions. So each call has its events, hooks and approvals, the
   journal has its result, and a suspended or crashed program continues: it runs again from its start, with the results so far.
2. The code should be deterministic; it fails if it calls other functions when it runs again.
3. The sandbox's process ends with the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final

from pydantic_core import from_json, to_json

from agentflow._support.validation import adapter_of, is_a
from agentflow.agent.agent import Agent
from agentflow.agent.arguments import set_wrapped_agent
from agentflow.agent.as_tool import full_agent
from agentflow.agent.orchestration.steps import Step, StepError, gather
from agentflow.agent.orchestration.workflow import workflow
from agentflow.errors import SandboxError, ToolError, UsageError
from agentflow.hooks.hook import NarrowHook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.plugins.code.sandbox import (
    FunctionCalls,
    FunctionResult,
    Outcome,
    Program,
    ProgramResult,
    RunningProgram,
    Sandbox,
)
from agentflow.tools.code_names import found_by_name
from agentflow.tools.signature import return_hint
from agentflow.tools.tool import Tool, tool
from agentflow.tools.tool_checks import strictest
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import CallEnded, HookEvent
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.specs import WORKFLOW_STEP, ToolSpec

_MAX_CODE_LENGTH: Final = 100_000
_ABOUT: Final = "Run a Python program, and return what it prints; the value of its last line is printed too.\n\n"
_LANGUAGE: Final = "The program has the standard library, no network, and keeps nothing between runs."
_FUNCTIONS: Final = """
It can call these functions. They take and return plain data, and raise FunctionError if they fail. together(f.later(x=1),
g.later(y=2)) runs several at the same time and returns the list of their values.
"""


def code_tool(
    *tools: Tool[..., Any],
    sandbox: Sandbox,
    name: str = "run_python",
    max_calls: int = 50,
    hooks: HookSource = (),
) -> Tool[..., Any]:
    """Return a tool with which a model runs Python code. The code can call tools, so that one round replaces many.

    Args:
        tools: The tools that the code can call, as functions. Each call is a tool call of a sub-agent with the name of the code
            tool, so hooks with `scope="tree"` see it, and approvals work.
        sandbox: Runs the code, such as `Bubblewrap()` or `Monty()`.
        name: The name of the code tool.
        max_calls: The maximum number of times that a program can wait for functions.
        hooks: More hooks for the calls from code.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> from agentflow.plugins.code import Bubblewrap, code_tool
        >>> agent = Agent("analyst", "openai/gpt-5", tools=[code_tool(search, sandbox=Bubblewrap(seconds=10))])
    """
    if max_calls < 1:
        raise UsageError(f"code_tool(max_calls={max_calls}): it must be at least 1.")
    if isinstance(sandbox, type) or not callable(getattr(sandbox, "start", None)):
        shown = f"the class {sandbox.__name__}" if isinstance(sandbox, type) else f"{sandbox!r:.60}"
        raise UsageError(
            f"code_tool(sandbox=...) takes a sandbox, not {shown}. Pass an object, such as sandbox=Bubblewrap()."
        )
    known = _by_name(tools)
    parameters = {key: tuple(_properties(tool.spec)) for key, tool in known.items()}

    async def run(code: str, context: RunContext) -> str:
        results: list[tuple[FunctionResult, ...]] = []
        program = Program(code, parameters)
        for _ in range(max_calls + 1):
            outcome = await _advance(context, sandbox, program, results)
            if isinstance(outcome, ProgramResult):
                return to_json(outcome).decode()
            results.append(await _call_tools(outcome, known))
        return to_json(
            ProgramResult("", f"The program has called functions {max_calls} times, which is the limit.")
        ).decode()

    # Each wait takes two rounds: one for the calls, one in which the program continues.
    flow: Agent[str] = workflow(
        *tools, name=name, max_rounds=2 * max_calls + 3, hooks=[_CloseProgram(), *hooks_of(hooks)]
    )(run)

    async def run_python(code: str, context: RunContext) -> str:
        if len(code) > _MAX_CODE_LENGTH:
            raise ToolError(f"The program has {len(code):,} characters; at most {_MAX_CODE_LENGTH:,} are allowed.")
        answer = await full_agent(flow).answer(code)
        ended = adapter_of(ProgramResult).validate_json(answer if isinstance(answer, str) else answer.text)
        if ended.error is not None:
            raise ToolError(f"{ended.output}\n{ended.error}".strip())
        return ended.output or "(no output)"

    set_wrapped_agent(run_python, full_agent(flow))
    about = f"{_ABOUT}{getattr(sandbox, 'language', _LANGUAGE)} It must be deterministic."
    about += _FUNCTIONS + "".join(map(_described, known.values())) if known else ""
    kind = strictest(known.values())
    # No time limit: the sandbox has one. Idempotent: after a crash the tool can run again, because the results of the
    # program's calls are recorded.
    return tool(name=name, description=about, type=kind, timeout=None, idempotent=True)(found_by_name(run_python))


def _by_name(tools: Sequence[Tool[..., Any]]) -> dict[str, Tool[..., Any]]:
    """Return the tools by name, after checking that code can call them."""
    wrong = next((tool for tool in tools if not is_a(tool, Tool)), None)
    if wrong is not None:
        raise UsageError(
            f"code_tool(...) takes tools, each as an argument, not {wrong!r:.60}. Write code_tool(a, b, sandbox=...); "
            "decorate functions with @tool."
        )
    known = {tool.name: tool for tool in tools}
    illegal = next((name for name in known if not name.isidentifier() or iskeyword(name)), None)
    if illegal is not None:
        raise UsageError(
            f"code_tool({illegal!r}): code cannot call a tool whose name is not a Python identifier. Rename it."
        )
    return known


# ---- the steps of a program


@dataclass
class _Live:
    """The process of the program. It is not stored: a new process repeats the calls with their results.

    Attributes:
        running: The program; None before it starts and after it has ended.
        at: The number of calls of its `proceed`.
    """

    running: RunningProgram | None = None
    at: int = 0

    async def close(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            await running.close()


class _CloseProgram(NarrowHook):
    """Ends the process when its call ends."""

    observer = True
    events = (CallEnded,)

    async def on_event(self, event: HookEvent) -> None:
        await event.context.state[_Live].close()


def _advance(
    context: RunContext, sandbox: Sandbox, program: Program, results: Sequence[tuple[FunctionResult, ...]]
) -> Step[Outcome]:
    """Return the step that runs the program until its next calls."""
    so_far = tuple(results)

    async def work() -> str:
        return to_json(await _proceed(context.state[_Live], sandbox, program, so_far)).decode()

    def read(result: ToolResultBlock) -> Outcome:
        return adapter_of(Outcome).validate_json(result.text)

    return Step(WORKFLOW_STEP, {"function": "run", "arguments": {"waits": len(so_far)}}, read, work=work, label="run")


async def _proceed(
    live: _Live, sandbox: Sandbox, program: Program, results: Sequence[tuple[FunctionResult, ...]]
) -> Outcome:
    """Pass these results to the program, and run it until its next calls. A new process first repeats the earlier calls."""
    if live.running is None or live.at != len(results):
        await live.close()
        live.running, live.at = await sandbox.start(program), 0
    running = live.running
    try:
        outcome: Outcome = ProgramResult("")
        for at in range(live.at, len(results) + 1):
            outcome = await running.proceed(results[at - 1] if at else ())
            live.at = at + 1
            if at < len(results) and (isinstance(outcome, ProgramResult) or len(outcome.calls) != len(results[at])):
                raise SandboxError("The program called other functions when it ran again. It must be deterministic.")
        return outcome
    except BaseException:  # also on cancellation: the process cannot be used after an interrupted step
        await live.close()
        raise


async def _call_tools(outcome: FunctionCalls, known: dict[str, Tool[..., Any]]) -> tuple[FunctionResult, ...]:
    """Call the tools that the program waits for, concurrently, and return the results in the order of the calls."""
    steps = [_step(call.name, call.arguments, known) for call in outcome.calls if call.name in known]
    values = iter(await gather(*steps, return_exceptions=True))
    return tuple(
        _result(next(values)) if call.name in known else FunctionResult(error=f"There is no function {call.name}.")
        for call in outcome.calls
    )


def _step(name: str, arguments: dict[str, Any], known: dict[str, Tool[..., Any]]) -> Step[Any]:
    def read(result: ToolResultBlock) -> Any:
        if return_hint(known[name].function, {}) is not str:  # a `str` is not parsed, even if it looks like JSON
            try:
                return from_json(result.text)
            except ValueError:
                pass
        return result.text

    return Step(name, arguments, read)


def _result(value: Any) -> FunctionResult:
    return (
        FunctionResult(error=f"{value.step}: {value.reason}") if isinstance(value, StepError) else FunctionResult(value)
    )


# ---- the description


def _properties(spec: ToolSpec) -> dict[str, Any]:
    return dict(spec.parameters.get("properties", {}))


def _described(tool: Tool[..., Any]) -> str:
    required = tool.spec.parameters.get("required", ())
    arguments = [
        f"{key}: {about.get('type', 'object')}" + ("" if key in required else f" = {about.get('default')!r}")
        for key, about in _properties(tool.spec).items()
    ]
    notes = [
        f"\n    {key}: {about['description']}"
        for key, about in _properties(tool.spec).items()
        if "description" in about
    ]
    return f"\n{tool.name}({', '.join(arguments)}): {tool.spec.description}{''.join(notes)}\n"
