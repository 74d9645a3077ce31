"""The scenes for hooks: scripts of the model, tools, and planted faults.

A scene can be played as many different jobs. The job's number is part of the user's input, the model's replies and the
tools' results, so that a text that leaks into another run is recognised.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agentflow.agent.agent import Agent
from agentflow.agent.as_tool import full_agent
from agentflow.errors import ModelError
from agentflow.hooks.hook import Hook
from agentflow.testing.hook_checks.isolation import CheckClock
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools.tool import Tool, tool
from agentflow.tools.tool_context import ToolEmitter
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import Usage

Script = Callable[[int], list[Any]]


class PlantedError(Exception):
    """A planted failure of a tool, a model or another hook of a scene."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A situation to play.

    Attributes:
        name: The name for the evidence.
        script: Creates the replies of the model for a job; the last reply is repeated.
        calls: The number of consecutive calls in the session.
        rounds: The number of tool rounds in the session before the first call.
        max_iterations: The agent's limit.
        side_fails: Whether side calls of hooks to the model fail.
        without_deps: Whether to call without `deps=`.
    """

    name: str
    script: Script
    calls: int = 1
    rounds: int = 0
    max_iterations: int = 8
    side_fails: bool = False
    without_deps: bool = False


def _nap(ms: float = 1.0) -> Any:
    return lambda: asyncio.sleep(ms / 1000)


def _use(job: int, n: int, name: str, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(f"t{job}_{n}", name, arguments)


def _spent(job: int) -> ModelChunk:
    return ModelChunk(usage=Usage(input_tokens=10 + job, output_tokens=5, cost=0.001))


def _answer(job: int) -> list[Any]:
    return [["It ", _nap(), f"is {job}, ", _nap(), "as asked.", _spent(job)]]


def _tools(job: int) -> list[Any]:
    wrong = ToolUseBlock.from_json(f"t{job}_4", "look", '{"x": ')
    return [
        [
            ModelChunk(thinking=f"What is {job}?", signature="sealed"),
            _nap(job % 5),
            "Let me look.",
            _use(job, 1, "look", x=job),
            _use(job, 2, "save", path=f"/tmp/{job}.txt", text=f"number {job}"),
            _use(job, 3, "nobody", x=job),
            wrong,
            _spent(job),
        ],
        [_use(job, 5, "flow", x=job), _use(job, 6, "look", x=-job), _nap(job % 3), _use(job, 7, "ask_helper", x=job)],
        ["Looked ", _nap(job % 7), f"at {job}: ", f"mail ada{job}@example.org.", _spent(job)],
    ]


def _breaking_tools(job: int) -> list[Any]:
    return [
        [_use(job, 1, "boom", x=job), _use(job, 2, "slow", x=job), _use(job, 3, "look", x=job)],
        [_use(job, 4, "boom", x=job)],
        f"It broke: {job}.",
    ]


def _stumbling(job: int) -> list[Any]:
    return [
        ["Per", _nap(), ModelError("planted: the line broke", retryable=True, retry_after=0.5)],
        ["Here: ", f"{job}."],
    ]


def _failing(job: int) -> list[Any]:
    return [[f"{job}", ModelError("planted: the model is down", retryable=False)]]


def _broken(job: int) -> list[Any]:
    return [PlantedError(f"the model of {job}")]


def _odd(job: int) -> list[Any]:
    return [
        [ModelChunk(thinking="..."), ModelChunk(finish_reason="stop")],
        ["It is cut ", ModelChunk("off", finish_reason="length")],
        [_use(job, 1, "look", x=job), _use(job, 2, "look", x=job)],
        [ModelChunk(f"{job} is all there is to say.", model="other", finish_reason="stop")],
    ]


def _endless(job: int) -> list[Any]:
    return [*([_use(job, n, "look", x=n), _nap()] for n in range(6)), f"Never came to {job}."]


def _asking(job: int) -> list[Any]:
    return [[_use(job, 1, "permitted", x=job), _use(job, 2, "look", x=job)], f"Done with {job}."]


def _halting(job: int) -> list[Any]:
    return [[_use(job, 1, "look", x=job)], [_use(job, 2, "halt", x=job), _use(job, 3, "look", x=job)], "Not said."]


def _circling(job: int) -> list[Any]:
    same = [[_use(job, n, "look", x=job), _nap()] for n in range(5)]
    return [*same, [_use(job, 9, "bash", command=f"ls /tmp/{job} && rm -rf /tmp/{job}; echo $(date)")], f"Round {job}."]


def _talking(job: int) -> list[Any]:
    return [
        [f"First {job}.", _nap(2), _use(job, 1, "note", x=job)],
        [f"Noted {job}."],
        ["Again: ", _use(job, 2, "look", x=job)],
        ["Looked ", f"at {job} again."],
        f"Last word on {job}.",
    ]


SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene("an answer", _answer),
        Scene("tools", _tools),
        Scene("a long conversation", _talking, calls=3, rounds=12),
        Scene("odd replies", _odd, calls=4),
        Scene("tools that break", _breaking_tools),
        Scene("a model that stumbles", _stumbling),
        Scene("a model that is down", _failing),
        Scene("a model that is broken", _broken),
        Scene("side calls that fail", _tools, side_fails=True),
        Scene("no deps", _tools, without_deps=True),
        Scene("the limit", _endless, max_iterations=2),
        Scene("approval", _asking),
        Scene("going in circles", _circling, max_iterations=10),
        Scene("an interrupt", _halting),
    )
}
"""All scenes by name, simple ones first."""


class SceneStage:
    """An agent with a scripted model that plays one job of a scene, and a record of its effects.

    Args:
        scene: The scene.
        job: The job's number.
        hooks: The agent's hooks.
        repaired: A set for the ids that replace repeated or empty ids of tool calls; None to ignore them.

    Attributes:
        executed: The tool calls that were executed.
        model: The agent's model, with the requests that it received.
        agent: The agent.
    """

    def __init__(self, scene: Scene, job: int, hooks: Sequence[Hook], repaired: set[str] | None = None) -> None:
        self.scene = scene
        self.job = job
        self.executed: list[str] = []
        self._repaired = repaired
        self._ids: dict[str, int] = {}
        self._lines = scene.script(job)
        self._next_line = 0
        self.model = ScriptedModel(self._next_reply)
        self.agent = Agent(
            "checked",
            self.model,
            system="Be brief.",
            tools=_TOOLS,
            hooks=list(hooks),
            default_hooks=(),
            max_iterations=scene.max_iterations,
            clock=CheckClock(),
            new_id=self.new_id,
        )

    def new_id(self, prefix: str) -> str:
        """Return ids that are the same in each play."""
        count = self._ids[prefix] = self._ids.get(prefix, 0) + 1
        new = f"{prefix}{self.job}_{count}"
        caller = inspect.currentframe()
        caller = None if caller is None else caller.f_back
        # `fold` requests an id for a call only if the call's own id cannot be kept.
        folds = caller is not None and caller.f_code.co_filename == fold.__code__.co_filename
        if prefix == "call_" and self._repaired is not None and folds:
            self._repaired.add(new)
        return new

    def history(self) -> list[Msg]:
        """Return the session's initial messages."""
        messages: list[Msg] = []
        for n in range(self.scene.rounds):
            use = ToolUseBlock(f"h{self.job}_{n}", "look", {"x": n})
            messages += [
                Msg.user(f"Question {n} of {self.job}", id=f"old{n}u"),
                Msg.assistant([f"Look {n}.", use], id=f"old{n}a"),
                Msg.tool([ToolResultBlock(use.id, "look", f"found {n} " * 40)], id=f"old{n}t"),
                Msg.assistant(f"Answer {n}.", id=f"old{n}b"),
            ]
        return messages

    def _next_reply(self, request: ModelRequest) -> Any:
        without_tools = not request.tools or request.options.tool_choice == "none"
        if without_tools and self._lines:  # a side call of a hook, or the summary at the limit
            if self.scene.side_fails:
                return ModelError("planted: the side model is down", retryable=True)
            return f"yes, {self.job}"
        line = self._lines[min(self._next_line, len(self._lines) - 1)]
        self._next_line += 1
        return line

    def __enter__(self) -> SceneStage:
        _stage.set(self)  # never reset: each play runs in its own task, and thus in its own context
        return self

    def __exit__(self, *_: object) -> None:
        return None


_stage: ContextVar[SceneStage | None] = ContextVar("agentflow_check_hook_stage", default=None)


def _record_call(name: str, **arguments: object) -> None:
    stage = _stage.get()
    if stage is not None:
        stage.executed.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})")


async def _look(x: int, emitter: ToolEmitter) -> str:
    """Look something up."""
    _record_call("look", x=x)
    await emitter.emit(f"looking for {x}")
    await asyncio.sleep((abs(x) % 4 + 1) / 1000)
    await emitter.emit("nearly there")
    return f"found {x}: call +1 555 010{abs(x) % 10} or ada{x}@example.org, key sk-live-{abs(x):024d}"


async def _save(path: str, text: str) -> str:
    """Write a file."""
    _record_call("save", path=path, text=text)
    await asyncio.sleep(0.001)
    return f"saved {len(text)} characters to {path}"


async def _flow(x: int) -> AsyncIterator[str]:
    """Stream three chunks."""
    _record_call("flow", x=x)
    for n in range(3):
        await asyncio.sleep(0.001)
        yield f"{x}.{n} "


async def _boom(x: int) -> str:
    """Fail."""
    _record_call("boom", x=x)
    await asyncio.sleep(0.001)
    raise PlantedError(f"the tool of {x}")


async def _slow(x: int) -> str:
    """Take too long."""
    _record_call("slow", x=x)
    await asyncio.sleep(60)
    return f"{x}"


async def _permitted(x: int) -> str:
    """Do work that a person has approved."""
    _record_call("permitted", x=x)
    return f"allowed {x}"


async def _bash(command: str) -> str:
    """Run a command line."""
    _record_call("bash", command=command)
    return f"ran {command}"


async def _note(x: int, context: RunContext) -> str:
    """Inject notes into the conversation."""
    _record_call("note", x=x)
    context.inject(f"a note of {x}", source="tool")
    context.inject(f"seen once: {x}", keep=False, source="tool")
    return "noted"


async def _halt(x: int, context: RunContext) -> str:
    """Interrupt the call."""
    _record_call("halt", x=x)
    context.interrupt(f"halted at {x}")
    await asyncio.sleep(1)
    return "not reached"


async def _ask_helper(x: int) -> str:
    """Ask another agent."""
    _record_call("ask_helper", x=x)
    helper = Agent("helper", ScriptedModel([f"helped with {x}"]), default_hooks=())
    helped = await full_agent(helper).answer(f"Help with {x}")
    return helped if isinstance(helped, str) else helped.text


_TOOLS: tuple[Tool[..., Any], ...] = (
    tool(name="look", type="read")(_look),
    tool(name="save", type="write")(_save),
    tool(name="flow", type="read")(_flow),
    tool(name="boom", type="read")(_boom),
    tool(name="slow", type="read", timeout=2)(_slow),
    tool(name="permitted", type="write", requires_approval=True)(_permitted),
    tool(name="bash", type="write")(_bash),
    tool(name="note", type="read")(_note),
    tool(name="halt", type="write")(_halt),
    tool(name="ask_helper", type="research")(_ask_helper),
)
