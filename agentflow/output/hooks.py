"""The two hooks of a typed answer: one asks for it, one judges what came.

Rules:

1. The loop knows nothing of a form. What asks for one is laid over each request, in `PreReasoning`: options, a tool, or
   words. So every hook behind sees it, and may change it.
2. What does not fit is an `Again`, as of any other hook; the rejected reply stays in the history.
3. An answer that came by a tool is a tool call like any other: vetted, run, answered. The reply is closed in the model's
   place with the text of its result, read from the conversation, so that a restart finds it too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any

from agentflow.errors import ModelError, OutputError
from agentflow.events import PostReasoning, PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import ContentBlock, Msg, TextBlock, ToolUseBlock, with_metadata
from agentflow.output.answer import Answered, Given
from agentflow.output.form import MisfitError
from agentflow.output.output import Output, Way
from agentflow.ports.model import AnswerModes, Model, answer_modes
from agentflow.specs import ModelOptions
from agentflow.transcript import laid_behind
from agentflow.verdicts import Again, Answer

__all__ = ["SOURCE", "AskForOutput", "JudgeOutput"]

SOURCE = "output"
"""What the notes of these hooks carry as `metadata["synthetic"]`."""

PROMPT = (
    "When you have what you need, answer with one JSON object that fits this JSON schema, and with nothing else: no words "
    "around it, no code fence.\n{schema}"
)
BY_TOOL = "Give your answer by calling the tool {name}. {problem}"


class AskForOutput(Hook):
    """Asks the model for an answer in a form, and closes the call when a tool has taken it.

    Priority 15: what is answered already is not asked again, so hooks that count or wait need not.

    Args:
        output: The form.
        model: The agent's model, or its name: it says by which ways it can be asked. None: it is taken to call tools.
        max_iterations: The agent's: what is answered by a tool in the last round is taken as words, since no round follows
            in which the call would be closed.
    """

    priority = 15
    events = (PreReasoning, PostReasoning)

    def __init__(
        self, output: Output[Any], model: str | Model | None = None, max_iterations: int | None = None
    ) -> None:
        self.output = output
        self._model = model
        self._last = max_iterations
        self._modes: dict[str, AnswerModes] = {}

    def concerns(self, reply: Msg) -> bool:
        """Words that a step is to be made of, and answers by the final tool."""
        uses = reply.tool_uses
        return (self.output.runs and not uses) or any(use.name == self.output.tool.name for use in uses)

    def on_event(  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to two events
        self, event: PreReasoning | PostReasoning
    ) -> PreReasoning | PostReasoning | Answer | Awaitable[PreReasoning] | None:
        """Lay what asks for the form over the request; make a call of words that are a step's arguments."""
        if self.output.is_text:
            return event
        if isinstance(event, PostReasoning):
            if event.purpose == "reason" and not self.output.runs:
                self._take_as_words(event)
            elif event.purpose == "reason" and not event.reasoning_result.tool_uses:
                self._make_call(event)
            return event
        closing = self._closing(event.input_messages)
        if closing is not None:
            event.context.state[Given].closing = closing
            return Answer(Msg.assistant(closing, id=event.context.new_id("msg_")))
        if self._model is None or self.output.via in ("native", "prompt"):
            return self._ask(event, self._way(event, AnswerModes()), AnswerModes())
        modes = self._modes.get(event.model)
        return self._find_out(event) if modes is None else self._ask(event, self._way(event, modes), modes)

    async def _find_out(self, event: PreReasoning) -> PreReasoning:
        own = self._model
        asked = own if own is not None and not isinstance(own, str) and own.name == event.model else event.model
        try:
            modes = await answer_modes(asked)
        except ModelError:  # nobody knows it; what is wrong is said when it is asked
            modes = AnswerModes()
        self._modes[event.model] = modes
        return self._ask(event, self._way(event, modes), modes)

    def _way(self, event: PreReasoning, modes: AnswerModes) -> Way:
        if self.output.via is not None:
            return self.output.via
        if self.output.runs and modes.tools:
            return "tool"
        if modes.native and (modes.native_with_tools or not event.tools):
            return "native"
        return "tool" if modes.tools else "prompt"

    def _ask(self, event: PreReasoning, way: Way, modes: AnswerModes) -> PreReasoning:
        if way == "tool" and event.purpose == "summary":  # which may call no tool
            way = "prompt"
        event.context.state[Answered].way = way
        match way:
            case "native":
                event.options = ModelOptions(
                    answer_schema={"title": self.output.shape.title, **self.output.shape.schema}
                )
            case "tool":
                self._offer_tool(event, modes)
            case "prompt":
                text = PROMPT.format(schema=self.output.schema_text)
                note = with_metadata(Msg.user(text, id=event.context.new_id("msg_")), synthetic=SOURCE)
                event.input_messages = laid_behind(event.input_messages, note)
        return event

    def _offer_tool(self, event: PreReasoning, modes: AnswerModes) -> None:
        spec, others = self.output.tool.spec, tuple(event.tools)
        event.tools = (*others, spec)
        options = event.options
        # A forced choice rules thinking out; who thinks is told in words, and asked again.
        if options.tool_choice is None and modes.forced and not options.thinking:
            event.options = ModelOptions(tool_choice="required" if others else spec.name)

    def _closing(self, messages: Sequence[Msg]) -> str | None:
        """The text of the final tool's result, if the last round has brought one; None: the model has to go on."""
        name = self.output.tool.name
        for place in range(len(messages) - 1, -1, -1):
            msg = messages[place]
            if msg.role == "tool":
                taken = [result for result in msg.tool_results if result.name == name and result.state == "success"]
                return taken[-1].text if taken else None
            if msg.role != "user" or "synthetic" not in msg.metadata:
                return None
        return None

    def _take_as_words(self, event: PostReasoning) -> None:
        reply = event.reasoning_result
        uses = reply.tool_uses
        if self._last is None or event.iteration < self._last or not uses:
            return
        if all(use.name == self.output.tool.name for use in uses):
            kept = [block for block in reply.content if not isinstance(block, TextBlock | ToolUseBlock)]
            event.reasoning_result = _with(reply, (*kept, TextBlock(uses[-1].raw)))

    def _make_call(self, event: PostReasoning) -> None:
        reply = event.reasoning_result
        given = event.context.state[Given]
        if given.closing is not None and given.closing == reply.text:
            return
        try:
            raw = str(self.output.shape.read(reply.text))
        except MisfitError:
            return  # the judge says what is wrong
        kept = [block for block in reply.content if not isinstance(block, TextBlock)]
        call = ToolUseBlock.from_json(event.context.new_id("call_"), self.output.tool.name, raw)
        event.reasoning_result = _with(reply, (*kept, call))


def _with(reply: Msg, content: tuple[ContentBlock, ...]) -> Msg:
    return Msg("assistant", content, None, reply.id, reply.metadata, reply.usage, reply.finish_reason)


class JudgeOutput(Hook):
    """Holds an answer against its form: what does not fit goes back to the model, a bounded number of times.

    A guard, so it judges what the editing hooks have left.

    Args:
        output: The form.
    """

    guard = True
    events = (PostReasoning,)

    def __init__(self, output: Output[Any]) -> None:
        self.output = output

    def concerns(self, reply: Msg) -> bool:
        """Answers: in words, or by the final tool."""
        uses = reply.tool_uses
        return not uses or any(use.name == self.output.tool.name for use in uses)

    def on_event(self, event: PostReasoning) -> Again | Awaitable[Again | None] | None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Accept the answer, or say what is wrong with it."""
        output, reply = self.output, event.reasoning_result
        if output.is_text and output.validate is None:
            return None
        if (not output.is_text and not self.concerns(reply)) or (output.is_text and reply.tool_uses):
            return None
        given = event.context.state[Given]
        if not reply.tool_uses and given.closing is not None and given.closing == reply.text:
            return None
        name = "" if output.is_text else output.tool.name
        texts = [use.raw for use in reply.tool_uses if use.name == name] or [reply.text]
        value: Any = None
        for text in texts:
            try:
                value = text if output.is_text else output.shape.read(text)
            except MisfitError as misfit:
                return self._refuse(event, str(misfit))
            if not output.runs:
                given.note(text, value)
        if output.runs and not reply.tool_uses:  # words that no editing hook has made a call of: the summary's
            return None
        return None if output.validate is None or output.runs else self._look(event, given, texts[-1], value)

    async def _look(self, event: PostReasoning, given: Given, text: str, value: Any) -> Again | None:
        assert self.output.validate is not None
        try:
            made = self.output.validate(value)
            if inspect.isawaitable(made):
                made = await made
        except ValueError as error:
            return self._refuse(event, f"Your answer does not pass: {error}")
        given.note(text, value if made is None else made)
        return None

    def _refuse(self, event: PostReasoning, problem: str) -> Again | None:
        if event.purpose == "summary":  # on which nothing can be asked again
            event.context.state[Given].text = None
            return None
        state = event.context.state[Answered]
        if state.sent_back >= self.output.retries:
            raise OutputError(
                self.output.name_of_form, state.sent_back + 1, problem, event.reasoning_result, event.model
            )
        state.sent_back += 1
        if state.way == "tool":
            problem = BY_TOOL.format(name=self.output.tool.name, problem=problem)
        return Again(with_metadata(Msg.user(problem, id=event.context.new_id("msg_")), synthetic=SOURCE))
