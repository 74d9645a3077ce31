"""The two hooks of a typed answer: one asks for it, one validates the answer.

Rules:

1. The loop is unaware of typed answers. The request for one is added in `PreReasoning`: as options, a tool, or text. So
   every later hook sees it, and can change it.
2. An answer that does not fit leads to an ordinary `Again`; the rejected reply stays in the history.
3. An answer is accepted in one place, `Output.accept` (through `AcceptedAnswers.accept`, which caches it). Every reader
   of the output goes through it: the guard, the final tool (which takes the answer), the reply. Without acceptance there
   is no output, on any path.
4. The number of refused answers is counted from the facts of the run, so a restart does not reset it.
5. A call of the final tool is a tool call like any other: evaluated, run, answered. The text of the tool's result
   then becomes the reply, without a model call. It is read from the conversation, so that a restart finds it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from agentflow.errors import ModelError, OutputError
from agentflow.hooks.hook import Hook
from agentflow.loop.output.answer import AcceptedAnswers, AnswerState
from agentflow.loop.output.form import InvalidOutputError, is_prose, members
from agentflow.loop.output.output import FullOutput, Way
from agentflow.loop.output.refusals import Refusals
from agentflow.loop.output.replying import with_output
from agentflow.loop.output.tools import AnswerTool
from agentflow.tools.tool import arguments_text
from agentflow.vocabulary.context import port_of
from agentflow.vocabulary.events import PostCall, PostReasoning, PreActing, PreReasoning
from agentflow.vocabulary.facts import Reasoned, RoundClosed
from agentflow.vocabulary.messages import (
    ContentBlock,
    Msg,
    Reply,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    with_metadata,
)
from agentflow.vocabulary.ports.model import AnswerModes, Model, answer_modes
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.transcript import with_appended
from agentflow.vocabulary.verdicts import Again, Answer, Deny

__all__ = ["SOURCE", "AskForOutput", "JudgeOutput"]

SOURCE = "output"
"""The value of `metadata["synthetic"]` in the notes of these hooks."""

PROMPT = (
    "When you have what you need, answer with one JSON object that fits this JSON schema, and with nothing else: no words "
    "around it, no code fence.\n{schema}"
)
BY_TOOL = "Give your answer by calling the tool {name}. {problem}"
OR_TEXT = "If none of its forms suits, answer with plain text."
NOT_AS_TEXT = "Give your answer by calling the tool {name}, not as text."
SKIPPED = "Not run: the same reply gives the final answer. Call it again if that fails and it is still needed."


class AskForOutput(Hook):
    """Asks the model for a typed answer, and ends the call when the final tool has accepted it.

    Its priority is 15: if it answers a request itself, later hooks, such as budgets, are not called for it.

    Args:
        output: The output.
        model: The agent's model or its name, to look up its answer modes; None: the model is asked by a tool.
        max_iterations: The agent's limit. In the last round a call of the final tool is read as text, because no request
            follows in which its result could become the reply.
    """

    priority = 15

    def __init__(
        self, output: FullOutput[Any], model: str | Model | None = None, max_iterations: int | None = None
    ) -> None:
        self.output = output
        # `PreActing` only if calls can be skipped, since a hook of it costs a chain for each tool call.
        may_skip = output.end != "all"
        self.events = (PreReasoning, PostReasoning, PreActing) if may_skip else (PreReasoning, PostReasoning)
        self._model = model
        self._max_iterations = max_iterations
        self._modes: dict[str, AnswerModes] = {}
        self._may_run = any(choice.runs for choice in output.choices)
        # For an answer that can be None, some models send an empty reply.
        self._takes_none = any(type(None) in members(choice.form) for choice in output.choices)

    def concerns(self, reply: Msg) -> bool:
        """Return True for replies that this hook may change: text that can be a function's arguments, an empty reply
        that can mean None, calls of final tools, and any calls with `end="first"`.
        """
        uses = reply.tool_uses
        if not uses:
            return self._may_run or (self._takes_none and is_empty(reply))
        return self.output.end == "first" or any(use.name in self.output.tools for use in uses)

    def on_event(  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to these events
        self, event: PreReasoning | PostReasoning | PreActing
    ) -> PreReasoning | PostReasoning | Answer | Deny | Awaitable[PreReasoning | None] | None:
        """Add the request for the output, read answers in another form than requested, and deny skipped calls."""
        if isinstance(event, PreActing):
            return Deny(SKIPPED) if event.tool_use.id in event.context.state[AcceptedAnswers].skipped else None
        if isinstance(event, PostReasoning):
            return self._read(event) if event.purpose == "reason" else None
        if not self.output.tools:
            return None
        results = _last_round(event.input_messages)
        # The final tool succeeded in the last round: the call ends here, without another model call.
        closing = self._closing(results)
        if closing is not None:
            event.context.state[AcceptedAnswers].closing = closing
            return Answer(Msg.assistant(closing, id=event.context.new_id("msg_")))
        # Counted before the request, so that the call fails without paying for another reply.
        self._count_failures(event, results)
        if self._model is None or self.output.via in ("native", "prompt"):
            return self._ask(event, self._way(event, AnswerModes()), AnswerModes())
        modes = self._modes.get(event.model)
        return self._look_up_modes(event) if modes is None else self._ask(event, self._way(event, modes), modes)

    async def _look_up_modes(self, event: PreReasoning) -> PreReasoning:
        """Look up the answer modes of the request's model, then add the request for the output."""
        own = self._model
        model = own if own is not None and not isinstance(own, str) and own.name == event.model else event.model
        try:
            modes = await answer_modes(model)
        except ModelError:  # the model is unknown; the request itself raises the error
            modes = AnswerModes()
        self._modes[event.model] = modes
        return self._ask(event, self._way(event, modes), modes)

    def _way(self, event: PreReasoning, modes: AnswerModes) -> Way:
        if self.output.via is not None:
            return self.output.via
        # In JSON-schema mode every reply is JSON, so the model could neither answer with text or data nor call a function.
        if modes.tools and (self._may_run or self.output.takes_text or self.output.takes_data):
            return "tool"
        if modes.native and (modes.native_with_tools or not event.tools):
            return "native"
        return "tool" if modes.tools else "prompt"

    def _ask(self, event: PreReasoning, way: Way, modes: AnswerModes) -> PreReasoning:
        if way == "tool" and event.purpose == "summary":  # a summary has no tools
            way = "prompt"
        state = event.context.state[AnswerState]
        state.way, state.retries = way, self.output.retries
        match way:
            case "native":
                event.options = ModelOptions(answer_schema=self.output.asked_schema)
                # The provider enforces the schema, so text is only added if the user wrote one.
                if self.output.via == "native" and self.output.prompt:
                    self._ask_in_text(event)
            case "tool":
                self._offer_tool(event, modes)
            case "prompt":
                self._ask_in_text(event)
        return event

    def _ask_in_text(self, event: PreReasoning) -> None:
        note = with_metadata(Msg.user(prompt_of(self.output), id=event.context.new_id("msg_")), synthetic=SOURCE)
        event.input_messages = with_appended(event.input_messages, note)

    def _offer_tool(self, event: PreReasoning, modes: AnswerModes) -> None:
        specs = tuple([tool.spec for tool in self.output.tools.values()])
        tools = (*event.tools, *specs)
        event.tools = tools
        options, optional = event.options, self.output.takes_text or self.output.takes_data
        # Some providers refuse a forced choice together with thinking; a model that then answers with text is asked again.
        if options.tool_choice is None and modes.forced and not options.thinking and not optional:
            event.options = ModelOptions(tool_choice=specs[0].name if len(tools) == 1 else "required")

    def _closing(self, results: Sequence[ToolResultBlock]) -> str | None:
        """Return the text of the final tool's result in the last round; None if the model must continue.

        If another tool failed in that round, the model should see that, because its answer can depend on it.
        """
        names, end = self.output.tools, self.output.end
        if end != "first" and any(result.name not in names and result.state != "success" for result in results):
            return None
        accepted = [result for result in results if result.name in names and result.state == "success"]
        return accepted[-1 if end == "all" else 0].text if accepted else None

    def _count_failures(self, event: PreReasoning, results: Sequence[ToolResultBlock]) -> None:
        """If the final tool failed in the last round, count a refused answer.

        Raises:
            OutputError: There were more than `retries`.
        """
        failed = [result for result in results if _failed(result, self.output)]
        if not failed or event.purpose == "summary":
            return
        answer = next(msg for msg in reversed(event.input_messages) if msg.role == "assistant")
        count_refusal(event, self.output, failed[-1].text, answer, new=False)

    def _read(self, event: PostReasoning) -> Awaitable[None] | None:
        """Rewrite a reply that answers in another form than requested."""
        reply = event.reasoning_result
        uses = reply.tool_uses
        if any(use.name in self.output.tools for use in uses):
            return self._take_last_round(event)
        if uses:
            return self._take_beside(event) if self.output.end == "first" else None
        if is_empty(reply):
            self._take_none(event)
        elif self._may_run:
            self._make_call(event)
        return None

    async def _take_beside(self, event: PostReasoning) -> None:
        """With `end="first"`, use the answer in a reply that also calls tools: the calls are removed, so they do not run.
        Plain text and a function's arguments are not used, because text before calls is often an introduction. If a
        call requires approval, nothing is removed: a person should see it.
        """
        reply, output = event.reasoning_result, self.output
        called = {use.name for use in reply.tool_uses}
        if any(spec.requires_approval and spec.name in called for spec in event.agent.tools):
            return
        answer = output.answer_of(reply)
        if isinstance(answer, str) and (output.takes_text or not output.tools or output.runs or is_prose(answer)):
            return
        accepted = event.context.state[AcceptedAnswers]
        # Keyed by the event, so that the guard, which handles the same event, finds the value.
        accepted.begin(event.seq)
        try:
            await accepted.accept(partial(output.accept, run=event.context, own=True), answer)
        except InvalidOutputError:
            return
        kept = [block for block in reply.content if not isinstance(block, ToolUseBlock)]
        event.reasoning_result = _with(reply, tuple(kept))

    def _take_none(self, event: PostReasoning) -> None:
        """If the answer can be None, read a second empty reply as None; the first one is refused."""
        reply = event.reasoning_result
        # An empty reply that was truncated or filtered does not mean None.
        if not self._takes_none or reply.finish_reason in ("length", "content_filter"):
            return
        if any(
            isinstance(fact, Reasoned) and not fact.accepted and is_empty(fact.message)
            for fact in port_of(event.context).facts()
        ):
            kept = [block for block in reply.content if not isinstance(block, TextBlock)]
            event.reasoning_result = _with(reply, (*kept, TextBlock(self.output.write(None))))

    def _take_last_round(self, event: PostReasoning) -> Awaitable[None] | None:
        uses = event.reasoning_result.tool_uses
        if self._max_iterations is None or event.iteration < self._max_iterations or not uses:
            return None
        tools = [self.output.tools.get(use.name) for use in uses]
        return self._use_last_call(event) if all(isinstance(tool, AnswerTool) for tool in tools) else None

    async def _use_last_call(self, event: PostReasoning) -> None:
        """In the last round, use an acceptable call as the answer (with `end="all"` the last one, else the first), since
        no request follows in which its result could become the reply.
        """
        reply = event.reasoning_result
        accepted, texts = event.context.state[AcceptedAnswers], [self.output.given_by(use) for use in reply.tool_uses]
        accepted.begin(event.seq)
        if self.output.end == "all":
            texts.reverse()
        chosen = texts[0]
        for text in texts:
            try:
                await accepted.accept(partial(self.output.accept, run=event.context), text)
            except InvalidOutputError:
                continue
            chosen = text
            break
        kept = [block for block in reply.content if not isinstance(block, TextBlock | ToolUseBlock)]
        event.reasoning_result = _with(reply, (*kept, TextBlock(chosen)))

    def _make_call(self, event: PostReasoning) -> None:
        """Turn text with a function's arguments into a call of the function."""
        reply = event.reasoning_result
        accepted = event.context.state[AcceptedAnswers]
        # This reply is the result of the function, which must not run again.
        if accepted.closing is not None and accepted.closing == reply.text:
            return
        try:
            named = self.output.named_call(reply.text, event.context)
        except InvalidOutputError:
            return  # `JudgeOutput` reports the problem
        if named is None:
            return
        kept = [block for block in reply.content if not isinstance(block, TextBlock)]
        call = ToolUseBlock.from_json(event.context.new_id("call_"), *named)
        event.reasoning_result = _with(reply, (*kept, call))


def _with(reply: Msg, content: tuple[ContentBlock, ...]) -> Msg:
    return Msg("assistant", content, None, reply.id, reply.metadata, reply.usage, reply.finish_reason)


class JudgeOutput(Hook):
    """Validates answers, and sends invalid answers back to the model a limited number of times.

    It is a guard, so in `PostReasoning` it sees the result of the editing hooks. In `PostCall` it checks the text that
    the call returns, which a hook or a restart may have changed.

    Args:
        output: The output.
    """

    guard = True
    events = (PostReasoning, PostCall)

    def __init__(self, output: FullOutput[Any]) -> None:
        self.output = output

    def concerns(self, reply: Msg) -> bool:
        """Return True for replies with an answer: as text, or by the final tool."""
        uses = reply.tool_uses
        return not uses or any(use.name in self.output.tools for use in uses)

    def on_event(  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to two events
        self, event: PostReasoning | PostCall
    ) -> Awaitable[Again | None] | None:
        """Accept the answer, or return the problem to the model."""
        output = self.output
        # Any text is an answer, so there is nothing to validate.
        if not output.validators and not output.tools and output.takes_text:
            return None
        if isinstance(event, PostCall):
            return self._judge_final(event)
        reply = event.reasoning_result
        if not self.concerns(reply):
            return None
        accepted = event.context.state[AcceptedAnswers]
        if not reply.tool_uses and accepted.closing is not None and accepted.closing == reply.text:
            return None
        return self._judge(event, accepted)

    async def _judge(self, event: PostReasoning, accepted: AcceptedAnswers) -> Again | None:
        """Accept a reply with at least one valid answer: the final tool itself refuses the invalid ones."""
        output, reply = self.output, event.reasoning_result
        accepted.begin(event.seq)
        uses = reply.tool_uses
        calls = [use for use in uses if use.name in output.tools]
        problems: list[str] = []
        for use in calls or [None]:
            try:
                await self._try(event, accepted, use)
            except InvalidOutputError as invalid:
                problems.append(str(invalid))
                continue
            if use is not None and output.end != "all":
                others = uses if output.end == "first" else calls
                accepted.skipped = frozenset(other.id for other in others if other is not use)
            return None
        return self._refuse(event, "\n".join(dict.fromkeys(problems)))

    async def _try(self, event: PostReasoning, accepted: AcceptedAnswers, use: ToolUseBlock | None) -> None:
        """Accept the answer of a call, or of the text; a function's return value is unknown before it has run."""
        output, reply = self.output, event.reasoning_result
        if use is None and output.runs and not output.several:
            output.shape.read(reply.text, output.context_of(event.context))
        elif use is None:
            await accepted.accept(partial(output.accept, run=event.context, own=True), output.answer_of(reply))
        elif isinstance(tool := output.tools[use.name], AnswerTool):
            await accepted.accept(partial(output.accept, run=event.context), output.given_by(use))
        else:
            tool.form.read(arguments_text(use), output.context_of(event.context))

    async def _judge_final(self, event: PostCall) -> None:
        """Accept the text that the call returns; if it is refused, the reply has no output."""
        reply: Reply[Any] = Reply.of(event.final_message, event.outcome, event.run_id, event.usage, ())
        await with_output(reply, self.output, event.context.state, event.context)

    def _refuse(self, event: PostReasoning, problem: str) -> Again | None:
        if event.purpose == "summary":  # a summary is not repeated
            return None
        reply, way = event.reasoning_result, event.context.state[AnswerState].way
        # The filter would refuse the next answer too, so the call fails at once.
        if reply.finish_reason == "content_filter":
            raise ModelError(
                "The model refused to answer, or the provider's content filter ended its answer (finish_reason "
                f"'content_filter'): {reply.text!r:.200}. Change the messages, or use another model.",
                model=event.agent.model_name,
                kind="content_policy",
            )
        count_refusal(event, self.output, problem, reply, new=True)
        if way == "tool":
            text = NOT_AS_TEXT if not reply.tool_uses and is_prose(reply.text) else BY_TOOL
            problem = text.format(name=" or ".join(self.output.tools), problem=problem)
        return Again(with_metadata(Msg.user(problem, id=event.context.new_id("msg_")), synthetic=SOURCE))


def _last_round(messages: Sequence[Msg]) -> Sequence[ToolResultBlock]:
    """Return the results of the last round if the model has not seen them: only notes of hooks follow it."""
    for index in range(len(messages) - 1, -1, -1):
        msg = messages[index]
        if msg.role == "tool":
            return msg.tool_results
        if msg.role != "user" or "synthetic" not in msg.metadata:
            break
    return ()


def is_empty(reply: Msg) -> bool:
    """Whether a reply contains nothing but thoughts and blank text."""
    return all(
        block.type == "thinking" or (type(block) is TextBlock and not block.text.strip()) for block in reply.content
    )


def _failed(result: ToolResultBlock, output: FullOutput[Any]) -> bool:
    """Whether a final tool refused an answer, or its function failed. A person's denial does not count."""
    return result.name in output.tools and result.state in ("error", "timeout")


def prompt_of(output: FullOutput[Any]) -> str:
    """Return the text that asks for an answer in the prompt."""
    text = output.prompt
    if text is None:
        text = PROMPT + (f"\n{OR_TEXT}" if output.takes_text else "")
    return text.replace("{schema}", output.schema_text)


def count_refusal(
    event: PreReasoning | PostReasoning, output: FullOutput[Any], problem: str, answer: Msg, *, new: bool
) -> None:
    """Count the refused answers of the run.

    Args:
        event: The event that is being handled.
        output: The output.
        problem: The problem with the last answer.
        answer: The reply that contains the last answer.
        new: Whether the last answer is not in the facts yet.

    Raises:
        OutputError: There are more than `retries`, for one output of a list or for all.
    """
    refused = Refusals(output)
    for fact in port_of(event.context).facts():
        if isinstance(fact, Reasoned) and not fact.accepted:
            if any(msg.metadata.get("synthetic") == SOURCE for msg in fact.follow_up):
                refused.add(refused.named_in(fact.message))
        elif isinstance(fact, RoundClosed):
            results = [result for result in fact.results if result.name in output.tools]
            failed = [result.name for result in results if _failed(result, output)]
            if failed and all(result.state != "success" for result in results):
                refused.add(failed)
    if new:
        refused.add(refused.named_in(answer))
    state, exceeded = event.context.state[AnswerState], refused.exceeded
    if exceeded is not None:
        wanted, count = exceeded
        raise OutputError(wanted.name_of_form, count, problem, answer, event.model)
    state.sent_back, state.own = refused.sent_back, refused.of_own
