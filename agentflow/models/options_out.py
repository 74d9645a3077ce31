"""Converts `ModelOptions` and tools to LiteLLM's arguments.

Rules:

1. Options that are unset, or that a provider does not have (Anthropic has no seed), are not sent.
2. Conflicting options are resolved instead of refused: a forced tool choice and a small `max_tokens` take precedence over
   thinking, and thinking over a temperature. A tool loop that began without thinking continues without it.
3. LiteLLM sends the arguments in `allowed_openai_params` in addition to its own translation. So an argument is listed
   there only if LiteLLM does not translate it and the wire has a field of that name.
4. If the provider requires it, tools stay defined while the history contains calls; where the provider has it, the tool
   choice "none" forbids calls.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentflow.errors import UsageError
from agentflow.models.conversion import Json, is_sealed, thaw
from agentflow.models.profiles import WireProfile
from agentflow.models.wire_names import wire_name
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

MIN_BUDGET = 1024
"""The smallest budget that Anthropic accepts, in tokens."""
# LiteLLM's budgets for the first three efforts; each further one is twice the last.
_BUDGETS = {"low": 1024, "medium": 2048, "high": 4096, "xhigh": 8192, "max": 16_384}
_EVERYWHERE = ("low", "medium", "high")
# With these efforts, most Claude models choose the length of their thinking, so there is no budget to reduce.
_OWN_EFFORTS = frozenset({"xhigh", "max"})
# Wires that have the field `reasoning_effort`.
_WITH_EFFORT = frozenset({"openai", "compatible", "reasoning"})
_WITHOUT_SEED = frozenset({"anthropic", "bedrock"})
_INSISTS_ON_TOOLS = frozenset({"anthropic", "bedrock"})
_WITHOUT_NONE = frozenset({"bedrock"})
# Families whose servers may ignore "none", so that the model calls tools anyway: instead of "none", no tools are sent.
_BLIND_TO_NONE = frozenset({"compatible", "reasoning"})


@dataclass(frozen=True, slots=True)
class Thinking:
    """The thinking of one request.

    Attributes:
        arguments: The arguments that request it; empty for the default.
        barred: Whether the request must not ask for thinking; the thoughts of an open tool loop are then left out too. (Some
            models think nevertheless.)
    """

    arguments: Mapping[str, Json]
    barred: bool = False


_UNSAID = Thinking({})
BARRED = Thinking({}, barred=True)


def thinking_out(request: ModelRequest, profile: WireProfile, model: str, supported: Container[str] = ()) -> Thinking:
    """Return the arguments for the requested thinking, or `BARRED` if it must be off.

    Args:
        request: The request to the model.
        profile: The provider's rules.
        model: The model's name.
        supported: The arguments that LiteLLM itself translates for the model.

    Raises:
        UsageError: The options contain an effort that this family does not have.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> request = ModelRequest([Msg.user("hi")], (), ModelOptions(thinking=500), "openai/gpt-5")
        >>> thinking_out(request, OPENAI, "openai/gpt-5", {"reasoning_effort"}).arguments
        {'reasoning_effort': 'low'}
    """
    wanted = request.options.thinking
    if wanted is None:
        return _UNSAID
    if isinstance(wanted, str) and wanted not in profile.efforts:
        efforts = ", ".join(map(repr, profile.efforts))
        raise UsageError(
            f"The model {model!r} does not support ModelOptions(thinking={wanted!r}). Use {efforts}, True, False, or a budget "
            "in tokens."
        )
    if profile.asks == "switch":
        return Thinking({"thinking": {"type": "disabled" if wanted is False else "enabled"}})
    if wanted is False:
        # The other families do not think by default, or cannot switch thinking off.
        return Thinking({"reasoning_effort": "none"}) if profile.family == "gemini" else BARRED
    if profile.thinking_binds:
        # Anthropic refuses thinking with a forced tool, and in a tool loop that began without a thought.
        if _forces_a_tool(request) or _began_without_thought(request.messages, model):
            return BARRED
        # Anthropic refuses a budget that is not below `max_tokens`.
        limit = request.options.max_tokens
        if limit is not None and wanted not in _OWN_EFFORTS and limit <= budget_of(wanted):
            half = max(MIN_BUDGET, limit // 2)
            return Thinking(_with_budget(half, supported)) if limit > MIN_BUDGET else BARRED
    takes_effort, takes_budget = "reasoning_effort" in supported, "thinking" in supported
    if profile.asks == "budget" and (not takes_effort or (takes_budget and type(wanted) is int)):
        return Thinking(_with_budget(budget_of(wanted), supported))
    return Thinking(_with_effort(effort_of(wanted), profile, supported))


def options_out(options: ModelOptions, profile: WireProfile, thinking: Thinking) -> dict[str, Json]:
    """Return the arguments for the options, except the tool choice.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> options_out(ModelOptions(temperature=0.5, stop=("END",)), OPENAI, Thinking({}))
        {'stop': ['END'], 'temperature': 0.5}
    """
    out: dict[str, Json] = {}
    if options.max_tokens is not None:
        out["max_tokens"] = options.max_tokens
    if options.top_p is not None:
        out["top_p"] = options.top_p
    if options.stop:
        out["stop"] = list(options.stop)
    if options.seed is not None and profile.family not in _WITHOUT_SEED:
        out["seed"] = options.seed
    if options.temperature is not None and not (profile.thinking_binds and thinking.arguments):
        out["temperature"] = options.temperature
    return {**out, **thinking.arguments}


def _with_budget(tokens: int, supported: Container[str]) -> dict[str, Json]:
    wanted: dict[str, Json] = {"thinking": {"type": "enabled", "budget_tokens": tokens}}
    return wanted if "thinking" in supported else {**wanted, "allowed_openai_params": ["thinking"]}


def _with_effort(effort: str, profile: WireProfile, supported: Container[str]) -> dict[str, Json]:
    wanted: dict[str, Json] = {"reasoning_effort": effort}
    if "reasoning_effort" in supported or profile.family not in _WITH_EFFORT:
        return wanted
    return {**wanted, "allowed_openai_params": ["reasoning_effort"]}  # untranslated: each provider defines its efforts


def effort_of(wanted: bool | int | str) -> str:
    """Return the requested thinking as an effort.

    Example:
        >>> effort_of(2000), effort_of(True)
        ('medium', 'medium')
    """
    if isinstance(wanted, str):
        return wanted
    if wanted is True:
        return "medium"
    return next((word for word in _EVERYWHERE if wanted <= _BUDGETS[word]), "high")


def budget_of(wanted: bool | int | str) -> int:
    """Return the requested thinking as a budget in tokens.

    Example:
        >>> budget_of("high")
        4096
    """
    return wanted if type(wanted) is int else _BUDGETS[effort_of(wanted)]


def _forces_a_tool(request: ModelRequest) -> bool:
    return bool(request.tools) and request.options.tool_choice not in (None, "auto", "none")


def _began_without_thought(messages: Sequence[Msg], model: str) -> bool:
    """Return whether a tool loop is open and its first reply has no thought that can be sent back.

    A loop begins after the last separate user message; a user message directly after tool results belongs to the loop.
    """
    head: Msg | None = None
    results = False
    for index in range(len(messages) - 1, -1, -1):
        msg = messages[index]
        if msg.role == "assistant":
            if not results:
                break
            head, results = msg, False
        elif msg.role == "tool":
            results = True
    return head is not None and not any(is_sealed(block, model) for block in head.content)


class ToolMemory:
    """Tool definitions in the wire's format; each `ToolSpec` is converted once.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> options = ModelOptions(tool_choice="add")
        >>> request = ModelRequest([Msg.user("hi")], (ToolSpec("add"),), options, "openai/gpt-5")
        >>> ToolMemory().arguments(request, OPENAI)["tool_choice"]
        {'type': 'function', 'function': {'name': 'add'}}
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ToolSpec, dict[str, Json]]] = {}

    def arguments(self, request: ModelRequest, profile: WireProfile) -> dict[str, Json]:
        """Return `tools` and `tool_choice` for the request; empty if there are none."""
        none = request.options.tool_choice == "none"
        # Bedrock has no choice "none": instead, only stubs for the calls in the history are sent.
        if not request.tools or (none and profile.family in _WITHOUT_NONE):
            return _stubs(request.messages, profile)
        if none and profile.family in _BLIND_TO_NONE:
            return {}
        tools: list[Json] = [{**self._definition(spec)} for spec in request.tools]
        choice = _choice(request.options)
        return {"tools": tools} if choice is None else {"tools": tools, "tool_choice": choice}

    def _definition(self, spec: ToolSpec) -> dict[str, Json]:
        entry = self._known.get(id(spec))
        # Python may reuse the id of a deleted object, so the object is kept and compared.
        if entry is None or entry[0] is not spec:
            # A bound for programs that build tools for each call.
            if len(self._known) >= 1024:
                self._known.clear()
            entry = self._known[id(spec)] = (spec, _definition(spec))
        return entry[1]


def _definition(spec: ToolSpec) -> dict[str, Json]:
    schema = cast("dict[str, Json]", thaw(spec.parameters))
    # OpenAI refuses an object without `properties`.
    parameters: Json = {"type": "object", "properties": {}, **schema}
    function: dict[str, Json] = {"name": wire_name(spec.name), "parameters": parameters}
    if spec.description.strip():
        function["description"] = spec.description
    return {"type": "function", "function": function}


def _choice(options: ModelOptions) -> Json:
    choice = options.tool_choice
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": wire_name(choice)}}


def _stubs(messages: Sequence[Msg], profile: WireProfile) -> dict[str, Json]:
    """Return definitions for the calls in the history of a request without tools, if the provider requires them."""
    if profile.family not in _INSISTS_ON_TOOLS:
        return {}
    names = dict.fromkeys(wire_name(use.name) for msg in messages if msg.role == "assistant" for use in msg.tool_uses)
    if not names:
        return {}
    tools: list[Json] = [_definition(ToolSpec(name, "Not available now.")) for name in names]
    return {"tools": tools} if profile.family in _WITHOUT_NONE else {"tools": tools, "tool_choice": "none"}
