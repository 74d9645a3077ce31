"""`ServerTool`: a tool that the provider runs within a model call, such as its web search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from agentflow._support.frozen import deep_freeze
from agentflow._support.values import frozen
from agentflow.errors import UsageError

ServerToolName: TypeAlias = Literal[
    "web_search", "web_fetch", "code_execution", "file_search", "image_generation", "mcp", "tool_search"
]

_NAMES: Final[tuple[str, ...]] = get_args(ServerToolName)


@frozen
class ServerTool:
    """A tool that the provider runs within a model call, and bills. Hooks see its work as a `ServerToolBlock` of the
    reply, not as a tool call: no `PreActing` is fired, and nothing is approved.

    Use the class methods; each lists the providers that have the tool. For other models, the request is refused before
    it is sent, except with `tool_search`.

    Attributes:
        name: The name of the tool.
        settings: The settings of the tool, in agentflow's terms.

    Example:
        >>> from agentflow import ModelOptions
        >>> ModelOptions(server_tools=(ServerTool.web_search(max_uses=3, allowed_domains=["python.org"]),)).server_tools
        (ServerTool('web_search', max_uses=3, allowed_domains=('python.org',)),)
    """

    name: ServerToolName
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise UsageError(f"ServerTool({self.name!r}) is unknown. Use one of {', '.join(_NAMES)}.")
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
        """Search the web (Anthropic, OpenAI, and models of LiteLLM that have it).

        Args:
            max_uses: The maximum number of searches in one model call; only Anthropic.
            allowed_domains: Search only these domains; not LiteLLM.
            blocked_domains: Do not search these domains; only Anthropic, and not with `allowed_domains`.
            country: The two-letter code of the user's country.
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
        """Read pages that the conversation links to (Anthropic).

        Args:
            max_uses: The maximum number of pages in one model call.
            allowed_domains: Read only pages of these domains.
            blocked_domains: Do not read pages of these domains; not with `allowed_domains`.
            max_tokens: The maximum number of tokens of one page.
        """
        return cls("web_fetch", _set({**_web(max_uses, allowed_domains, blocked_domains), "max_tokens": max_tokens}))

    @classmethod
    def code_execution(cls) -> ServerTool:
        """Run code in the provider's sandbox (Anthropic, OpenAI)."""
        return cls("code_execution", {})

    @classmethod
    def file_search(cls, *stores: str, max_results: int | None = None) -> ServerTool:
        """Search the files in the provider's vector stores (OpenAI).

        Args:
            stores: The ids of the vector stores.
            max_results: The maximum number of passages of one search.
        """
        if not stores:
            raise UsageError(
                "ServerTool.file_search() needs the id of a vector store: ServerTool.file_search('vs_...')."
            )
        return cls("file_search", _set({"stores": stores, "max_results": max_results}))

    @classmethod
    def image_generation(cls, *, size: str | None = None, quality: str | None = None) -> ServerTool:
        """Draw images, which become `DataBlock`s of the reply (OpenAI).

        Args:
            size: The size in pixels, such as `"1024x1024"`.
            quality: `"low"`, `"medium"` or `"high"`.
        """
        return cls("image_generation", _set({"size": size, "quality": quality}))

    @classmethod
    def mcp(cls, label: str, url: str, *, tools: Iterable[str] = ()) -> ServerTool:
        """Let the provider call the tools of a public MCP server (Anthropic, OpenAI).

        No approval is requested for these calls. For approvals, or for a server with credentials, use `agentflow.mcp`.

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
        """Hide some of the agent's tools until the model finds them by search (Anthropic, OpenAI `/responses`).

        Models without such a search see all tools. `ToolSearch` adds this tool to requests to Anthropic.

        Args:
            tools: The names of the hidden tools.
        """
        if not tools:
            raise UsageError(
                "ServerTool.tool_search() needs the names of the tools that are hidden until they are found."
            )
        return cls("tool_search", {"tools": tools})


def _set(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings without those that are None."""
    return {name: value for name, value in settings.items() if value is not None}


def _web(uses: int | None, allowed: Iterable[str], blocked: Iterable[str]) -> dict[str, object]:
    only, without = _domains("allowed_domains", allowed), _domains("blocked_domains", blocked)
    if only and without:
        raise UsageError("A ServerTool takes allowed_domains= or blocked_domains=, not both: providers refuse both.")
    if uses is not None and uses < 1:
        raise UsageError(f"ServerTool(max_uses={uses}): it must be 1 or more.")
    return _set({"max_uses": uses, "allowed_domains": only or None, "blocked_domains": without or None})


def _domains(name: str, value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):  # iterable, but its characters are no domains
        raise UsageError(f"ServerTool({name}={value!r}) is a single text instead of a list. Write {name}=[{value!r}].")
    domains = tuple(value)
    for domain in domains:
        if "://" in domain or not domain.strip():
            raise UsageError(
                f"ServerTool({name}=[{domain!r}]) is not a domain. Write only the domain, such as 'python.org'."
            )
    return domains
