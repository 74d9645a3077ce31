"""Who takes part, in which version, and how it is installed. Versions are pinned here and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SIDES", "Entry", "named"]


class Entry(NamedTuple):
    """One side of the race.

    Attributes:
        name: Its name on the command line, and of its environment.
        label: Its name in tables.
        module: The module in `benchmarks/peers/sides`.
        packages: The packages with printed versions; the first one is the framework.
        requirements: The arguments of pip; `.` is this repository.
        why: A remark about the version.
    """

    name: str
    label: str
    module: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    why: str = ""


SIDES = (
    Entry("bare", "a bare loop", "bare", ("pydantic", "aiohttp"), ("pydantic==2.14.3", "aiohttp")),
    Entry("agentflow", "agentflow", "ours", ("agentflow-hooks",), (".",)),
    Entry(
        "pydantic-ai",
        "pydantic-ai",
        "pydantic_ai_",
        ("pydantic-ai-slim", "openai"),
        ("pydantic-ai-slim[openai]==2.68.0",),
    ),
    Entry(
        "langchain",
        "LangChain",
        "langchain_",
        ("langchain", "langgraph", "langchain-core", "langchain-openai"),
        ("langchain==1.4.7", "langchain-core==1.7.2", "langgraph==1.2.22", "langchain-openai==1.7.3"),
        "1.5.0 needs a certifi that the package index did not have on the day of the race",
    ),
    Entry("openai-agents", "OpenAI Agents", "openai_agents", ("openai-agents", "openai"), ("openai-agents==0.24.0",)),
    Entry("strands", "Strands", "strands_", ("strands-agents", "openai"), ("strands-agents[openai]==1.62.0",)),
    Entry(
        "agent-framework",
        "Agent Framework",
        "agent_framework_",
        ("agent-framework-core", "agent-framework-openai"),
        ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0"),
    ),
    Entry(
        "google-adk", "Google ADK", "google_adk", ("google-adk", "litellm"), ("google-adk==2.13.0", "litellm==1.106.2")
    ),
    Entry(
        "agentscope",
        "AgentScope",
        "agentscope_",
        ("agentscope", "openai"),
        ("agentscope==2.0.10",),
        "2.0.11 needs a certifi that the package index did not have on the day of the race",
    ),
    Entry("connectonion", "ConnectOnion", "connectonion_", ("connectonion",), ("connectonion==1.9.2",)),
    Entry("pygents", "pygents", "pygents_", ("pygents",), ("pygents==0.7.0",)),
)
"""Agents and the loop by hand, in the order of tables."""


def named(name: str) -> Entry:
    """The side of this name."""
    return next(entry for entry in SIDES if entry.name == name)
