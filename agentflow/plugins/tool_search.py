"""`ToolSearch`: the model gets a search tool and a few others; more of the agent's tools are added as it finds them.

Rules:

1. All tools belong to the agent as usual, so hooks, approvals, schedules and records apply to them. Only requests are shorter.
2. Found tools follow the others in the order in which they were found. The start of a request stays the same, so that a prompt
   cache stays valid.
3. Found tools are read from the results of the search tool, so that replays and resumed calls repeat them.
4. If the provider has such a search (Claude 4.5 and later), requests define all tools, most of them hidden until its search
   finds them. The provider keeps found tools with the conversation.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Final, cast

from pydantic_core import from_json

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._matching import matches, strings
from agentflow.tools.tool import Tool, tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import HookEvent, PostActing, PreReasoning
from agentflow.vocabulary.server_tools import ServerTool
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

SEARCH: Final = "search_tools"
_MAX_QUERY_LENGTH: Final = 1_000
_MAX_LINE_LENGTH: Final = 120


@dataclass
class FoundTools:
    """The tools that a session has found, in order; stored with the session."""

    names: list[str] = field(default_factory=list[str])


class ToolSearch(Hook):
    """Hides the agent's tools from the model until it finds them with the tool `search_tools`.

    Found tools remain for the session. Tools that other hooks add to a request are not hidden. A hidden tool that a model calls
    by its name runs like any other: to refuse tools, use a guard.

    Over `AnthropicWire`, Claude 4.5 and later use Anthropic's own search instead.

    Priority 40 (system).

    Args:
        always: Names and patterns of tools that are always shown.
        results: The number of tools that a search returns.
        native: Whether to use the provider's own search, if it has one.

    Example:
        >>> agent = Agent("desk", "openai/gpt-5", tools=[search], hooks=[ToolSearch(always=["get_*"])])
    """

    priority = 40
    events = (PreReasoning, PostActing)

    def __init__(self, *, always: Iterable[str] = (), results: int = 5, native: bool = True) -> None:
        if results < 1:
            raise UsageError(f"ToolSearch(results={results}): it must be at least 1.")
        self.always = strings("ToolSearch(always=...)", always)
        self.results = results
        self.native = native
        self._index: _Index | None = None

    def tools(self) -> Iterable[Tool[..., Any]]:
        """Return the search tool."""
        return (self.search_tools,)

    @tool(type="read", idempotent=True)
    async def search_tools(self, context: RunContext, query: str) -> dict[str, Any]:
        """Find tools for a task. Only some tools are listed at first: search before you say that something is impossible.

        The tools that are found can be called in the next step.

        Args:
            query: The task in a short phrase, or a tool's name.
        """
        if len(query) > _MAX_QUERY_LENGTH:
            raise ToolArgumentError(
                f"query has {len(query)} characters; describe one task in at most {_MAX_QUERY_LENGTH}."
            )
        found = self._index_of(context.agent.tools).find(query, self.results)
        if not found:
            return {"tools": [], "note": "No tool matches. Describe the task differently."}
        return {"tools": [{"name": spec.name, "description": _first_line(spec.description)} for spec in found]}

    def on_event(self, event: HookEvent) -> HookEvent:
        """Shorten a request, or note the tools that a search has found."""
        if isinstance(event, PostActing):
            if event.tool_use.name == SEARCH and event.tool_result.state == "success":
                self._note(event)
        elif isinstance(event, PreReasoning) and event.tools:
            index = self._index_of(event.agent.tools)
            loaded = event.context.session_state[FoundTools].names
            # A provider refuses a request with a `tool_choice` that is not among its tools.
            always = [*filter(None, (event.options.tool_choice,)), *index.shown]
            shown = [spec for spec in event.tools if spec.name in always or spec.name not in index.hidden]
            hidden = {spec.name: spec for spec in event.tools if spec not in shown}
            if self.native and event.context.searches_tools(event.model):
                self._leave_to_provider(event, [name for name in hidden if name not in loaded])
            else:
                event.tools = (*shown, *(hidden[name] for name in loaded if name in hidden))
        return event

    def _leave_to_provider(self, event: PreReasoning, hidden: Sequence[str]) -> None:
        choice = event.options.tool_choice
        event.tools = tuple([spec for spec in event.tools if spec.name != SEARCH or choice == SEARCH])
        if hidden:
            tools = (*(event.options.server_tools or ()), ServerTool.tool_search(*hidden))
            event.options = event.options.merge(ModelOptions(server_tools=tools))

    def _note(self, event: PostActing) -> None:
        hidden, names = self._index_of(event.agent.tools).hidden, event.context.session_state[FoundTools].names
        for name in _names_in(event.tool_result.text):
            if name in hidden and name not in names:
                names.append(name)

    def _index_of(self, specs: Sequence[ToolSpec]) -> _Index:
        """Return the index of an agent's tools; it is built again if they change."""
        index = self._index
        if index is None or index.specs is not specs:  # by identity: comparing hundreds of tools would be slow
            shown = [
                spec.name for spec in specs if spec.name == SEARCH or (self.always and matches(self.always, spec.name))
            ]
            index = self._index = _Index(specs, shown)
        return index


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]}…"


def _names_in(text: str) -> list[str]:
    """Return the names in a result of the search tool; none if a hook has changed it to something else."""
    try:
        data: Any = from_json(text)
    except ValueError:
        return []
    listed: Any = cast("Mapping[str, Any]", data).get("tools") if isinstance(data, Mapping) else None
    entries = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [str(cast("Mapping[str, Any]", entry).get("name")) for entry in entries if isinstance(entry, Mapping)]


# ---- ranking (BM25)

_K1: Final = 1.2
"""BM25's saturation of repeated terms. The length of a text does not count, because all texts of tools are short."""
_NAME_WEIGHT: Final = 3
"""How many times the terms of a name count."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")
_ENDINGS = re.compile(r"(?<=\w{3})(?:ing|ed|es|s|e)$")
_STOP_WORDS = {
    "a",
    "an",
    "and",
    "for",
    "from",
    "in",
    "is",
    "it",
    "me",
    "my",
    "of",
    "on",
    "or",
    "that",
    "the",
    "this",
    "to",
    "with",
}
_VERBS: Final[Mapping[str, str]] = {
    "create": "add make new open send write",
    "update": "change edit modify set",
    "get": "fetch read show view",
    "search": "find lookup query",
    "delete": "drop remove revoke",
}
_SYNONYMS: Final = {word: verb for verb, same in _VERBS.items() for word in same.split()}
"""Verbs of similar meaning, and the verb that is indexed for them."""


def _terms(text: str) -> list[str]:
    words: list[str] = [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]
    return [_ENDINGS.sub("", _SYNONYMS.get(word, word)) for word in words if word not in _STOP_WORDS]


class _Index:
    """The tools of an agent, by the terms of their names, descriptions and parameters.

    Attributes:
        specs: All tools.
        shown: The names of the tools that are always shown.
        hidden: The other tools, by name.
    """

    def __init__(self, specs: Sequence[ToolSpec], shown: Sequence[str]) -> None:
        self.specs = specs
        self.shown = frozenset(shown)
        self.hidden = {spec.name: spec for spec in specs if spec.name not in self.shown}
        self._postings: dict[str, dict[str, float]] | None = None

    def find(self, query: str, most: int) -> list[ToolSpec]:
        """Return the best matches. In a tie, read-only tools come first; a tool whose name equals the query is always first."""
        if self._postings is None:
            self._postings = self._build_postings()
        scores: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(_terms(query)):
            for name, weight in self._postings.get(word, {}).items():
                scores[name] += weight
        if (exact := query.strip()) in self.hidden:
            scores[exact] = float("inf")
        # Rounded, because the order of additions must not decide a tie.
        ranked = sorted(scores, key=lambda name: (-round(scores[name], 6), self.hidden[name].writes))
        return [self.hidden[name] for name in ranked[:most]]

    def _build_postings(self) -> dict[str, dict[str, float]]:
        having: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, spec in self.hidden.items():
            for word, n in Counter(_terms(_text(spec))).items():
                having[word][name] = n * (_K1 + 1) / (n + _K1)
        for weights in having.values():
            rare = log(1 + (len(self.hidden) - len(weights) + 0.5) / (len(weights) + 0.5))
            weights.update({name: rare * weight for name, weight in weights.items()})
        return having


def _text(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties")
    names = cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else ()
    return " ".join([*[spec.name] * _NAME_WEIGHT, spec.description, *names])
