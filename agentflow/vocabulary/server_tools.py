"""`ServerTool`: a tool that the provider runs within a model call, such as its web search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from agentflow._support.frozen import deep_freeze
from agentflow._support.values import frozen
from agentflow.errors import UsageError

__all__ = ["ServerTool", "ServerToolName"]

ServerToolName: TypeAlias = Literal[
    "web_search", "web_fetch", "code_execution", "file_search", "image_generation", "mcp", "tool_search"
]

_NAMES: Final[tuple[str, ...]] = get_args(ServerToolName)


@frozen
class ServerTool:
    """A tool that the provider runs within a model call. Hooks see its work as a `ServerToolBlock` of the reply, not as a
    tool call: no `PreActing` is fired, and nothing is approved. The provider bills it.

    Use the class methods; each lists the providers that have the tool. A model without it refuses the request before it
    is sent.

    Attributes:
        name: The tool.
        settings: Its settings, in agentflow's terms.

    Example:
        >>> from agentflow import ModelOptions
        >>> ModelOptions(server_tools=(ServerTool.web_search(max_uses=3, allowed_domains=["python.org"]),)).server_tools
        (ServerTool('web_search', max_uses=3, allowed_domains=('python.org',)),)
    """

    name: ServerToolName
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise UsageError(f"ServerTool({self.name!r}): there are {', '.join(_NAMES)}.")
        object.__setattr__(self, "settings", deep_freeze(self.settings))

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"ServerTool({self.name!r}{settings})"

    @classmethod
    def web_search(
        cls,
        *,
        max_uses: int | None = None,
        allowed_domains: Iterable[str] = (),
        blocked_domains: Iterable[str] = (),
        country: str | None = None,
        city: str | None = None,
        timezone: str | None = None,
    ) -> ServerTool:
        """Search the web: Anthropic, OpenAI, and models of LiteLLM that have it.

        Args:
            max_uses: The most searches in one model call; only Anthropic.
            allowed_domains: Only results of these domains; not LiteLLM.
            blocked_domains: No results of these domains; only Anthropic, and not beside `allowed_domains`.
            country: The user's country as two letters.
            city: The user's city.
            timezone: The user's time zone, such as `"Europe/Berlin"`.
        """
        location = _set({"country": country, "city": city, "timezone": timezone})
        web = _web(max_uses, allowed_domains, blocked_domains)
        return cls("web_search", _set({**web, "user_location": location or None}))

    @classmethod
    def web_fetch(
        cls,
        *,
        max_uses: int | None = None,
        allowed_domains: Iterable[str] = (),
        blocked_domains: Iterable[str] = (),
        max_tokens: int | None = None,
    ) -> ServerTool:
        """Read pages whose addresses are in the conversation: Anthropic.

        Args:
            max_uses: The most pages in one model call.
            allowed_domains: Only pages of these domains.
            blocked_domains: No pages of these domains; not beside `allowed_domains`.
            max_tokens: The most tokens of one page.
        """
        return cls("web_fetch", _set({**_web(max_uses, allowed_domains, blocked_domains), "max_tokens": max_tokens}))

    @classmethod
    def code_execution(cls) -> ServerTool:
        """Run code in the provider's sandbox: Anthropic, OpenAI."""
        return cls("code_execution", {})

    @classmethod
    def file_search(cls, *stores: str, max_results: int | None = None) -> ServerTool:
        """Search the files of vector stores that exist at the provider: OpenAI.

        Args:
            stores: The ids of the vector stores.
            max_results: The most passages of one search.
        """
        if not stores:
            raise UsageError(
                "ServerTool.file_search() needs the id of a vector store: ServerTool.file_search('vs_...')."
            )
        return cls("file_search", _set({"stores": stores, "max_results": max_results}))

    @classmethod
    def image_generation(cls, *, size: str | None = None, quality: str | None = None) -> ServerTool:
        """Draw images, which are `DataBlock`s of the reply: OpenAI.

        Args:
            size: The size in pixels, such as `"1024x1024"`.
            quality: `"low"`, `"medium"` or `"high"`.
        """
        return cls("image_generation", _set({"size": size, "quality": quality}))

    @classmethod
    def mcp(cls, label: str, url: str, *, tools: Iterable[str] = ()) -> ServerTool:
        """Call tools of a public MCP server from the provider's side: OpenAI.

        These calls are never put up for approval. For approvals, or for a server with credentials, use `agentflow.mcp`.

        Args:
            label: A name for the server.
            url: Its address.
            tools: The names of the tools that may be called; all by default.
        """
        if not url.startswith("https://"):
            raise UsageError(f"ServerTool.mcp(url={url!r}): the provider needs an address that begins with https://.")
        return cls("mcp", _set({"label": label, "url": url, "tools": tuple(tools) or None}))

    @classmethod
    def tool_search(cls, *tools: str) -> ServerTool:
        """Search the agent's own tools, of which these are hidden until they are found: Anthropic, OpenAI `/responses`.
        Models without such a search see all tools.

        `ToolSearch` adds it to requests to Anthropic.

        Args:
            tools: The names of the hidden tools.
        """
        if not tools:
            raise UsageError(
                "ServerTool.tool_search() needs the names of the tools that are hidden until they are found."
            )
        return cls("tool_search", {"tools": tools})


def _set(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that are set."""
    return {name: value for name, value in settings.items() if value is not None}


def _web(uses: int | None, allowed: Iterable[str], blocked: Iterable[str]) -> dict[str, object]:
    only, without = _domains("allowed_domains", allowed), _domains("blocked_domains", blocked)
    if only and without:
        raise UsageError("A ServerTool takes allowed_domains= or blocked_domains=, not both: providers refuse both.")
    if uses is not None and uses < 1:
        raise UsageError(f"ServerTool(max_uses={uses}): it must be 1 or more.")
    return _set({"max_uses": uses, "allowed_domains": only or None, "blocked_domains": without or None})


def _domains(name: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise UsageError(f"ServerTool({name}={given!r}) is one text. Write {name}=[{given!r}].")
    domains = tuple(given)
    for domain in domains:
        if "://" in domain or not domain.strip():
            raise UsageError(f"ServerTool({name}=[{domain!r}]): write the domain alone, such as 'python.org'.")
    return domains
