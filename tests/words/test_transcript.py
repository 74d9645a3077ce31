"""The transcript and `legalise`: orders that every strict provider accepts."""

import itertools
import random
import re

import pytest
from eventlog import history, use

from agentflow import DataBlock, Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.errors import TranscriptError
from agentflow.vocabulary.transcript import MessageView, Replacements, Transcript, legalise

CALLS = Msg.assistant([use("t1", "a"), use("t2", "b")])


def results(*ids: str) -> list[ToolResultBlock]:
    return [ToolResultBlock(i, "x", i) for i in ids]


def test_results_stand_in_call_order_behind_their_calls() -> None:
    """A round closes with one tool message in call order; messages injected meanwhile follow it, by call index."""
    transcript = Transcript([Msg.user("go"), CALLS])
    assert not transcript.inject(Msg.user("late"))
    assert not transcript.inject(Msg.user("second"), 1)
    assert not transcript.inject(Msg.user("first"), 0)
    transcript.close_round(results("t2", "t1"))
    assert history(transcript.messages)[2:] == [
        "tool: t1 success 't1'; t2 success 't2'",
        "user: first",
        "user: second",
        "user: late",
    ]


@pytest.mark.parametrize("ids", [["t1"], ["t1", "t1"], ["t1", "t2", "t3"], []])
def test_a_round_closes_with_exactly_its_results(ids: list[str]) -> None:
    """Missing, repeated and unknown results are refused, and change nothing."""
    transcript = Transcript([Msg.user("go"), CALLS])
    with pytest.raises(TranscriptError, match="exactly one result for each of"):
        transcript.close_round(results(*ids))
    assert len(transcript) == 2
    assert [block.id for block in transcript.open_round] == ["t1", "t2"]


def test_append_reports_whether_a_message_was_stored_at_once() -> None:
    """It was, calls included; in an open round messages wait."""
    transcript = Transcript()
    assert [transcript.append(msg) for msg in (Msg.user("go"), Msg.assistant("so"), Msg.user("on"), CALLS)] == [
        True
    ] * 4
    assert [transcript.append(msg) for msg in (Msg.user("more"), Msg.assistant("so"))] == [False] * 2
    assert len(transcript) == 4


def test_inject_reports_whether_a_message_was_stored_at_once() -> None:
    """It was, unless a round is open: then it waits for the results."""
    transcript = Transcript([Msg.user("go")])
    stored = [transcript.inject(Msg.user("one")), transcript.append(CALLS), transcript.inject(Msg.user("two"), 0)]
    transcript.close_round(results("t1", "t2"))
    stored.append(transcript.inject(Msg.user("three"), 0))
    assert stored == [True, True, False, True]
    assert [msg.text for msg in transcript.messages if msg.role == "user"] == ["go", "one", "two", "three"]


def test_what_cannot_be_stored() -> None:
    """System messages, repeated ids, calls in an open round, results without a round."""
    transcript = Transcript([Msg.user("go"), CALLS])
    for msg in (Msg.system("s"), Msg.tool(results("t1")), Msg.assistant([use("t3", "a")])):
        with pytest.raises(TranscriptError):
            transcript.append(msg)
    transcript.close_round(results("t1", "t2"))
    with pytest.raises(TranscriptError, match="unique"):
        transcript.append(CALLS)
    with pytest.raises(TranscriptError, match="answer no open call"):
        transcript.close_round(results("t1"))
    with pytest.raises(TranscriptError, match="is between"):
        Transcript([Msg.user("go"), CALLS, Msg.user("x")])


@pytest.mark.parametrize(("start", "head", "tail"), list(itertools.product((0, 1, 3), (0, 1, 2), (0, 1, 2))))
def test_a_view_is_read_like_the_tuple_of_its_messages(start: int, head: int, tail: int) -> None:
    """Each place, and each part between two places, forwards, backwards and beyond its ends; what came later is no part."""
    transcript = Transcript([Msg.user(f"{n}") for n in range(4)])
    before = tuple(Msg.system(f"head {n}") for n in range(head))
    view = transcript.view(before, start).with_tail(*(Msg.user(f"tail {n}") for n in range(tail)))
    transcript.append(Msg.user("later"))
    messages = tuple(view)
    places = range(-len(messages) - 2, len(messages) + 3)
    for place in places:
        if -len(messages) <= place < len(messages):
            assert view[place] is messages[place]
        else:
            with pytest.raises(IndexError):
                view[place]
    for first, last, step in itertools.product((None, *places), (None, *places), (None, 1, 2, -1, -2)):
        assert view[first:last:step] == messages[first:last:step]


def test_a_view_does_not_change() -> None:
    """A view taken before an append stays as it was."""
    transcript = Transcript([Msg.user("1")])
    view = transcript.messages
    transcript.append(Msg.assistant("2"))
    assert (history(view), len(transcript)) == (["user: 1"], 2)


def _legal(messages: tuple[Msg, ...]) -> bool:
    body = [msg for msg in messages if msg.role != "system"]
    head = [msg for msg in messages[: len(messages) - len(body)] if msg.role == "system"]
    if len(head) + len(body) != len(messages) or body[0].role != "user" or body[-1].role == "assistant":
        return False
    if any(msg.tool_uses for msg in body if msg.role != "assistant"):
        return False
    if any(msg.tool_results for msg in body if msg.role != "tool"):
        return False
    for before, after in itertools.pairwise([*body, Msg.user("end")]):
        uses = [block.id for block in before.tool_uses]
        if uses != [block.tool_use_id for block in after.tool_results]:
            return False
    return all(msg.content for msg in body)


def test_legalise_any_order() -> None:
    """Whatever hooks make of a request, what is sent is legal; a second pass changes nothing."""
    pool = [
        Msg.system("s"),
        Msg.user("u"),
        Msg.assistant("a"),
        CALLS,
        Msg.tool(results("t1", "t2")),
        Msg.tool(results("t2")),
        Msg.tool(results("t9")),
        Msg.assistant([use("t1", "a")]),
        Msg.user(""),
        Msg.assistant(""),
        Msg("user", (TextBlock("calls"), use("t3", "c"))),
        Msg("user", (TextBlock("answers"), *results("t1"))),
        Msg("assistant", (TextBlock("answers"), *results("t2"))),
    ]
    dice = random.Random(7)
    for _ in range(1_000):
        given = [dice.choice(pool) for _ in range(dice.randrange(7))]
        legal = legalise(given)
        assert _legal(legal), history(given)
        assert all(one is two for one, two in zip(legalise(legal), legal, strict=True))
        unchanged = [msg for msg in legal if msg in given and msg.role != "tool"]
        assert all(any(msg is same for same in given) for msg in unchanged)


def test_legalise_loses_no_text() -> None:
    """Whatever the order, the texts of users, assistants and systems stay, once each and in their order."""
    dice = random.Random(8)
    roles = ("system", "user", "assistant")
    for _ in range(300):
        given = [Msg(dice.choice(roles), (TextBlock(f"<{n}>"),)) for n in range(dice.randrange(7))]
        said = "".join(msg.text for msg in legalise(given))
        assert re.findall(r"<\d>", said) == [msg.text for msg in given], history(given)


def test_only_tool_messages_answer_calls() -> None:
    """A result in a message of another role is removed, and its call is answered with "(no result)"."""
    elsewhere = [Msg(role, (TextBlock("so"), *results("t1"))) for role in ("user", "assistant")]
    for answer in elsewhere:
        legal = legalise([Msg.user("go"), answer, Msg.assistant([use("t1", "a")]), Msg.user("end")])
        assert [result.text for msg in legal for result in msg.tool_results] == ["(no result)"]


def test_legalise_keeps_the_name_of_a_message_that_it_changes() -> None:
    """The speaker is the same, also where a call or a result is removed."""
    ada = [
        Msg.user("go", ToolResultBlock("t9", "x", "?"), name="ada"),
        Msg.assistant([TextBlock("a"), use("t1", "a")], name="ada"),
        Msg.assistant([TextBlock("b"), use("t1", "a")], name="ada"),
    ]
    legal = legalise([*ada, Msg.user("end", name="ada")])
    assert [msg.text for msg in legal if msg.name == "ada"] == ["go", "a", "b", "end"]


def test_legalise_keeps_what_is_legal() -> None:
    """Messages that were right already are the same objects."""
    given = (Msg.system("s"), Msg.user("go"), CALLS, Msg.tool(results("t1", "t2")))
    assert [msg.id for msg in legalise(given)][:3] == [msg.id for msg in given][:3]


# ---- replacements


def _asked(count: int) -> Transcript:
    """A conversation of so many rounds."""
    transcript = Transcript([Msg.user("go")])
    for n in range(count):
        transcript.append(Msg.assistant(ToolUseBlock(f"t{n}", "look")))
        transcript.close_round([ToolResultBlock(f"t{n}", "look", f"result {n}")])
    return transcript


def test_replacements_are_seen_in_later_views_only() -> None:
    """A view shows what had been replaced when it was made, wherever it is read; the stored messages stay."""
    transcript, replacements = _asked(3), Replacements()
    base = transcript.view((Msg.system("s"),))
    assert replacements.put(base, 3, Msg.tool([ToolResultBlock("t0", "look", "gone 0")]))
    first = base.with_replacements(replacements)
    assert replacements.put(base, 5, Msg.tool([ToolResultBlock("t1", "look", "gone 1")]))
    second = base.with_replacements(replacements).with_tail(Msg.user("note"))

    def results(view: MessageView) -> list[str]:
        assert [view[index] for index in range(len(view))] == list(view) == [*view[:4], *view[4:]]
        assert [*view[:4], *view.since(4), *view.tail] == list(view)
        assert ([*reversed(view)][::-1], view == list(view), [view.index(msg) for msg in view]) == (
            list(view),
            True,
            [*range(len(view))],
        )
        return [result.text for msg in view for result in msg.tool_results]

    assert results(first) == ["gone 0", "result 1", "result 2"]
    assert results(second) == ["gone 0", "gone 1", "result 2"]
    assert results(base) == results(transcript.view()) == ["result 0", "result 1", "result 2"]
    assert first.only_adds_to(base)
    assert second.only_adds_to(base)


def test_what_views_with_replacements_share_ends_at_the_first_that_was_added() -> None:
    """Nothing is taken for the same that is not."""
    transcript, replacements = _asked(4), Replacements()
    base = transcript.view()
    assert replacements.put(base, 6, Msg.tool([ToolResultBlock("t2", "look", "gone 2")]))
    first = base.with_replacements(replacements)
    assert replacements.put(base, 4, Msg.tool([ToolResultBlock("t1", "look", "gone 1")]))
    second = base.with_replacements(replacements)
    assert (first.shared(base), second.shared(base), second.shared(first), first.shared(second)) == (6, 4, 4, 4)
    assert (second.shared(second), base.shared(base)) == (9, 9)
    assert base.with_replacements(Replacements()).shared(base) == 9
    other = Replacements()
    assert other.put(base, 8, Msg.tool([ToolResultBlock("t3", "look", "gone 3")]))
    assert base.with_replacements(other).shared(first) == 0


def test_only_what_is_legal_in_its_place_replaces() -> None:
    """Another role, other calls, other ids, what is not stored, and what is replaced already: refused."""
    transcript, replacements = _asked(2), Replacements()
    base = transcript.view((Msg.system("s"),))
    result = Msg.tool([ToolResultBlock("t0", "look", "gone")])
    assert not replacements.put(base, 0, Msg.system("t"))
    assert not replacements.put(base, 1, Msg.assistant("x"))
    assert not replacements.put(base, 2, Msg.assistant(ToolUseBlock("t9", "look")))
    assert not replacements.put(base, 3, Msg.tool([ToolResultBlock("t1", "look", "gone")]))
    assert replacements.put(base, 3, result)
    assert not replacements.put(base, 3, result)
    assert list(base.with_replacements(replacements)) == [*base[:3], result, *base[4:]]


def test_a_view_only_adds_to_views_of_the_same_stored_messages() -> None:
    """Only system messages may differ before them, and only the user's text may follow; equal messages of another list
    are others.
    """
    stored = [Msg.user("a"), Msg.assistant("b"), Msg.user("c")]
    base = MessageView(stored, 3, (Msg.system("s"),))
    assert list(MessageView(stored, 2)) == stored[:2]
    assert base.only_adds_to(base)
    assert MessageView(stored, 3, (Msg.system("t"), Msg.system("u")), tail=(Msg.user("d"),)).only_adds_to(base)
    others = [
        MessageView(list(stored), 3, base.head),
        MessageView([*stored[:2], Msg.user("d")], 3, base.head),
        MessageView(stored, 2, base.head),
        MessageView(stored, 3, base.head, start=1),
        MessageView(stored, 3, (Msg.user("s"),)),
        MessageView(stored, 3, base.head, tail=(Msg.assistant("d"),)),
        MessageView(stored, 3, base.head, tail=(Msg("user", (TextBlock("d"), DataBlock("image/png", "aGk="))),)),
        MessageView(stored, 3, base.head, tail=(Msg.user(""),)),
    ]
    assert [view.only_adds_to(base) for view in others] == [False] * len(others)
