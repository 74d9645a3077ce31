"""`ModelFallback`: if a model fails, the next one of a chain answers.

Rules:

1. The chain is the requested model, then those of the hook, in order; models in a cooldown come last. Each is tried once.
2. Cancellation, `Veto`, `UsageError` and hooks' own errors never cause a fallback.
3. If all models have failed, the last error is raised, with a note of every failure.
4. The hook's only state is the cooldown of each model; agents and threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from agentflow._support.values import frozen
from agentflow.errors import AgentFlowError, FailureNote, HookError, ModelError, UsageError, Veto
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._attempts import Attempt, RetriedChunks
from agentflow.reactive import Flux
from agentflow.reactive.signals import SourceTimeoutError
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import PreReasoning
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import Clock

__all__ = ["ModelAnswer", "ModelChoices", "ModelFallback", "another_may_do"]


@frozen
class ModelAnswer:
    """The model that answered one model call.

    Attributes:
        model: The name of the model that answered.
        iteration: The round of reasoning.
        failed: The models that failed before, each with the type and text of its error.
        skipped: The models that were skipped because of their cooldown.
    """

    model: str
    iteration: int
    failed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(slots=True)
class ModelChoices:
    """The models that answered in a run: `event.context.state[ModelChoices].answered`, one entry for each answered call."""

    answered: list[ModelAnswer] = field(default_factory=list[ModelAnswer])


def another_may_do(error: Exception) -> bool:
    """Return whether to try the next model by default: after any `ModelError`, a broken connection, or a time limit.

    Example:
        >>> another_may_do(ModelError("context window full")), another_may_do(KeyError("bug"))
        (True, False)
    """
    if isinstance(error, AgentFlowError):
        return isinstance(error, ModelError | SourceTimeoutError)
    return isinstance(error, OSError)  # includes TimeoutError and ConnectionError


_NO_MODELS: frozenset[str] = frozenset()


class _Candidate(NamedTuple):
    name: str
    model: str | Model | None  # None means the requested model


class ModelFallback(Hook):
    """Sends a request to the next model of a chain if one fails.

    Priority 110 (behaviour): outside `ModelCache`, `ModelRetry` and `RateLimit`, so these apply to each model of the chain.

    Args:
        models: Names or models, in the order in which they are tried.
        after_first_chunk: If a part of the reply was delivered already: `"restart"` it with the next model (its first chunk has
            `restart=True`), or `"raise"` the error.
        cooldown: Seconds for which a model that failed is tried last (longer, if the provider asked for a longer wait); shared
            by all agents with the hook. None: no cooldown.
        fallback_if: Decides which errors cause a fallback; None: `another_may_do`.
        priority: The priority of the hook.

    Example:
        >>> first = ScriptedModel([ModelError("down", retryable=True)], name="first")
        >>> backup = ScriptedModel(["The backup speaks."], name="backup")
        >>> reply = await Agent("a", first, hooks=[ModelFallback(backup)]).call("Hi")
        >>> reply.text
        'The backup speaks.'
    """

    def __init__(
        self,
        *models: str | Model,
        after_first_chunk: Literal["restart", "raise"] = "restart",
        cooldown: float | None = None,
        fallback_if: Callable[[Exception], bool] | None = None,
        priority: int = 110,
    ) -> None:
        if not models:
            raise UsageError("ModelFallback() needs at least one model to fall back to.")
        if cooldown is not None and cooldown < 0:
            raise UsageError(
                f"ModelFallback(cooldown={cooldown:g}): use seconds of 0 or more, or None for no cooldown."
            )
        self._models = tuple(_Candidate(model if isinstance(model, str) else model.name, model) for model in models)
        self._after = after_first_chunk
        self._cooldown = cooldown
        self._falls_back = fallback_if or another_may_do
        self._cooldowns: dict[str, float] = {}  # single reads and writes only, so threads need no lock
        self.priority = priority

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Wrap the model call."""
        return RetriedChunks(partial(self._first, source, event))

    def _first(self, source: ModelSource, event: PreReasoning) -> Attempt:
        context = event.context
        candidates, cooling = self._in_order((_Candidate(source.request.model, None), *self._models), context.clock)
        failed: list[tuple[str, str]] = []

        def next_source() -> ModelSource:
            # Each earlier candidate has failed once, so the number of failures is the index of the current one.
            model = candidates[len(failed)].model
            return source if model is None else source.using(model=model)

        async def after_failure(error: Exception, delivered: bool) -> ModelSource | None:
            name = candidates[len(failed)].name
            failed.append((name, f"{type(error).__name__}: {error}"))
            self._start_cooldown(name, error, context.clock)
            is_last = len(failed) == len(candidates) or (delivered and self._after == "raise")
            if not is_last and self._passes_on(error):
                return next_source()
            if len(failed) > 1:  # if only one model failed, its error says everything
                error.add_note(
                    FailureNote(f"{self.name}: " + "; ".join(f"{name} failed: {text}" for name, text in failed))
                )
            return None

        def completed() -> None:
            skipped = ()
            if cooling:
                skipped = tuple([other.name for other in candidates[len(failed) + 1 :] if other.name in cooling])
            self._note(context, ModelAnswer(candidates[len(failed)].name, event.iteration, tuple(failed), skipped))

        return Attempt(next_source(), after_failure, completed)

    def _passes_on(self, error: Exception) -> bool:
        return not isinstance(error, UsageError | Veto | HookError) and self._falls_back(error)

    def _note(self, context: RunContext, answer: ModelAnswer) -> None:
        """Record the model that answered, and end its cooldown."""
        self._cooldowns.pop(answer.model, None)
        context.state[ModelChoices].answered.append(answer)

    def _start_cooldown(self, name: str, error: Exception, clock: Clock) -> None:
        if self._cooldown is None or not self._passes_on(error):
            return
        wait = error.retry_after if isinstance(error, ModelError) else None
        self._cooldowns[name] = clock.monotonic() + max(self._cooldown, wait or 0.0)

    def _in_order(self, chain: tuple[_Candidate, ...], clock: Clock) -> tuple[tuple[_Candidate, ...], frozenset[str]]:
        """Return the candidates, with models in their cooldown at the end, and the names of these models."""
        if not self._cooldowns:
            return chain, _NO_MODELS
        now = clock.monotonic()
        cooling = frozenset(candidate.name for candidate in chain if self._cooldowns.get(candidate.name, now) > now)
        # Sorting is stable: the order is kept within both groups.
        return tuple(sorted(chain, key=lambda candidate: candidate.name in cooling)), cooling
