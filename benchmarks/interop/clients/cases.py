"""Shared code of this folder's scripts. They run without agentflow installed."""

import asyncio
import json
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

warnings.simplefilter("ignore")
OPENAI, ANTHROPIC = sys.argv[1:3]
MODEL = "claude-sonnet-4-5"


def versions(*packages: str) -> None:
    """Announce the next case."""
    print(json.dumps({"versions": {name: version(name) for name in packages}}), flush=True)


def case(name: str) -> Callable[[Callable[[], Any]], None]:
    """Run a function, and say how it went."""

    def run(body: Callable[[], Any]) -> None:
        try:
            result = body()
            if asyncio.iscoroutine(result):
                asyncio.run(result)
            said = {"case": name, "ok": True, "why": ""}
        except BaseException as error:
            said = {"case": name, "ok": False, "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(said), flush=True)

    return run


def same(found: object, wanted: object) -> None:
    """Complain unless they are equal."""
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")
