"""What plugins remember of a run's last request equals what a new look at the whole request would find."""

from __future__ import annotations

import random

import pytest

from agentflow import Msg, ToolResultBlock, ToolUseBlock
from agentflow.plugins._counting import LastRequest, Rendering, RequestSize, head_length, last_request, render
from agentflow.plugins.cache.model import RequestDigest
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.transcript import MessageView, Replacements, Transcript


def requests(seed: int) -> list[MessageView]:
    """The requests of a call, with all that may happen between two of them."""
    pick = random.Random(seed)
    transcript, made, replacements = Transcript(), list[MessageView](), Replacements()
    head: tuple[Msg, ...] = (Msg.system("Be brief."),)
    for n in range(12):
        transcript.append(Msg.user(f"question {n}" * pick.randint(1, 3)))
        transcript.append(Msg.assistant([ToolUseBlock(f"t{n}", "look", {"n": n})]))
        transcript.close_round([ToolResultBlock(f"t{n}", "look", "found " * pick.randint(1, 9))])
        if pick.random() < 0.1:
            head = (Msg.system(f"Be brief, {n}."),)
        if pick.random() < 0.1:
            transcript, replacements = Transcript(list(transcript.view())), Replacements()
        start = 3 * pick.randint(0, n) if pick.random() < 0.1 else 0
        view = transcript.view(head, start)
        if pick.random() < 0.3:
            place = len(head) + 3 * pick.randint(0, (len(view) - len(head)) // 3 - 1) + 2
            gone = ToolResultBlock(view[place].tool_results[0].tool_use_id, "look", "gone")
            replacements.put(view, place, Msg.tool([gone]))
        if replacements.order:
            view = view.with_replacements(replacements)
        if pick.random() < 0.4:
            view = view.with_tail(Msg.user(f"note {n}"))
        made.append(view)
        if pick.random() < 0.2:
            made.append(view)
    return made


@pytest.mark.parametrize("seed", range(200))
def test_what_is_remembered_gives_what_the_whole_gives(seed: int) -> None:
    """Sizes, texts, keys and tasks of growing requests, with other heads, transient messages, cuts and replacements."""
    size, rendering, digest, asked = RequestSize(), Rendering(20), RequestDigest(), LastRequest()
    for view in requests(seed):
        whole = tuple(view)
        request = ModelRequest(view, (), ModelOptions(), "m")
        assert size.of(view) == RequestSize().of(whole)
        assert rendering.of(view) == render(whole[head_length(whole) :], 20) == Rendering(20).of(whole)
        assert digest.of(request, None) == RequestDigest().of(ModelRequest(whole, (), ModelOptions(), "m"), None)
        assert asked.of(view) is last_request(whole)


def test_a_late_instruction_is_part_of_the_text() -> None:
    """Only the system prompt at the start is left out, in a growing view and in a plain list."""
    transcript, late = Transcript([Msg.user("a"), Msg.assistant("b")]), Msg.system("Hurry.")
    rendering, head = Rendering(), (Msg.system("Be brief."),)
    for _ in range(2):
        view = transcript.view(head).with_tail(late)
        assert rendering.of(view) == Rendering().of(tuple(view)) == render(tuple(view)[1:])
        assert "system: Hurry." in rendering.of(view)
        transcript.append(Msg.user("c"))


def test_another_request_has_another_key() -> None:
    """One letter in a message that was in the last request too, its tools, options or model: nothing is taken for the same."""
    transcript = Transcript([Msg.user("a"), Msg.assistant("b"), Msg.user("c")])
    digest = RequestDigest()
    keys = {
        digest.of(ModelRequest(view, (), options, model), vary)
        for view in (transcript.view(), transcript.view((Msg.system("s"),)), transcript.view().with_tail(Msg.user("d")))
        for options in (ModelOptions(), ModelOptions(temperature=0.5))
        for model in ("m", "n")
        for vary in (None, "u")
    }
    assert len(keys) == 24
