"""`ModelFallback`: when a model fails, the next one of a chain answers.

Rules:

1. The chain is the model that was asked for, then the ones given here, in order; each is asked once.
2. Cancellation, `Veto`, `UsageError` and what hooks do wrong never make it go on.
3. When all have failed, the last error is raised, with a note that names what each of them said.
4. The only thing kept on the hook is which model rests until when (`cooldown`); agents and threads may share it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from reactivex import Observable

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import AgentFlowError, Aside, HookError, ModelError, UsageError, Veto
from agentflow.events import Event, HookEvent, PreReasoning
from agentflow.ground.values import frozen
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._matching import says_something
from agentflow.ports.model import Model
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.reactive.signals import SourceTimeoutError
from agentflow.specs import Clock

__all__ = ["Answered", "ModelChoices", "ModelFallback", "another_may_do"]


@frozen
class Answered:
    """Who answered one model call.

    Attributes:
        model: The name of the model that did.
        iteration: The round of reasoning.
        failed: The models that were asked before it: name, and type and text of the error.
        skipped: The models that were not asked because they rest after a failure.
    """

    model: str
    iteration: int
    failed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(slots=True)
class ModelChoices:
    """Who answered in a run: `event.context.state[ModelChoices].answered`, one entry for each call that was answered."""

    answered: list[Answered] = field(default_factory=list[Answered])


def another_may_do(error: Exception) -> bool:
    """Whether the next model is asked by default: after any `ModelError`, a broken connection, or a passed time limit.

    Example:
        >>> another_may_do(ModelError("context window full")), another_may_do(KeyError("bug"))
        (True, False)
    """
    if isinstance(error, AgentFlowError):
        return isinstance(error, ModelError | SourceTimeoutError)
    return isinstance(error, OSError)  # TimeoutError and ConnectionError are


_NOBODY: frozenset[str] = frozenset()


class _Candidate(NamedTuple):
    name: str
    model: str | Model | None  # None: the one that was asked for


class ModelFallback(Hook):
    """When the model fails, the next one of a chain is asked the same.

    Priority 110 (behaviour): outside `ModelCache`, `ModelRetry` and `RateLimit`, which so work for each model of the chain.

    Args:
        models: Names or models, in the order in which they are asked.
        after_first_chunk: When a part of the reply was seen already: `"restart"` it with the next model (its first chunk
            says `restart=True`), or `"raise"` the error.
        cooldown: Seconds for which a model that failed is asked last (longer, if the provider asked for a longer wait);
            counted for all agents that share the hook. None: no cooldown.
        fallback_if: Which errors make it go on; None: `another_may_do`.
        priority: Where it wraps.

    Example:
        >>> first = ScriptedModel([ModelError("down", retryable=True)], name="first")
        >>> backup = ScriptedModel(["The backup speaks."], name="backup")
        >>> reply = await Agent("a", first, hooks=[ModelFallback(backup)]).call("Hi")
        >>> reply.text
        'The backup speaks.'
    """

    events: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)
    wraps: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)

    def __init__(
        self,
        *models: str | Model,
        after_first_chunk: Literal["restart", "raise"] = "restart",
        cooldown: float | None = None,
        fallback_if: Callable[[Exception], bool] | None = None,
        priority: int = 110,
    ) -> None:
        if not models:
            raise UsageError("ModelFallback() was built without a model to fall back to; name at least one.")
        if cooldown is not None and cooldown < 0:
            raise UsageError(
                f"ModelFallback(cooldown={cooldown:g}): give seconds of 0 or more, or None for no cooldown."
            )
        self._models = tuple(_Candidate(model if isinstance(model, str) else model.name, model) for model in models)
        self._after = after_first_chunk
        self._cooldown = cooldown
        self._goes_on = fallback_if or another_may_do
        self._rests: dict[str, float] = {}  # single reads and writes only, so threads need no lock
        self.priority = priority

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Wrap the model call."""
        if not isinstance(event, PreReasoning):
            return source
        return Flux(partial(self._run, source, event))

    async def _run(self, source: ModelSource, event: PreReasoning) -> AsyncIterator[ModelChunk]:
        context = event.context
        candidates, resting = self._in_order((_Candidate(source.request.model, None), *self._models), context.clock)
        failed: list[tuple[str, str]] = []
        delivered = False
        for place, candidate in enumerate(candidates, 1):
            void = delivered
            model = candidate.model
            chunks = (source if model is None else source.using(model=model)).open()
            try:
                async for chunk in chunks:
                    if void:
                        void = False
                        chunk = replace(chunk, restart=True)
                    delivered = delivered or says_something(chunk)
                    yield chunk
            except Exception as error:
                failed.append((candidate.name, f"{type(error).__name__}: {error}"))
                self._rest(candidate.name, error, context.clock)
                seen = delivered and self._after == "raise"
                if seen or place == len(candidates) or not self._passes_on(error):
                    if len(failed) > 1:
                        error.add_note(
                            Aside(f"{self.name}: " + "; ".join(f"{name} failed: {said}" for name, said in failed))
                        )
                    raise
            else:
                skipped = tuple([one.name for one in candidates[place:] if one.name in resting]) if resting else ()
                self._note(context, Answered(candidate.name, event.iteration, tuple(failed), skipped))
                return
            finally:
                await close(chunks)

    def _passes_on(self, error: Exception) -> bool:
        return not isinstance(error, UsageError | Veto | HookError) and self._goes_on(error)

    def _note(self, context: RunContext, answered: Answered) -> None:
        self._rests.pop(answered.model, None)
        context.state[ModelChoices].answered.append(answered)

    def _rest(self, name: str, error: Exception, clock: Clock) -> None:
        if self._cooldown is None or not self._passes_on(error):
            return
        asked = error.retry_after if isinstance(error, ModelError) else None
        self._rests[name] = clock.monotonic() + max(self._cooldown, asked or 0.0)

    def _in_order(self, chain: tuple[_Candidate, ...], clock: Clock) -> tuple[tuple[_Candidate, ...], frozenset[str]]:
        """The candidates, those that rest last, and the names of those that do."""
        if not self._rests:
            return chain, _NOBODY
        now = clock.monotonic()
        resting = frozenset(one.name for one in chain if self._rests.get(one.name, now) > now)
        return tuple(sorted(chain, key=lambda one: one.name in resting)), resting
