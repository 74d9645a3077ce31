"""Load hooks of installed packages by name.

A package offers a hook with an entry point in the group `agentflow.hooks`:

    [project.entry-points."agentflow.hooks"]
    redact = "acme_hooks:Redact"

The entry point should be a hook, a list of hooks, a hook class, or a function without arguments that returns one of
these. Nothing is loaded automatically: `installed_hooks` loads the entry points named in its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from agentflow.errors import UsageError, close_to
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import hooks_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "agentflow.hooks"
"""The entry point group."""


def installed_hook_names() -> dict[str, str]:
    """Return the names of all hooks that installed packages offer, each with its package and version. Nothing is
    imported.

    A name that two packages offer is listed as `package:name`, once for each package.

    Example:
        >>> for name, package in installed_hook_names().items():
        ...     print(name, "from", package)
    """
    return {name: _package(entry) for name, entry in _offers().items()}


def installed_hooks(*names: str) -> list[Hook]:
    """Load hooks that installed packages offer.

    Args:
        names: The names of the entry points; `"package:name"` if two packages use the same name.

    Returns:
        The hooks, in the order of the names. Classes and functions are called each time.

    Raises:
        UsageError: A name is unknown, or its entry point cannot be loaded or is not a hook; the message names the
            package.

    Example:
        >>> agent = Agent("clerk", "openai/gpt-5", hooks=installed_hooks())  # no names, so nothing is loaded
    """
    offers = _offers() if names else {}
    found: list[Hook] = []
    for name in names:
        entry = offers.get(name)
        if entry is None:
            raise _unknown(name, offers)
        found.extend(_load(name, entry))
    return found


def _offers() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes 7 ms, so it is imported only if needed

    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        others = by_name.setdefault(entry.name, [])
        # `sys.path` may contain a folder twice.
        if all(_distribution(entry) != _distribution(other) for other in others):
            others.append(entry)
    offers: dict[str, EntryPoint] = {}
    for name in sorted(by_name):
        entries = sorted(by_name[name], key=_distribution)
        if len(entries) == 1:
            offers[name] = entries[0]
        else:
            offers.update({f"{_distribution(entry)}:{name}": entry for entry in entries})
    return offers


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed package"


def _unknown(name: str, offers: dict[str, EntryPoint]) -> UsageError:
    if not offers:
        return UsageError(
            f"There is no hook named {name!r}: no installed package offers hooks (entry points {GROUP!r})."
        )
    listed = ", ".join(f"{offer} ({_package(entry)})" for offer, entry in offers.items())
    ambiguous = [offer for offer in offers if offer.endswith(f":{name}")]
    if ambiguous:
        return UsageError(f"Several packages offer a hook {name!r}. Use {' or '.join(map(repr, ambiguous))}.")
    close = close_to(name, offers, 1)
    did_you = f" Did you mean {close[0]!r}?" if close else ""
    return UsageError(f"No installed package offers a hook {name!r}.{did_you} Installed: {listed}.")


def _load(name: str, entry: EntryPoint) -> tuple[Hook, ...]:
    where = f"Hook {name!r} of package {_package(entry)} ({entry.value})"
    try:
        target: Any = entry.load()
    except Exception as error:  # code of another package may raise anything
        raise UsageError(f"{where} cannot be loaded: {type(error).__name__}: {error}.") from error
    if callable(target) and not isinstance(target, Hook):  # a `FunctionHook` is callable, but is a hook already
        try:
            target = cast("Callable[[], Any]", target)()
        except Exception as error:  # as above
            raise UsageError(
                f"{where} cannot be created: {type(error).__name__}: {error}. An entry point is called without arguments; "
                "if it needs some, import it and create the hook yourself."
            ) from error
    try:
        return hooks_of(target)
    except UsageError as error:
        raise UsageError(f"{where} is not a hook: {error}") from error
