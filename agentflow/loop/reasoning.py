"""One reply of the model: request, stream, fold, verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, assert_never

from agentflow._support.cancellation import cancel_requests
from agentflow.errors import HookContractError, ModelError, Veto
from agentflow.loop.journal import wait_if_needed
from agentflow.loop.run import RunBase
from agentflow.loop.stage import Attempts, Stage, apply_steps, close_quietly, model_source, wrap
from agentflow.reactive import Flux
from agentflow.reactive.flux import steps_over
from agentflow.reactive.iterators import raise_in
from agentflow.reactive.operators.items import DROP, Step
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.events import ErrorPhase, Event, PostReasoning, PreReasoning, Purpose, ReasoningChunk
from agentflow.vocabulary.facts import Injected, Reasoned, RoundSuspended, new_fact
from agentflow.vocabulary.messages import Msg, Pending, ToolUseBlock, as_messages, message, with_metadata
from agentflow.vocabulary.ports.model import Model, ModelRequest, resolve_model
from agentflow.vocabulary.specs import ModelOptions, Usage, one_call
from agentflow.vocabulary.transcript import MessageView, legalise, with_appended
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Stop, Suspend

__all__ = ["reason"]

SUMMARY_PROMPT = (
    "The limit of {limit} rounds is reached. Do not call tools; answer now with what you have found, and say what is "
    "missing."
)


_NO_CALLS = ModelOptions(tool_choice="none")
_Values: TypeAlias = tuple[Msg, Usage, float, Purpose, str]
"""The fields of `PostReasoning`: reply, usage, duration, purpose, model."""


async def reason(run: RunBase, purpose: Purpose) -> None:
    """Get one reply, from the model or a verdict, and record it."""
    machine, config, events, journal, additions = run.machine, run.config, run.events, run.journal, run.additions
    events.iteration = machine.iteration + 1
    transcript = machine.transcript
    if machine.compacted is None:
        # The history is legal by construction, so only a request that a hook has changed needs `legalise`.
        base, legal = transcript.view(additions.head), transcript.sendable
    else:
        base, legal = machine.request_view(additions.head), False
    messages: Sequence[Msg] = base
    options = run.settings.options
    if purpose == "summary":
        messages, options = with_appended(messages, summary_prompt(run)), without_calls(run, options)
    if additions.transient:
        messages, additions.transient = with_appended(messages, *additions.transient), ()
    model, tools = config.model, config.specs
    model_name = model if isinstance(model, str) else model.name
    event: PreReasoning | None = None
    if PreReasoning not in events.handled:
        events.seq += 1
    else:
        stored = len(transcript.stored)  # any later messages were injected by the hooks
        additions.repeatable, additions.injections = "reasoning", 0
        try:
            emitted = events.fire(PreReasoning, (messages, tools, model_name, options, purpose))
            event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        finally:
            additions.repeatable = ""
        if emitted is not None:  # otherwise only the reader receives the event: no hook has run and injected messages
            # Hooks of `MessagesAdded` receive injected messages first, then the model does.
            if journal.unannounced or journal.requested:
                await journal.announce(events)
            if event is not None:
                if event.decision is not None and await _decided(run, event.verdict, event.decision.hook, purpose):
                    return
                # Replaced only if a hook has changed it: the agent's model can be an object, which its name must not replace.
                if event.model != model_name:
                    model = model_name = event.model
                # Forbidden again for the summary, since a hook may have allowed calls, and no round follows.
                options = event.options if purpose == "reason" else without_calls(run, event.options)
                messages, tools = event.input_messages, tuple(event.tools)
            if len(transcript) > stored or additions.transient:  # messages that hooks injected are part of this request
                messages = with_appended(messages, *transcript.since(stored), *additions.transient)
                additions.transient = ()
    if messages is not base:
        # A view that only adds system messages before the legal history and user texts after it is legal too.
        legal = legal and isinstance(messages, MessageView) and messages.only_adds_to(base)
    if not legal:
        messages = legalise(messages, config.new_id)
    request = ModelRequest(messages, tools, options, model_name)
    if run.scope.stopped:  # a request costs money, so a cancelled run sends none
        run.scope.check()
    # Messages that are injected from here on are stored after the reply.
    journal.awaits_place = True
    started = config.clock.monotonic()
    hooks = events.hooks
    try:
        if PreReasoning in hooks.wraps and (not hooks.conditions or hooks.wraps_in(PreReasoning, run.context)):
            if event is None:
                event = events.sealed(PreReasoning, (messages, tools, model_name, options, purpose))
            chunks, model_name = await _through_arounds(run, model, request, event)
        else:
            source = resolve_model(model) if isinstance(model, str) else model
            if not hooks.model_listeners:
                stream = source.stream(request)
            else:
                if event is None:
                    event = events.sealed(PreReasoning, (messages, tools, model_name, options, purpose))
                stream = hooks.observed_model(event, request, partial(source.stream, request))()
            chunks = await _pull(run, stream, [], None)
    except Veto as veto:  # a wrapping hook raised it, which is equivalent to Deny
        await _decided(run, Deny(veto.reason), "around", purpose)
        return
    except BaseException as error:  # raised again, unless it is a failure from which a hook recovers
        recovered = await _without_reply(run, request.model, error)
        if recovered is None:
            raise
        reply, model_name = recovered, ""
    else:
        reply = fold(chunks, used_ids=transcript.used_ids, new_id=config.new_id)
    used = one_call(reply.usage)
    # Added before the hooks of PostReasoning run, so that budgets count this reply.
    run.add_usage(used)
    duration_ms = (config.clock.monotonic() - started) * 1000
    chain = events.chains[PostReasoning]
    if chain is None or chain.can_skip(reply):
        events.seq += 1
        post: PostReasoning | None = None
        if events.buffer is not None:
            post = events.sealed(PostReasoning, (reply, used, duration_ms, purpose, model_name))
        accepting = _record(run, post, reply, used, duration_ms, purpose, model_name)
    else:
        accepting = _accept(run, reply, used, duration_ms, purpose, model_name)
    if accepting is not None:
        await accepting


def _accept(run: RunBase, *values: *_Values) -> Awaitable[object] | None:
    """Pass a reply through the Post chain, record it, and hand over the event. Return an awaitable only if this needs
    time."""
    emitted = run.events.decide(PostReasoning, values)
    if emitted is None or isinstance(emitted, Event):
        return _record(run, emitted, *values)
    return _accept_slowly(run, emitted, values)


async def _accept_slowly(run: RunBase, emitted: Awaitable[PostReasoning | None], values: _Values) -> None:
    """Accept a reply after hooks that need time."""
    await wait_if_needed(_record(run, await emitted, *values))


def _record(
    run: RunBase,
    event: PostReasoning | None,
    reply: Msg,
    used: Usage,
    duration_ms: float,
    purpose: Purpose,
    model: str,
) -> Awaitable[object] | None:
    """Record a reply after its hooks, and hand over the event."""
    if event is not None:
        reply = event.reasoning_result
    summary = purpose == "summary"
    if summary:
        reply = _without_calls(reply)
    reasoned = new_fact(
        Reasoned, (run.run_id, run.events.iteration, reply, used, duration_ms, True, (), None, summary, model)
    )
    if event is None:
        return run.journal.append(reasoned)
    decision = event.decision
    writing = run.journal.append(reasoned) if decision is None else _judged(run, event.verdict, decision.hook, reasoned)
    return run.events.hand_over_after(writing, event)


def _judged(
    run: RunBase, verdict: Again | Stop | Suspend | None, hook: str, reasoned: Reasoned
) -> Awaitable[None] | None:
    """Record a reply with the verdict on it."""
    match verdict:
        case None:
            return run.journal.append(reasoned)
        case Again():
            follow_up = _follow_up(verdict, hook, run.config.new_id)
            reasoned = reasoned._replace(accepted=False, follow_up=follow_up)
            return run.journal.append(reasoned, origin="superseded")
        case Stop(reason=reason):
            run.outcome = "stopped"
            return run.journal.append(reasoned._replace(stop=reason))
        case Suspend():
            # Written together: after a crash between the two, the reply's calls would run without the decision.
            return run.journal.append(reasoned, _suspension(run, reasoned, verdict, hook))
        case _:
            assert_never(verdict)


async def _without_reply(run: RunBase, model: str, error: BaseException) -> Msg | None:
    """Return the reply with which a hook recovers from a failed model call, or None if the error should be raised."""
    if isinstance(error, Exception):
        return await _recovered(run, error)
    if not isinstance(error, asyncio.CancelledError) or run.scope.is_cancelled():
        return None
    return await _model_cancelled(run, model, error)


def summary_prompt(run: RunBase) -> Msg:
    """Return the message that requests the summary at the limit; never stored."""
    text = SUMMARY_PROMPT.format(limit=run.machine.max_iterations)
    return with_metadata(Msg.user(text, id=run.config.new_id("msg_")), synthetic="summary")


def without_calls(run: RunBase, options: ModelOptions) -> ModelOptions:
    """Return the options of the summary, which forbid calls. The tools stay in the request, so that caches of it stay valid."""
    return options.merge(_NO_CALLS) if run.config.specs else options


async def _decided(run: RunBase, verdict: Deny | Answer | Stop | None, hook: str, purpose: Purpose) -> bool:
    """Apply a verdict on `PreReasoning`. Return whether there is one, so that the model is not called."""
    match verdict:
        case None:
            return False
        case Answer(value=value):
            chunk = ModelChunk.of(as_reply(value, hook, "PreReasoning", run.config.new_id))
            run.journal.awaits_place = True
            await _stream_one(run, chunk)
            reply = fold((chunk,), used_ids=run.machine.transcript.used_ids, new_id=run.config.new_id)
            # Without the usage that the hook's message may have, since no model was called.
            journal_reply = message(*_parts(reply), Usage(), reply.finish_reason)
            await wait_if_needed(_accept(run, journal_reply, Usage(), 0.0, purpose, ""))
        case Deny(reason=reason):
            await _closed_with(run, reason, "denied")
        case Stop(reason=reason):
            await _closed_with(run, reason, "stopped")
        case _:
            assert_never(verdict)
    return True


async def _closed_with(run: RunBase, reason: str, outcome: Literal["denied", "stopped"]) -> None:
    """Record a synthetic reply with the reason, which ends the call."""
    closing = run.say(reason or outcome, outcome)
    run.outcome = outcome
    reasoned = Reasoned(run.run_id, run.events.iteration, closing, Usage(), 0.0, stop=reason)
    await wait_if_needed(run.journal.append(reasoned))
    await run.journal.flush()


def _parts(msg: Msg) -> tuple[Any, Any, str, Any]:
    return msg.role, msg.content, msg.id, msg.metadata


def as_reply(value: object, hook: str, event: str, new_id: Callable[[str], str]) -> Msg:
    """Return the assistant's message for the value of a verdict: a `Msg` or a text."""
    if isinstance(value, Msg) and value.role == "assistant":
        return value
    if isinstance(value, Msg):
        return replace(value, role="assistant")
    if isinstance(value, str):
        return Msg.assistant(value, id=new_id("msg_"))
    raise HookContractError(hook, event, f"a verdict with {type(value).__name__}", "a verdict with a Msg or a str")


async def _stream_one(run: RunBase, chunk: ModelChunk) -> None:
    await run.events.emit(ReasoningChunk, (chunk, 1, False, [chunk], 1))


async def _pull(
    run: RunBase,
    stream: AsyncIterator[ModelChunk],
    chunks: list[ModelChunk],
    attempts: Attempts | None,
    steps: Sequence[Step] = (),
) -> list[ModelChunk]:
    """Read the chunks of a reply: apply the plain functions of wrapping hooks and emit the event of each. The hot path."""
    events, scope = run.events, run.scope
    handled = ReasoningChunk in events.handled
    buffer = events.buffer if handled and events.chains[ReasoningChunk] is None else None
    attempt, runs_seen = 1, 1
    chunk: Any = None
    try:
        async for chunk in stream:
            if steps:
                chunk = apply_steps(run, PreReasoning, steps, chunk, DROP)
                if chunk is DROP:
                    if scope.stopped:
                        scope.check()
                    continue
            restart = chunk.restart
            if restart or attempts is not None:
                # A hook runs the model again, or the model itself restarts: earlier chunks are not part of the reply.
                if attempts is not None and attempts.count > runs_seen:
                    attempt += attempts.count - runs_seen
                    runs_seen = attempts.count
                    restart = restart or bool(chunks)
                elif restart:
                    attempt += 1
                if restart:
                    _bill(run, chunks)
                    # Not `clear`: the events of the earlier attempt refer to the old list.
                    chunks = []
            chunks.append(chunk)
            if handled:
                values = (chunk, attempt, restart, chunks, len(chunks))
                if buffer is None:
                    emitted: Any = events.fire(ReasoningChunk, values)
                else:  # only the reader receives it
                    events.seq += 1
                    emitted = buffer.put(ReasoningChunk.make(events, values))
                if emitted is not None and not isinstance(emitted, Event) and (buffer is None or not scope.stopped):
                    try:
                        await emitted
                    except asyncio.CancelledError as error:
                        # A time limit that the model or a hook keeps open over its `yield` has cancelled the task. Raise
                        # this at that `yield`, so that the limit can convert it to its own error (see `Stage.throw`).
                        if scope.is_cancelled() and not scope.stopped:
                            await (raise_in(stream, error) if attempts is None else attempts.stage.throw(error))
                        raise
            else:
                events.seq += 1
            if scope.stopped:
                scope.check()
        if scope.stopped:  # cancelled while the model cleaned up
            scope.check()
        if cancel_requests():  # the model or a hook has cancelled this task
            await asyncio.sleep(0)  # raises the cancellation here, unless it was raised and swallowed earlier
            scope.notify("swallowed")
    except GeneratorExit:  # the coroutine is being closed, so the stream cannot be awaited
        raise
    except BaseException as error:  # the reply is incomplete, whatever ended it
        # With `attempts`, the stage closes the stream.
        await _settle_incomplete(run, chunks, error, stream if attempts is None else None)
        # Checked only after a failure, since a check of each chunk would cost time in every reply.
        if isinstance(error, AttributeError) and chunk is not None and type(chunk) is not ModelChunk:
            raise _no_chunk(run, chunk) from None
        raise
    return chunks


async def _settle_incomplete(
    run: RunBase, chunks: list[ModelChunk], error: BaseException, stream: AsyncIterator[ModelChunk] | None
) -> None:
    """Bill a reply that was cancelled or has failed, store its text if it was cancelled, and close its stream."""
    _bill(run, chunks)
    try:
        if not isinstance(error, Exception) and (
            not isinstance(error, asyncio.CancelledError) or run.scope.is_cancelled()
        ):
            await keep_partial(run, chunks)
    finally:  # even if cancelled again during the write
        if stream is not None:
            await close_quietly(stream)


def _no_chunk(run: RunBase, actual: object) -> ModelError:
    fix = "yield ModelChunk(text)" if isinstance(actual, str) else "yield ModelChunk(...)"
    or_hook = " or a hook that wraps it" if PreReasoning in run.events.hooks.wraps else ""
    return ModelError(
        f"Model {run.config.view.model_name!r}{or_hook} yielded {actual!r:.60} (a {type(actual).__name__}), but must yield "
        f"ModelChunks: {fix}.",
        retryable=False,
    )


def _bill(run: RunBase, chunks: Sequence[ModelChunk]) -> None:
    """Bill a failed attempt, if the provider reported its usage."""
    for chunk in reversed(chunks):
        if chunk.usage is not None:
            run.add_usage(one_call(chunk.usage))
            return


async def _through_arounds(
    run: RunBase, model: str | Model, request: ModelRequest, event: PreReasoning
) -> tuple[list[ModelChunk], str]:
    """Call the model through the hooks that wrap the call.

    Returns:
        The chunks, and the name of the model that produced them (empty if hooks produced them).
    """
    stage, hooks = Stage(run, PreReasoning), run.events.hooks
    attempts = Attempts(stage, partial(hooks.observed_model, event) if hooks.model_listeners else None)
    inner = model_source(attempts, model, request)
    try:
        wrapped: Any = wrap(run, PreReasoning, event, inner)
        flux: Flux[ModelChunk] = wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped)  # pyright: ignore[reportUnknownVariableType] - the hook's items
        # Hooks that only map or filter with plain functions need no stage: `_pull` applies the functions.
        steps = steps_over(flux, inner) if attempts.observed is None else None
        if steps is not None:
            target_model = resolve_model(model) if isinstance(model, str) else model
            return await _pull(run, target_model.stream(request), [], None, steps), request.model
        chunks = await stage.run_to_end(_pull(run, stage.open(flux), [], attempts), partial(_keep_complete, run))
        return chunks, attempts.model
    finally:
        stage.closed = True


async def _model_cancelled(run: RunBase, model: str, error: asyncio.CancelledError) -> Msg:
    """Handle a `CancelledError` of the model itself, without a cancellation of the run, like its other failures."""
    try:
        raise ModelError(f"Model {model!r} raised CancelledError, but the run was not cancelled.") from error
    except ModelError as failure:
        recovered = await _recovered(run, failure)
        if recovered is None:
            raise
        return recovered


async def _recovered(run: RunBase, error: Exception) -> Msg | None:
    """Report the failure of the model. Return the reply with which a hook recovers, or None."""
    recovered = await run.events.report(error, ErrorPhase.REASONING, fatal=True)
    if recovered is None:
        return None
    return as_reply(recovered.value, "Recover", "Error", run.config.new_id)


async def _keep_complete(run: RunBase, chunks: Sequence[ModelChunk]) -> None:
    """Bill and store the reply of a call that was cancelled after the last chunk."""
    _bill(run, chunks)
    await keep_partial(run, chunks)


async def keep_partial(run: RunBase, chunks: Sequence[ModelChunk]) -> None:
    """Store the partial reply of an interrupted call without its tool calls, marked as interrupted."""
    if not chunks or run.scope.leaves():  # a call that is left open asks the model again when it is resumed
        return
    partial_reply = fold(chunks, new_id=run.config.new_id)
    content = tuple(b for b in partial_reply.content if not isinstance(b, ToolUseBlock))
    if not any(getattr(b, "text", "").strip() for b in content):
        return
    kept = with_metadata(message("assistant", content, partial_reply.id, usage=partial_reply.usage), interrupted=True)
    run.additions.partial = kept
    injected = Injected(run.run_id, (kept,), None, None, run.call_id, run.next_number())
    await wait_if_needed(run.journal.append(injected, origin="interrupted"))


def _without_calls(msg: Msg) -> Msg:
    if not msg.tool_uses:
        return msg
    content = tuple(b for b in msg.content if not isinstance(b, ToolUseBlock))
    return message("assistant", content, msg.id, msg.metadata, msg.usage, msg.finish_reason)


def _suspension(run: RunBase, reasoned: Reasoned, verdict: Suspend, hook: str) -> RoundSuspended:
    uses = () if reasoned.summary else reasoned.message.tool_uses
    pending = tuple([Pending(use.id, "approval", verdict.request, use, hook) for use in uses])
    parked = Pending("call", "parked", verdict.request, None, hook)
    return RoundSuspended(run.run_id, pending or (parked,), run.call_id)


def _follow_up(verdict: Again, hook: str, new_id: Callable[[str], str]) -> tuple[Msg, ...]:
    messages = as_messages(verdict.messages, new_id)
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            got = "Again with tool calls" if msg.tool_uses else f"Again with a {msg.role} message"
            legal = "Again with user messages, or with assistant messages without tool calls"
            raise HookContractError(hook, "PostReasoning", got, legal)
    return tuple([m if "synthetic" in m.metadata else with_metadata(m, synthetic="again") for m in messages])
