"""Import agents, hooks and output types by `module:name`, and provide the event loop for their calls.

Modules in the current folder can be imported, as with `python -m`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar, cast

from agentflow._support.shown import one_line
from agentflow.agent.agent import Agent
from agentflow.hooks import Hook, HookSource
from agentflow.loop.output.output import OutputLike
from agentflow.models.clients import close_clients
from agentflow.terminal.cli.failures import CommandError, place_of


@contextmanager
def call_loop() -> Generator[asyncio.Runner]:
    """Provide the event loop for all calls; the connections of models are closed when it ends."""
    with asyncio.Runner() as runner:
        try:
            yield runner
        finally:
            runner.run(close_clients())


T = TypeVar("T")


def load_agent(target: str) -> Agent:
    """Import the agent named by `module:name`.

    Args:
        target: The name, such as `"shop.agents:assistant"`; the part after the colon may contain dots.

    Raises:
        CommandError: The text is malformed, the import fails, or the name is missing or not an agent.
    """
    return load_agent_or(target, Agent)


def load_agent_or(target: str, other: type[T]) -> Agent | T:
    """Import the agent named by `module:name`, or an object of the class `other`; errors as in `load_agent`."""
    found = _variable(target, "an agent", "shop.agents:assistant for the variable assistant in shop/agents.py")
    if not isinstance(found, Agent | other):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise CommandError(
            f"{target} is {what}, not an Agent. Name a variable that holds one: assistant = Agent('assistant', model)."
        )
    return cast("Agent[Any] | T", found)


def load_hook(target: str) -> HookSource:
    """Import the hook named by `module:name`: a hook, a decorated function, or a hook class, which is instantiated.

    Raises:
        CommandError: The text is malformed, the import fails, or the name is missing.
    """
    found = _variable(target, "a hook", "shop.guards:NewGuard")
    try:
        return found() if isinstance(found, type) and issubclass(found, Hook) else cast("Hook", found)
    except Exception as error:  # the user's own code
        raise CommandError(
            f"{target} cannot be created without arguments ({error}). Use the name of a hook, not its class."
        ) from error


def load_value(target: str, kind: type[T], such_as: str) -> T:
    """Import the object named by `module:name`, which must be a `kind`.

    Raises:
        CommandError: The text is malformed, the import fails, or the name is missing or of another class.
    """
    found = _variable(target, f"a {kind.__name__}", such_as)
    if not isinstance(found, kind):
        raise CommandError(f"{target} is of type {type(found).__name__}, not a {kind.__name__}.")
    return found


def load_output(target: str) -> OutputLike[Any]:
    """Import the `output=` value named by `module:name`: a type, a function or an `Output`.

    Raises:
        CommandError: The text is malformed, the import fails, or the name is missing.
    """
    return _variable(target, "an output type", "shop.orders:Order")


def _variable(target: str, what: str, such_as: str) -> Any:
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name or module_name.endswith(".py") or set("/\\") & set(module_name):
        raise CommandError(f"{target!r} does not name {what}. Use module:name, such as {such_as}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _module(module_name, target)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        agents = ", ".join([key for key, value in vars(module).items() if isinstance(value, Agent)])
        raise CommandError(f"The module {module_name!r} has no {name!r}. Its agents: {agents or 'none'}.") from None


def _module(name: str, target: str) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):  # otherwise the module itself imports what is missing
            raise CommandError(
                f"There is no module {missing!r} (needed for {target!r}) in the current folder or the installed packages."
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> CommandError:
    text = one_line(str(error.msg if isinstance(error, SyntaxError) else error))
    return CommandError(
        f"The module {name!r} cannot be imported: {type(error).__name__}{': ' if text else ''}{text} ({place_of(error)})."
    )
