"""The tables of the page "Events of a served run", made from the models that the server sends.

`python -m website.served` writes them; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel

from agentflow.serve.openapi import OPERATIONS
from agentflow.serve.plain import RunEntry, SessionEntry, SessionHistory
from agentflow.serve.view import EVENTS, File, HistoryMessage, Question, Source, TokenUsage
from website.blocks import with_block

__all__ = ["PAGE", "with_tables"]

PAGE: Final = Path(__file__).parents[1] / "docs" / "serve-events.md"
OTHERS: Final[tuple[type[BaseModel], ...]] = (
    Source,
    File,
    Question,
    TokenUsage,
    RunEntry,
    SessionEntry,
    SessionHistory,
    HistoryMessage,
)


def fields_of(model: type[BaseModel]) -> str:
    """Return the table of a model's fields; empty if no field has a description."""
    rows = [f"| `{name}` | {field.description} |" for name, field in model.model_fields.items() if field.description]
    return "\n".join(["| Field | Meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def tables() -> str:
    """Return all tables: the routes, the events, and the values in them."""
    parts = ["## Routes\n", "| Route | Purpose |\n|---|---|"]
    parts += [f"| `{route.method.upper()} {route.path}` | {route.summary} |" for route in OPERATIONS]
    parts.append("\n## Events\n")
    for model in EVENTS:
        (kind,) = get_args(model.model_fields["type"].annotation)
        parts.append(f"### {kind}\n\n{(model.__doc__ or '').strip()}\n\n{fields_of(model)}")
    parts.append("## Other values\n")
    for model in OTHERS:
        parts.append(f"### {model.__name__}\n\n{(model.__doc__ or '').strip()}\n\n{fields_of(model)}")
    return "\n".join(parts) + "\n"


def with_tables(page: str) -> str:
    """Return the page with the current tables."""
    return with_block(page, "website.served", tables())


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
