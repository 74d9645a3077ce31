"""`OpenTelemetry`: traces and metrics of runs, following OpenTelemetry's conventions for GenAI.

Rules:

1. A call is a span (`invoke_agent`; for a workflow or handoffs `invoke_workflow`). Below it, each attempt at a model's reply
   (`chat`) and at a tool (`execute_tool`) is a span; a sub-agent's call is below the tool that called it.
2. A run is one trace: a call that resumes it is linked to the previous call, even in another process.
3. A tool's span is the current span only while the tool's function runs, a model's span only while the model is called.
   The span of a call that is neither sampled nor measured is current until the call ends; such a call costs only a lookup.
4. Content is recorded only if requested (`content=`), and redacted; otherwise, no text of a message, an argument, a result, an
   exception or a reason is exported.
5. The hook only observes: it changes nothing, and its failures never fail a run.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from importlib import metadata
from itertools import count
from typing import Any, Final

from agentflow._support.time_limit import TimeLimit, drive
from agentflow._support.validation import is_a
from agentflow.errors import UsageError
from agentflow.hooks.recording import ConditionalWrapper, VerdictListener
from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.loop.escalation import Halted, ToolSuspended
from agentflow.plugins.opentelemetry import attributes as semconv
from agentflow.plugins.opentelemetry.metrics import TokenMetrics
from agentflow.plugins.opentelemetry.spans import (
    CallTrace,
    OpenSpan,
    TracedRun,
    TraceOfCall,
    context_of,
    is_live,
    make_current,
    quietly,
    remote,
    start_span,
    traceparent,
    variables_with,
)
from agentflow.plugins.redaction.hook import Redaction
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import RunContext, own, port_of
from agentflow.vocabulary.events import (
    CallEnded,
    Error,
    ErrorPhase,
    Event,
    HookEvent,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.vocabulary.facts import RoundSuspended
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.answer_origin import AnswerOrigin, answer_origin
from agentflow.vocabulary.specs import WORKFLOW, Usage

try:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import INVALID_SPAN, Link, SpanKind, TracerProvider, get_current_span, get_tracer
except ImportError as error:
    raise ImportError('OpenTelemetry needs its API: pip install "agentflow-hooks[otel]"') from error

_FAILED: Final = frozenset({"error", "timeout", "not_found"})
# Recorded even if no hook decided; of other events, only decisions are recorded.
_EVENTS: Final = frozenset({PreCall, PostCall, Error, CallEnded, MessagesAdded})


class OpenTelemetry(VerdictListener, ConditionalWrapper):
    """Traces and metrics of calls, model calls and tools, for any backend that accepts OTLP.

    Set up exporting as in any program: a `TracerProvider` and a `MeterProvider` of the SDK, or the variables of
    `opentelemetry-instrument`. Without a provider, nothing is recorded.

    An observer, priority 995: it is the innermost wrapper, directly around model and tool, so it sees each attempt of a retry
    and each fallback. It follows the run into sub-agents (`scope="tree"`). One instance serves any number of agents and runs.

    Args:
        content: Record content: instructions, messages, tool definitions, arguments, results, reasons, texts of errors. True:
            redacted by `Redaction()`. A `Redaction`: redacted by its rules; if it is also a hook of the agent, the values that
            it has found in the session are redacted too. `Redaction([])` redacts nothing.
        tracer_provider: Creates the spans; the global one by default.
        meter_provider: Creates the metrics; the global one by default.
        conventions: The version of the conventions: `"1.41"`, the last one of OpenTelemetry's common conventions, or `"0.1"`,
            the first one of those for GenAI alone. By default 0.1 if the environment variable `OTEL_SEMCONV_STABILITY_OPT_IN`
            contains `gen_ai_latest_experimental`, else 1.41.

    Raises:
        UsageError: `content` or `conventions` is invalid.

    Example:
        >>> agent = Agent("desk", ScriptedModel(["Hello."]), hooks=[OpenTelemetry()])
        >>> (await agent.call("Hi")).text
        'Hello.'
    """

    priority = 995
    scope = "tree"
    for_verdicts = (PreReasoning, PostReasoning, PreToolRound, PreActing, PostActing, PostToolRound)
    events = (PreCall, *for_verdicts, PostCall, Error, CallEnded, MessagesAdded)
    wraps = (PreReasoning, PreActing)

    def __init__(
        self,
        *,
        content: bool | Redaction = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        conventions: semconv.Version | None = None,
    ) -> None:
        if not is_a(content, bool | Redaction):
            raise UsageError(f"OpenTelemetry(content={content!r:.60}) must be True, False or a Redaction.")
        self._redaction = Redaction() if content is True else content or None
        if conventions is None:
            chosen = os.environ.get(semconv.OPT_IN, "").split(",")
            conventions = "0.1" if semconv.LATEST in map(str.strip, chosen) else "1.41"
        if conventions not in semconv.CONVENTIONS:
            raise UsageError(
                f"OpenTelemetry(conventions={conventions!r:.60}): use {' or '.join(map(repr, semconv.CONVENTIONS))}."
            )
        self._meters = meter_provider
        self._conventions = named = semconv.CONVENTIONS[conventions]
        version = metadata.version("agentflow-hooks")
        self._tracer = get_tracer("agentflow", version, tracer_provider, named.schema_url)
        meter = get_meter("agentflow", version, meter_provider, named.schema_url)
        self._tokens = TokenMetrics(meter, named)
        self._model_seconds, self._first_chunk, self._tool_seconds, self._call_seconds = (
            meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=boundaries)
            for name, about, boundaries in (
                (named.duration, "GenAI operation duration.", semconv.DURATIONS),
                (named.first_chunk, "Time to receive the first chunk.", semconv.DURATIONS),
                ("gen_ai.execute_tool.duration", "Duration of a tool execution.", semconv.DURATIONS),
                ("gen_ai.invoke_agent.duration", "Duration of an agent invocation.", semconv.LONG_DURATIONS),
            )
        )

    # ---- calls

    def on_event(self, event: HookEvent) -> None:
        """Start and end the call's span, and add hooks' decisions to it."""
        kind = event.sealed_form
        decided = event.decision
        if decided is None and kind not in _EVENTS:
            return
        trace = self._trace_of(event)
        if trace is None:
            return
        span = trace.span
        if span.recording:
            if decided is not None and decided.verdict is not None:
                self._note_verdict(span, event)
            self._record(span, event)
        if isinstance(event, CallEnded):
            self._end(trace, event)

    def concerns(self, reply: Msg) -> bool:
        """Return False, since this hook needs `PostReasoning` only for the verdicts of other hooks."""
        return False

    def _trace_of(self, event: Event) -> CallTrace | None:
        """Return the trace of the event's call, started with the call's first event. A turn outside a call has none."""
        frame = event.frame
        holder = own(frame.context, self, TraceOfCall)
        if holder.trace is not None:
            return holder.trace
        # Events with an iteration belong to a call, and so do errors before the first round, unless a turn failed.
        begins = event.iteration or isinstance(event, PreCall | CallEnded)
        if not begins and not (isinstance(event, Error) and event.turn is None):
            return None
        span = quietly(self._begin, event)
        if span is None:
            span = OpenSpan(INVALID_SPAN, frame.context.clock, None)
        holder.trace = CallTrace(span, idle=not span.recording and not is_live(self._meters))
        return holder.trace

    def _begin(self, event: Event) -> OpenSpan:
        frame = event.frame
        context, agent = frame.context, frame.agent
        operation, identity = semconv.operation_of(agent.name, agent.model_name)
        attributes = {
            **identity,
            semconv.CONVERSATION: frame.session_id,
            semconv.RUN: frame.run_id,
            semconv.CALL: frame.call_id,
        }
        known = context.session_state[TracedRun]
        resumes = known.run_id == frame.run_id
        parent, links = self._resumed_from(known, bool(frame.source)) if resumes else (None, [])
        name = f"{operation} {agent.name}"
        span = start_span(self._tracer, name, context.clock, parent, SpanKind.INTERNAL, attributes, links, event.time)
        if span.recording and agent.description:
            span.set({semconv.AGENT_DESCRIPTION: agent.description})
        if parent := traceparent(span.span):
            known.run_id, known.last = frame.run_id, parent
            if not resumes:
                known.first = parent
        return span

    def _resumed_from(self, known: TracedRun, inner: bool) -> tuple[Context | None, list[Link]]:
        """Return the parent and the links of the span of a call that resumes a run.

        The span belongs to the run's trace. Its parent is the current span if that is in the trace (of a tool that calls a
        sub-agent again, or of a caller that made both calls), else the run's first call.
        """
        first, last = context_of(known.first), context_of(known.last)
        links = [] if last is None else [Link(last, {semconv.LINK: "resumes"})]
        current = get_current_span().get_span_context()
        if first is None or inner or current.trace_id == first.trace_id:
            return None, links
        if current.is_valid:
            links.append(Link(current, {semconv.LINK: "resumed_in"}))
        return remote(first), links

    def _end(self, trace: CallTrace, event: CallEnded) -> None:
        span, frame = trace.span, event.frame
        if span.recording:
            attributes: dict[str, Any] = {semconv.OUTCOME: event.outcome, semconv.MODEL_CALLS: event.usage.model_calls}
            span.set({**attributes, **semconv.usage_of(event.usage, self._conventions.cache_write)})
        measured: dict[str, Any] = {semconv.AGENT_NAME: frame.agent.name}
        if frame.agent.model_name == WORKFLOW:
            measured[semconv.OPERATION] = "invoke_workflow"
        if event.outcome == "failed":
            # "_OTHER" is the conventions' value for an unknown type.
            kind = "_OTHER" if event.error is None else semconv.error_type(event.error)
            span.fail(kind, self._text_of(event.error, frame.run_id))
            measured[semconv.ERROR_TYPE] = kind
        quietly(self._call_seconds.record, span.seconds, measured, span.context)
        span.end()
        own(frame.context, self, TraceOfCall).trace = None  # so that the context keeps no ended span

    def _below(
        self, trace: CallTrace | None, event: Event, name: str, kind: SpanKind, attributes: dict[str, Any]
    ) -> OpenSpan:
        """Start a span below the span of a call; if the call's span is not recorded, return a placeholder."""
        clock = event.frame.context.clock
        if trace is None:
            return start_span(self._tracer, name, clock, None, kind, attributes)
        if not trace.span.recording:
            return OpenSpan.unseen(trace.span, clock)
        return start_span(self._tracer, name, clock, trace.span.context, kind, attributes)

    # ---- events on a call's span

    def _note_verdict(self, span: OpenSpan, event: HookEvent) -> None:
        decided = event.decision
        assert decided is not None
        noted: dict[str, Any] = {
            semconv.VERDICT: type(decided.verdict).__name__,
            semconv.HOOK: decided.hook,
            semconv.EVENT: event.sealed_form.__name__,
        }
        if isinstance(event, PreActing | PostActing):
            noted.update(semconv.call_of(event.tool_use))
        reason = getattr(decided.verdict, "reason", None)
        if self._redaction is not None and isinstance(reason, str):
            noted[semconv.REASON] = self._clean(reason, event.run_id)
        span.add_event("agentflow.verdict", noted)

    def _record(self, span: OpenSpan, event: HookEvent) -> None:
        """Record the data of an event, except its verdict."""
        match event:
            case PreCall() if self._redaction is not None:
                span.set({semconv.INPUT: self._messages(event.input_messages, event.run_id)})
            case PostCall() if self._redaction is not None:
                final = event.final_message
                span.set({semconv.OUTPUT: self._messages([final], event.run_id, final.finish_reason or "stop")})
            case CallEnded(outcome="suspended"):
                self._note_pending(span, event)
            case Error() if event.phase in (ErrorPhase.HOOK, ErrorPhase.CALL):
                noted = {"exception.type": semconv.error_type(event.error), semconv.PHASE: event.phase.value}
                if event.hook is not None:
                    noted[semconv.HOOK] = event.hook
                if (text := self._text_of(event.error, event.run_id)) is not None:
                    noted["exception.message"] = text
                span.add_event("exception", noted)
            case MessagesAdded():
                span.add_event(
                    "agentflow.messages_added", {semconv.ORIGIN: event.origin, semconv.MESSAGES: len(event.messages)}
                )
            case _:
                pass

    def _note_pending(self, span: OpenSpan, event: CallEnded) -> None:
        """Record the pending calls."""
        facts = port_of(event.context).facts()
        for pending in next((fact.pending for fact in reversed(facts) if isinstance(fact, RoundSuspended)), ()):
            noted = {semconv.HOOK: pending.hook, semconv.KIND: pending.kind}
            if pending.tool_use is not None:
                noted.update(semconv.call_of(pending.tool_use))
            span.add_event("agentflow.suspended", noted)

    def wraps_in(self, context: RunContext) -> bool:
        """Return whether spans or metrics of a call's work are recorded. If not, make the call's span the current span."""
        trace = own(context, self, TraceOfCall).trace
        if trace is None or not trace.idle:
            return True
        make_current(trace)
        return False

    # ---- model calls

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Wrap each attempt at the reply in a span."""
        if not self.wraps_in(event.context):
            return source
        return Flux(partial(self._chat, event, source))

    async def _chat(self, event: PreReasoning, source: ModelSource) -> AsyncIterator[ModelChunk]:
        request = source.request
        model, provider = semconv.model_and_provider(request.model)
        measured: dict[str, Any] = {semconv.OPERATION: "chat", semconv.PROVIDER: provider, semconv.REQUEST_MODEL: model}
        trace = self._trace_of(event)
        span = self._below(trace, event, f"chat {model}", SpanKind.CLIENT, measured)
        if span.recording:
            quietly(self._set_request, span, event, source, 1 if trace is None else trace.attempt(event))
        recorded: list[ModelChunk] | None = [] if span.recording and self._redaction is not None else None
        usage: Usage | None = None
        finish: str | None = None
        first = True
        variables = variables_with(span.context)
        origin = AnswerOrigin() if span.recording else None
        variables.run(answer_origin.set, origin)
        chunks = source.open()
        try:
            while True:
                try:
                    # rule 3: the span is not current in the reader
                    chunk = await drive(_next(chunks), variables, TimeLimit(None))
                except StopAsyncIteration:
                    break
                if first:
                    first = False
                    waited = span.seconds
                    if span.recording:
                        span.set({semconv.FIRST_CHUNK: waited})
                    quietly(self._first_chunk.record, waited, measured, span.context)
                if chunk.usage is not None:
                    usage = chunk.usage
                if chunk.finish_reason is not None:
                    finish = chunk.finish_reason
                if recorded is not None:
                    if chunk.restart:
                        recorded.clear()
                    recorded.append(chunk)
                yield chunk
        except BaseException as error:  # also a cancellation: the span shows how the work ended
            quietly(self._failed, span, error, event.run_id)
            await drive(_closed(chunks), variables, TimeLimit(None))
            raise
        finally:
            if origin is not None:
                quietly(self._set_reply, span, event, usage, finish, recorded)
                quietly(span.set, semconv.origin_of(origin))
            quietly(self._measure_model, span, measured, usage)
            if not span.ended:
                span.end()

    def _set_reply(
        self,
        span: OpenSpan,
        event: PreReasoning,
        usage: Usage | None,
        finish: str | None,
        recorded: list[ModelChunk] | None,
    ) -> None:
        if finish is not None:
            span.set({semconv.FINISH_REASONS: (finish,)})
        if usage is not None:
            span.set(semconv.usage_of(usage, self._conventions.cache_write))
        if recorded:
            span.set({semconv.OUTPUT: self._messages([fold(recorded, id="")], event.run_id, finish or "stop")})

    def _set_request(self, span: OpenSpan, event: PreReasoning, source: ModelSource, attempt: int) -> None:
        request = source.request
        attributes = semconv.options_of(request.options)
        attributes.update(
            {semconv.STREAM: True, semconv.CONVERSATION: event.session_id, semconv.ITERATION: event.iteration}
        )
        if attempt > 1:
            attributes[semconv.ATTEMPT] = attempt
        if event.purpose != "reason":
            attributes[semconv.PURPOSE] = event.purpose
        done = event.context.compaction
        if done is not None and done.iteration == event.iteration:
            noted = {semconv.HOOK: done.by, semconv.MESSAGES: done.messages}
            span.add_event(
                "agentflow.compacted",
                {**noted, semconv.TOKENS_BEFORE: done.tokens, semconv.TOKENS_AFTER: done.into_tokens},
            )
        if self._redaction is not None:
            clean = [self._redaction.outside(msg, event.run_id) for msg in request.messages]
            system, attributes[semconv.INPUT] = semconv.system_and_messages(clean)
            if system:
                attributes[semconv.SYSTEM] = system
            if request.tools:
                attributes[semconv.TOOL_DEFINITIONS] = semconv.tool_definitions(request.tools)
        span.set(attributes)

    def _measure_model(self, span: OpenSpan, measured: dict[str, Any], usage: Usage | None) -> None:
        if usage is not None:
            self._tokens.record(usage, measured, span.context)
        if span.error_type:
            measured[semconv.ERROR_TYPE] = span.error_type
        self._model_seconds.record(span.seconds, measured, span.context)

    # ---- tools

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Wrap each attempt at the tool in a span."""
        if not self.wraps_in(event.context):
            return source
        return Mono(partial(self._execute, event, count(1), source))  # a retry runs the same Mono again

    async def _execute(self, event: PreActing, attempts: count[int], source: ToolSource) -> Any:
        use, frame = event.tool_use, event.frame
        name = semconv.tool_name(use.name)
        measured: dict[str, Any] = {
            semconv.OPERATION: "execute_tool",
            semconv.TOOL_NAME: name,
            semconv.TOOL_TYPE: "function",
            semconv.AGENT_NAME: frame.agent.name,
        }
        trace = self._trace_of(event)
        span = self._below(trace, event, f"execute_tool {name}", SpanKind.INTERNAL, measured)
        if span.recording:
            quietly(self._set_call, span, event, next(attempts))
        try:
            result = await drive(_resolved(source), variables_with(span.context), TimeLimit(None))
        except BaseException as error:  # also a cancellation: the span shows how the work ended
            quietly(self._failed, span, error, event.run_id)
            raise
        else:
            if isinstance(result, ToolResultBlock) and (span.recording or result.state in _FAILED):
                quietly(self._set_result, span, result, event.run_id)
            return result
        finally:
            if span.error_type:
                measured[semconv.ERROR_TYPE] = span.error_type
            quietly(self._tool_seconds.record, span.seconds, measured, span.context)
            if not span.ended:
                span.end()

    def _set_result(self, span: OpenSpan, result: ToolResultBlock, run_id: str) -> None:
        if span.recording and self._redaction is not None:
            span.set({semconv.TOOL_RESULT: semconv.plain(self._redaction.outside(result, run_id).text)})
        if result.state in _FAILED:
            span.fail(result.state)

    def _set_call(self, span: OpenSpan, event: PreActing, attempt: int) -> None:
        use = event.tool_use
        attributes: dict[str, Any] = {semconv.TOOL_CALL: semconv.plain(use.id)}
        if event.iteration:
            attributes[semconv.ITERATION] = event.iteration
        if attempt > 1:
            attributes[semconv.ATTEMPT] = attempt
        about = next((spec.description for spec in event.agent.tools if spec.name == use.name), "")
        if about:
            attributes[semconv.TOOL_DESCRIPTION] = semconv.plain(about)
        if self._redaction is not None:
            attributes[semconv.TOOL_ARGUMENTS] = semconv.plain(self._redaction.outside(use, event.run_id).raw)
        span.set(attributes)

    def _failed(self, span: OpenSpan, error: BaseException, run_id: str) -> None:
        """Record the exception that ended a span's work."""
        if isinstance(error, ToolSuspended | Halted):
            span.set({semconv.OUTCOME: "suspended"})
        elif isinstance(error, Exception):
            span.fail(semconv.error_type(error), self._text_of(error, run_id))
        else:  # the work was cancelled, interrupted or abandoned
            span.set({semconv.OUTCOME: "interrupted"})

    # ---- content

    def _messages(self, messages: Any, run_id: str, finish: str | None = None) -> str:
        redaction = self._redaction
        assert redaction is not None
        clean: list[Msg] = [redaction.outside(msg, run_id) for msg in messages]
        return semconv.parts_of(clean, finish)

    def _text_of(self, error: BaseException | None, run_id: str) -> str | None:
        """Return the text of an exception, if content is recorded."""
        if self._redaction is None or error is None:
            return None
        return quietly(lambda: self._clean(str(error), run_id))

    def _clean(self, text: str, run_id: str) -> str:
        assert self._redaction is not None
        return semconv.plain(self._redaction.outside(text, run_id))


async def _next(chunks: AsyncIterator[ModelChunk]) -> ModelChunk:
    return await anext(chunks)


async def _closed(chunks: AsyncIterator[ModelChunk]) -> None:
    await close(chunks)


async def _resolved(source: ToolSource) -> Any:
    work: Awaitable[Any] = source.resolve()
    return await work
