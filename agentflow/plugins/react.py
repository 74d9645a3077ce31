"""ReAct thoughts: before it acts, the agent states its intent, in a separate model call or by instruction only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._counting import Rendering, head_length
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import HookEvent, PostReasoning, PreReasoning
from agentflow.vocabulary.messages import Msg, TextBlock
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.transcript import MessageView

__all__ = ["CHAIN_OF_THOUGHT", "THINK", "ChainOfThought", "ReActThoughts", "Thoughts"]

THINK = """You are the inner voice of an agent. Read its conversation so far and the tools that it has. In one to three short \
sentences, say what is known, what is missing, and what it should do next, and why. Do not answer the user, and do not \
write a tool call."""

CHAIN_OF_THOUGHT = """Before you call a tool, write one short paragraph that begins with "Thought:": what you know, what is \
missing, and what you expect of the call. Then call the tool. When nothing is missing, answer without a thought."""

SOURCE = "thought"


@dataclass
class Thoughts:
    """The thoughts of a run: `event.context.state[Thoughts].texts`.

    Attributes:
        texts: The thoughts, in order.
    """

    texts: list[str] = field(default_factory=list[str])


class _Head:
    """The system messages of the last request, before and after the instruction was added."""

    def __init__(self) -> None:
        self.before: tuple[Msg, ...] | None = None
        self.after: tuple[Msg, ...] = ()


class ReActThoughts(Hook):
    """Before each reply, a side call to a model states what the agent should do next, and the agent's model sees this thought.

    With `keep=True`, a thought is stored in the history (as a user message, which every provider accepts) and marked
    `metadata["synthetic"] == "thought"`, and consumers see it in `MessagesAdded`. Otherwise it is part of a single request. In
    both cases it is in `event.context.state[Thoughts].texts`.

    If a thought fails or takes too long, it is left out, and the run continues.

    The hook makes one more model call per round, with the whole conversation, so its cost grows with the conversation.
    `ChainOfThought` instructs the model itself instead, and costs a few tokens.

    Priority 310 (behaviour).

    Args:
        model: The thinking model, or its name; the agent's own by default.
        prompt: The instructions. The tools and the conversation follow, as text.
        keep: Store the thoughts in the history.
        clip: The maximum number of characters of one message shown to the thinking model.
        timeout: The time limit of a thought, in seconds.

    Example:
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[ReActThoughts(keep=False)])
    """

    priority = 310
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(
        self,
        model: str | Model | None = None,
        prompt: str = THINK,
        *,
        keep: bool = True,
        clip: int = 4_000,
        timeout: float | None = 60.0,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.keep = keep
        self.clip = clip
        self.timeout = timeout

    async def on_event(self, event: HookEvent) -> None:
        """Think, and add the thought after the conversation."""
        if not isinstance(event, PreReasoning) or event.purpose == "summary":
            return
        context = event.context
        tools = "\n".join(f"- {spec.name}: {spec.description}" for spec in event.tools) or "- none"
        conversation = own(context, self, Rendering, self.clip).of(event.input_messages)
        question = f"The tools:\n{tools}\n\nThe conversation:\n{conversation}"
        reply = await context.complete((Msg.system(self.prompt), Msg.user(question)), model=self.model, source=SOURCE)
        text = reply.text.strip()
        if not text:
            return
        context.state[Thoughts].texts.append(text)
        context.inject(f"[thought] {text}", keep=self.keep, source=SOURCE)


class ChainOfThought(Hook):
    """Instructs the model to write a thought before it calls a tool, and records the thoughts.

    The instruction is added to the system prompt of each request with tools, always the same, and never stored. The
    thought is the text of the reply that calls the tools: consumers see it in `ReasoningChunk` and `PostReasoning`, the
    history keeps it, and `event.context.state[Thoughts].texts` lists it.

    Priority 320 (behaviour).

    Args:
        prompt: The instruction.

    Example:
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[ChainOfThought()])
    """

    priority = 320
    on_failure = "skip"
    events = (PreReasoning, PostReasoning)

    def __init__(self, prompt: str = CHAIN_OF_THOUGHT) -> None:
        if not prompt.strip():
            raise UsageError("ChainOfThought(prompt=...) is empty. Pass the instruction for the model.")
        self.prompt = prompt

    def concerns(self, reply: Msg) -> bool:
        """Return whether the reply calls tools."""
        return bool(reply.tool_uses)

    def on_event(self, event: HookEvent) -> None:
        """Add the instruction, or record the thought."""
        if isinstance(event, PreReasoning):
            if event.purpose == "reason" and event.tools:  # the instruction is about tool calls
                event.input_messages = self._with_prompt(event.input_messages, own(event.context, self, _Head))
        elif isinstance(event, PostReasoning):
            reply = event.reasoning_result
            if (text := reply.text.strip()) and reply.tool_uses:
                event.context.state[Thoughts].texts.append(text)

    def _with_prompt(self, messages: Sequence[Msg], head: _Head) -> Sequence[Msg]:
        """Add the instruction to the system prompt; the result is reused for requests with the same system prompt."""
        view = messages if isinstance(messages, MessageView) else None
        # Most requests of a run share one head object, so compare it by identity first.
        if view is None or view.head is not head.before:
            length, before = head_length(messages), head.before
            if view is None or length != len(view.head):  # a hook has added system messages after the head
                return (*self._grown(tuple(messages[:length])), *messages[length:])
            if before is None or len(before) != length or not all(map(is_, before, view.head)):
                head.after = self._grown(view.head)
            head.before = view.head
        return view.with_head(head.after)

    def _grown(self, head: tuple[Msg, ...]) -> tuple[Msg, ...]:
        """Add the instruction to the last system message: several providers support only one."""
        if not head:
            return (Msg.system(self.prompt),)
        last = head[-1]
        *blocks, end = last.content or (TextBlock(""),)
        added = (
            [TextBlock(f"{end.text}\n\n{self.prompt}")] if isinstance(end, TextBlock) else [end, TextBlock(self.prompt)]
        )
        return (*head[:-1], replace(last, content=(*blocks, *added)))
