"""All hooks of a call, and the chains compiled from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from agentflow._support.facade import objects_of
from agentflow._support.lazy import later
from agentflow.hooks.chain import Chain, ChainEntry
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import WRAPPED, around_of, call_of, for_its_tools, listens_to, of_its_replies
from agentflow.hooks.recording import (
    ChangeListener,
    ConditionalWrapper,
    ModelWork,
    SideWrapper,
    ToolWork,
    VerdictListener,
    WorkListener,
)
from agentflow.hooks.wrapping import Around
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import EVENT_TYPES, Event, PostReasoning, PreActing, PreReasoning
from agentflow.vocabulary.ports.model import ModelRequest

if TYPE_CHECKING:
    from agentflow.hooks import recorded_calls, recorded_layers
else:
    recorded_calls = later("agentflow.hooks.recorded_calls")
    recorded_layers = later("agentflow.hooks.recorded_layers")


class HookSet:
    """An agent's hooks, in order. Iterate over them, or `print(agent.hooks.describe())`."""

    __slots__ = ()

    def describe(self) -> str:
        """Return the order in which hooks run, event by event, as text."""
        lines: list[str] = []
        own = full_hooks(self)
        for kind in EVENT_TYPES:
            chain = own.chain(kind)
            arounds = own.arounds(kind)
            if chain is None and not arounds:
                continue
            lines.append(kind.__name__)
            for title, entries in _parts(chain):
                lines.extend(f"  {title:<9}{e.hook.priority:>5}  {e.hook.name}" for e in entries)
            lines.extend(f"  {'around':<9}{hook.priority:>5}  {hook.name}" for _, hook in arounds)
        return "\n".join(lines) or "no hooks"

    def __len__(self) -> int:
        return len(full_hooks(self).hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(full_hooks(self).hooks)


@objects_of(HookSet)
class FullHookSet(HookSet):
    """The compiled hooks of a run. Immutable: `with_hooks` and `without` return new sets, so a run keeps its own.

    Args:
        hooks: The hooks, as registered; those of narrower scopes first.
        process: Process-wide hooks that match. Among hooks of the same priority they come last, and `with_hooks` adds
            hooks before them.

    Attributes:
        handled: The event types that a hook handles; known once the chains are compiled.
        wraps: The event types with work that a hook wraps.
        conditions: The types in `wraps` that only `ConditionalWrapper`s wrap, with the conditions of these hooks.
        model_listeners: `on_model_work` of each `WorkListener`, innermost first.
        tool_listeners: `on_tool_work` of each `WorkListener`, innermost first.
    """

    __slots__ = (
        "_arounds",
        "_chains",
        "_narrower",
        "compiled",
        "conditions",
        "handled",
        "hooks",
        "listeners",
        "model_listeners",
        "own",
        "process",
        "tool_listeners",
        "wraps",
    )

    def __init__(self, hooks: Iterable[Hook] = (), process: Iterable[Hook] = ()) -> None:
        # Sorting is stable, so ties keep the order of scope and registration.
        self.own: tuple[Hook, ...] = tuple(sorted(hooks, key=_rank))
        self.process: tuple[Hook, ...] = tuple(process)
        self.hooks: tuple[Hook, ...] = self.own
        if self.process:
            self.hooks = tuple(sorted((*self.own, *self.process), key=_rank))
        wrapping = {kind: [hook for hook in self.hooks if around_of(hook, kind)] for kind in WRAPPED}
        self.wraps = frozenset([kind for kind, hooks in wrapping.items() if hooks])
        self.conditions: dict[type[Event], tuple[Callable[[RunContext], bool], ...]] = {}
        for kind in self.wraps:
            conditions = tuple([hook.wraps_in for hook in wrapping[kind] if isinstance(hook, ConditionalWrapper)])
            if len(conditions) == len(wrapping[kind]):
                self.conditions[kind] = conditions
        self.listeners = tuple([hook for hook in self.hooks if isinstance(hook, ChangeListener)])
        # Keyed by identity: a hook that was registered in two scopes is notified once.
        working = {id(hook): hook for hook in reversed(self.hooks) if isinstance(hook, WorkListener)}.values()
        self.model_listeners = tuple([hook.on_model_work for hook in working if not around_of(hook, PreReasoning)])
        self.tool_listeners = tuple(
            [
                for_its_tools(hook.on_tool_work, hook) if hook.only_tools else hook.on_tool_work
                for hook in working
                if not around_of(hook, PreActing)
            ]
        )
        # Chains are compiled on first use: most agents' hooks handle few events.
        self.compiled: dict[type[Event], Chain | None] | None = None
        self.handled: frozenset[type[Event]] = frozenset()
        self._chains: dict[type[Event], Chain | None] = {}
        self._arounds: dict[type[Event], tuple[tuple[Around, Hook], ...]] = {}
        self._narrower: dict[tuple[tuple[Hook, ...], tuple[Hook, ...]], FullHookSet] | None = None

    def with_hooks(self, hooks: Iterable[Hook]) -> FullHookSet:
        """Return a copy of the set with these hooks added last."""
        added = tuple(hooks)
        return FullHookSet((*self.own, *added), self.process) if added else self

    def without(self, hook: Hook) -> FullHookSet:
        """Return a set without this hook."""
        return FullHookSet((h for h in self.own if h is not hook), (h for h in self.process if h is not hook))

    def inside(self, narrower: tuple[Hook, ...], process: tuple[Hook, ...]) -> FullHookSet:
        """Return the set with the hooks of a narrower scope, which come first in ties. It is built once per combination.

        Args:
            narrower: The hooks of the tool or turn.
            process: The process-wide hooks that match it.
        """
        if not narrower and len(process) == len(self.process):
            return self
        cache = self._narrower
        if cache is None:
            cache = self._narrower = {}
        found = cache.get((narrower, process))
        if found is None:
            found = cache[narrower, process] = FullHookSet((*narrower, *self.own), process)
        return found

    def chain(self, kind: type[Event]) -> Chain | None:
        """Return the chain of an event type, or None if no hook handles it."""
        try:
            return self._chains[kind]
        except KeyError:
            chain = self._chains[kind] = self._compile(kind)
            return chain

    @property
    def all_chains(self) -> dict[type[Event], Chain | None]:
        """All chains by event type; compiled once."""
        chains = self.compiled
        if chains is None:
            chains = {kind: self.chain(kind) for kind in EVENT_TYPES}
            self.handled = frozenset([kind for kind, chain in chains.items() if chain is not None])
            self.compiled = chains
        return chains

    def _compile(self, kind: type[Event]) -> Chain | None:
        parts: tuple[list[ChainEntry], list[ChainEntry], list[ChainEntry]] = ([], [], [])
        # A hook that was registered in two scopes runs once, at the first of its positions.
        known: set[int] = set()
        for hook in self.hooks:
            if id(hook) not in known and listens_to(hook, kind):
                known.add(id(hook))
                call = call_of(hook, kind)
                # Listeners are not reported to each other.
                if self.listeners and not (hook.observer and isinstance(hook, ChangeListener)):
                    call = recorded_calls.recorded(call, hook, kind, self.listeners)
                    # The chain may call hooks that a reply does not concern; recording such a call would cost more than
                    # the check.
                    if kind is PostReasoning and type(hook).concerns is not Hook.concerns:
                        call = of_its_replies(call, hook)
                parts[_class_of(hook)].append(ChainEntry(call, hook))
        deciders, observers = (*parts[0], *parts[1]), parts[2]
        # If no hook can decide, there is no verdict to report.
        if not deciders and all(
            isinstance(entry.hook, VerdictListener) and kind in entry.hook.for_verdicts for entry in observers
        ):
            return None
        return Chain(kind, *map(tuple, parts))

    def wraps_in(self, kind: type[Event], context: RunContext) -> bool:
        """Whether hooks need to wrap the next work of a Pre event in this call."""
        conditions = self.conditions.get(kind)
        if conditions is None:
            return True
        for wraps_in in conditions:  # noqa: SIM110 - `any` with a generator costs three times as much
            if wraps_in(context):
                return True
        return False

    def observed_model(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> ModelWork:
        """Return the work of a model, observed by all listeners."""
        for listen in self.model_listeners:
            # None means that the listener does not observe this work.
            work = listen(event, request, work) or work
        return work

    def observed_tool(self, event: PreActing, work: ToolWork) -> ToolWork:
        """Return the work of a tool, observed by all listeners."""
        for listen in self.tool_listeners:
            work = listen(event, work) or work
        return work

    @property
    def side_wrappers(self) -> tuple[SideWrapper, ...]:
        """The hooks that wrap side calls, innermost first."""
        return tuple([hook for hook in reversed(self.hooks) if isinstance(hook, SideWrapper)])

    def arounds(self, kind: type[Event]) -> tuple[tuple[Around, Hook], ...]:
        """Return the hooks that wrap the work of a Pre event, outermost first."""
        found = self._arounds.get(kind)
        if found is None:
            distinct = {id(hook): hook for hook in self.hooks}  # in the chain's order: editing hooks, guards, observers
            wrapping = [(around, hook) for hook in distinct.values() if (around := around_of(hook, kind)) is not None]
            if self.listeners:
                wrapping = [
                    pair
                    if isinstance(pair[1], ChangeListener)
                    else (recorded_layers.recorded_around(*pair, self.listeners), pair[1])
                    for pair in wrapping
                ]
            # Outside the recording, so that calls of other tools are not recorded.
            if kind is PreActing:
                wrapping = [
                    (for_its_tools(around, hook) if hook.only_tools else around, hook) for around, hook in wrapping
                ]
            found = self._arounds[kind] = tuple(wrapping)
        return found


def full_hooks(hooks: HookSet) -> FullHookSet:
    """Return the set with the interface that the package uses."""
    assert isinstance(hooks, FullHookSet)  # every `HookSet` is a `FullHookSet`
    return hooks


def _parts(chain: Chain | None) -> tuple[tuple[str, tuple[ChainEntry, ...]], ...]:
    if chain is None:
        return ()
    return (("edit", chain.editors), ("guard", chain.guards), ("observe", chain.observers))


def _class_of(hook: Hook) -> int:
    return 2 if hook.observer else 1 if hook.guard else 0


def _rank(hook: Hook) -> tuple[int, float]:
    return _class_of(hook), hook.priority
