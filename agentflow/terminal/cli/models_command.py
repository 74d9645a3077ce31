"""`agentflow models`: show the adapter and the key variable of a model's name, and whether the variable is set."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import click
from rich import box
from rich.table import Table

from agentflow.errors import UsageError
from agentflow.models.choice import why_litellm
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.litellm_library import library, missing_keys
from agentflow.models.wire import DirectWire
from agentflow.terminal.cli.failures import CommandError
from agentflow.terminal.printer import make_console
from agentflow.vocabulary.ports.model import resolve_model

_FORMS: Final = ("openai/gpt-5", "anthropic/claude-sonnet-4-5", "openai+http://127.0.0.1:8000/v1#my-model")


class _Row(NamedTuple):
    """The output for a name."""

    name: str
    adapter: str
    key: str
    why: str


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
def models(names: Sequence[str]) -> int:
    """Show the adapter for a model's name, and whether its key is set. Keys are not printed, and no request is sent.

    Without a name, list the forms of names that do not need LiteLLM; LiteLLM handles all others.
    """
    rows = [_row(name) for name in names or _FORMS]
    console = make_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    for title in ("model", "adapter", "key", "why"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)
    return 0


def _row(name: str) -> _Row:
    try:
        model = resolve_model(name)
    except UsageError as error:
        raise CommandError(str(error)) from error
    if isinstance(model, DirectWire):
        return _Row(name, type(model).__name__, _direct_key(model), "direct wire")
    if isinstance(model, LiteLLMModel):
        return _Row(name, "LiteLLMModel", _litellm_key(model.name), _reason_for(name))
    return _Row(name, type(model).__name__, "", "registered by a package")


def _direct_key(model: DirectWire) -> str:
    found = next((variable for variable in model.key_variables if os.environ.get(variable)), None)
    return f"{found} (set)" if found is not None else f"{' or '.join(model.key_variables)} (not set)"


def _litellm_key(name: str) -> str:
    try:
        missing = asyncio.run(_missing(name))
    except Exception:  # LiteLLM raises its own errors for unknown names
        raise CommandError(
            f"LiteLLM knows no provider for the model {name!r}. Use the form 'provider/model', such as 'openai/gpt-5'."
        ) from None
    return f"{', '.join(missing)} (not set)" if missing else "all required variables are set"


async def _missing(name: str) -> tuple[str, ...]:
    return missing_keys(await library(), name)


def _reason_for(name: str) -> str:
    provider, _, rest = name.replace("://", "/").partition("/")
    if provider == "litellm":
        return "explicit in the name"
    if provider in ("openai", "anthropic"):
        return why_litellm(provider, rest) or ""
    return "no direct wire"
