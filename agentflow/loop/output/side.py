"""The typed answer of a side call (`context.complete(output=...)`), which has no tools and no events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentflow.errors import OutputError, UsageError
from agentflow.loop.output.form import InvalidOutputError
from agentflow.loop.output.hooks import prompt_of
from agentflow.loop.output.output import NO_OUTPUT, FullOutput, OutputLike, output_of
from agentflow.loop.output.refusals import Refusals
from agentflow.vocabulary.messages import Msg, Reply
from agentflow.vocabulary.ports.model import Model, answer_modes
from agentflow.vocabulary.specs import ModelOptions, Usage, one_call

__all__ = ["ask_aside"]


async def ask_aside(
    wanted: OutputLike[Any],
    model: str | Model,
    messages: Sequence[Msg],
    options: ModelOptions,
    ask: Callable[[tuple[Msg, ...], ModelOptions], Awaitable[Msg]],
    run_id: str,
) -> Reply[Any]:
    """Ask the model until its answer fits, within the output's `retries`.

    Args:
        wanted: The output. A side call has no tools, so the model is asked by its JSON-schema mode, or in the prompt.
        model: The model to ask.
        messages: The question.
        options: The options of the request.
        ask: Makes one request.
        run_id: The run that makes the side call.

    Returns:
        The answer, with its value.

    Raises:
        UsageError: The form is a function, which does not run here.
        OutputError: No answer fitted.
    """
    output: FullOutput[Any] = output_of(wanted) or NO_OUTPUT
    if output.runs or any(choice.runs for choice in output.choices):
        raise UsageError(
            f"context.complete(output={output.name_of_form}): a side call runs no function. Ask for the type of its "
            "arguments, and call the function yourself."
        )
    conversation = tuple(messages)
    if output.tools:
        # A side call has no tools, so with `via="tool"` the model is asked in the prompt.
        native = output.via == "native" or (output.via is None and bool(model) and (await answer_modes(model)).native)
        if native:
            options = options.merge(ModelOptions(answer_schema=output.asked_schema))
        else:
            conversation = (*conversation, Msg.user(prompt_of(output)))
    refused, used = Refusals(output), Usage()
    while True:
        answer = await ask(conversation, options)
        used += one_call(answer.usage)
        try:
            value = await output.accept(output.answer_of(answer))
        except InvalidOutputError as error:
            problem = str(error)
            refused.add(refused.named_in(answer))
            if (exceeded := refused.exceeded) is not None:
                name = model if isinstance(model, str) else model.name
                raise OutputError(exceeded[0].name_of_form, exceeded[1], problem, answer, name) from error
            conversation = (*conversation, Msg.assistant(answer.text), Msg.user(problem))
        else:
            reply: Reply[Any] = Reply.of(answer, "completed", run_id, used, ())
            return replace(reply, value=value, typed=True)
