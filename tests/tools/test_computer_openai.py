"""OpenAI's computer use: each action of a `computer_call` is a tool call, and the results return as one output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from agentflow import (
    Agent,
    Answer,
    Approve,
    DataBlock,
    Deny,
    Model,
    ModelOptions,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    Session,
    Suspend,
    ToolResultBlock,
    ToolSchedule,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import UsageError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.computer_calls import joined, split, translated
from agentflow.models.loose import NotUnderstoodError
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.responses_in import ItemsReader
from agentflow.plugins import Approval
from agentflow.plugins.approval import ApprovalDecision, ApprovalRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import ScriptedCall, UseTool, WireReply, WireServer
from agentflow.tools import Tool, ToolContext, computer_tool
from agentflow.vocabulary.chunks import ModelChunk, fold


def shot(number: int = 0) -> DataBlock:
    """A screenshot, after this number of actions."""
    return DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes([number] * 8), "image/png")


SHOT = shot()
CLICK = {"type": "click", "button": "left", "x": 10, "y": 20}
TYPE = {"type": "type", "text": "rm -rf /"}
SEE = {"type": "screenshot"}
CHECK = {"id": "cu_sc_1", "code": "malicious_instructions", "message": "The page gives orders."}
ALL = [
    CLICK,
    {**CLICK, "button": "right", "keys": ["CTRL", "SHIFT"]},
    {**CLICK, "button": "wheel"},
    {"type": "double_click", "x": 1, "y": 2, "keys": None},
    {"type": "move", "x": 3, "y": 4},
    {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
    {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 9, "y": 9}, {"x": 3, "y": 4}]},
    {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 360},
    {"type": "scroll", "x": 1, "y": 2, "scroll_x": -10, "scroll_y": 0},
    {"type": "keypress", "keys": ["CTRL", "A"]},
    {"type": "keypress", "keys": ["ARROWDOWN"]},
    TYPE,
    {"type": "wait"},
    SEE,
]
IN_CLAUDES_TERMS = [
    {"action": "left_click", "coordinate": [10, 20]},
    {"action": "right_click", "coordinate": [10, 20], "text": "ctrl+shift"},
    {"action": "middle_click", "coordinate": [10, 20]},
    {"action": "double_click", "coordinate": [1, 2]},
    {"action": "mouse_move", "coordinate": [3, 4]},
    {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]},
    {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4], "path": [[1, 2], [9, 9], [3, 4]]},
    {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "down", "scroll_amount": 3},
    {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "left", "scroll_amount": 1},
    {"action": "key", "text": "ctrl+a"},
    {"action": "key", "text": "Down"},
    {"action": "type", "text": "rm -rf /"},
    {"action": "wait", "duration": 2},
    {"action": "screenshot"},
]
ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseInputItemParam])


def act(*actions: object, **more: object) -> ScriptedCall:
    """A computer call."""
    return ScriptedCall("computer", {"actions": actions, **more})


def asks(*actions: object, **more: object) -> WireReply:
    """A reply with one computer call."""
    return WireReply(calls=(act(*actions, **more),))


def display(done: list[Any], *, sees: bool = False, **options: Any) -> Tool[..., Any]:
    """A display that notes the actions, and returns a screenshot for each one, or only if it is requested."""
    options = {"requires_approval": False, **options}

    async def run(action: dict[str, Any], context: ToolContext) -> object:
        done.append(action)
        if sees:
            return shot(len(done))
        return SHOT if action["action"] == "screenshot" else "done"

    return computer_tool(run, width=1024, height=768, **options)


def wire(server: WireServer, name: str = "gpt-5.4") -> OpenAIWire:
    return OpenAIWire(name, api_base=server.base_url, api_key="k", family="openai", retries=0)


def inputs(server: WireServer) -> list[list[dict[str, Any]]]:
    """The items of each request, which the server and OpenAI's own types accept."""
    assert [request.refused for request in server.requests] == [None] * len(server.requests)
    found = [cast("Any", request.body)["input"] for request in server.requests]
    for items in found:
        for item in items:  # (the types lack `detail`, which the guide has)
            ITEMS.validate_python(
                [
                    {**item, "output": {**item["output"], "detail": None}}
                    if "computer" in item.get("type", "") and "output" in item
                    else item
                ]
            )
    return found


def call(ident: str, *actions: object, checks: Sequence[object] = ()) -> dict[str, Any]:
    return {
        "type": "computer_call",
        "id": f"cu_{ident}",
        "call_id": ident,
        "status": "completed",
        "actions": [*actions],
        "pending_safety_checks": [*checks],
    }


def seen(ident: str, number: int = 0, **more: object) -> dict[str, Any]:
    image = {
        "type": "computer_screenshot",
        "image_url": f"data:image/png;base64,{shot(number).data}",
        "detail": "original",
    }
    return {"type": "computer_call_output", "call_id": ident, "output": image, **more}


def function(ident: str, **arguments: object) -> dict[str, Any]:
    return {"type": "function_call", "call_id": ident, "name": "computer", "arguments": arguments}


def returned(ident: str, output: object) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": ident, "output": output}


def read(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items with the arguments of their function calls as objects."""
    return [{**one, "arguments": json.loads(one["arguments"])} if "arguments" in one else one for one in items]


@on(guard=True)
def no_typing(event: PreActing) -> Deny | None:
    return Deny("no typing") if event.tool_use.input["action"] == "type" else None


# ---- each action is a call


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_guard_sees_every_action(streamed: bool, closed_clients: None) -> None:
    """Each action of one `computer_call` has its own `PreActing` and `PostActing`, one after the other, in the terms of
    Claude's tool; the function gets the same.
    """
    done: list[Any] = []
    log: list[object] = []

    @on(guard=True)
    def guard(event: PreActing) -> None:
        log.append((event.tool_use.id, event.tool_use.input["action"], len(done)))

    @on
    def after(event: PostActing) -> None:
        log.append((event.tool_use.id, event.tool_result.state, len(done)))

    async with WireServer.openai([asks(*ALL), "Done."]) as server:
        agent = Agent("a", wire(server), tools=[display(done)], hooks=[guard, after])
        if streamed:
            async with agent.stream("Go.") as events:
                _ = [event async for event in events]
        else:
            await agent.call("Go.")
    assert done == IN_CLAUDES_TERMS
    expected: list[object] = []
    for n, action in enumerate(IN_CLAUDES_TERMS):
        expected += [(f"call_wire_0_0-cu{n}", action["action"], n), (f"call_wire_0_0-cu{n}", "success", n + 1)]
    assert log == expected
    texts = "\n".join([f"[result of computer, {one['action']}] done" for one in IN_CLAUDES_TERMS[:-1]])
    assert inputs(server)[1][1:] == [
        call("call_wire_0_0", *ALL),
        seen("call_wire_0_0"),
        {"role": "user", "content": texts},
    ]
    assert [cast("Any", one.body)["tools"] for one in server.requests] == [[{"type": "computer"}]] * 2


async def test_actions_take_turns_under_any_schedule(closed_clients: None) -> None:
    """There is one display: an action begins when the one before has ended, also if tools run in parallel."""
    steps: list[str] = []

    async def run(action: dict[str, Any], context: ToolContext) -> object:
        steps.append(f"{action['action']} begins")
        await asyncio.sleep(0.02 if action["action"] == "left_click" else 0)
        steps.append(f"{action['action']} ends")
        return shot()

    tools = [computer_tool(run, width=1024, height=768, requires_approval=False)]
    async with WireServer.openai([asks(CLICK, TYPE, SEE), "Done."]) as server:
        await Agent("a", wire(server), tools=tools, schedule=ToolSchedule.PARALLEL).call("Go.")
    assert steps == [f"{name} {step}" for name in ("left_click", "type", "screenshot") for step in ("begins", "ends")]


@pytest.mark.parametrize(("actions", "performed"), [([CLICK, TYPE, CLICK], 2), ([CLICK, TYPE], 1), ([TYPE, CLICK], 1)])
async def test_one_denied_action(actions: list[Any], performed: int, closed_clients: None) -> None:
    """The later actions run, the screenshot is the last one, and the model reads what was denied."""
    done: list[Any] = []
    async with WireServer.openai([asks(*actions), "Done."]) as server:
        await Agent("a", wire(server), tools=[display(done, sees=True)], hooks=[no_typing]).call("Go.")
    assert [one["action"] for one in done] == ["left_click"] * performed
    assert inputs(server)[1][1:] == [
        call("call_wire_0_0", *actions),
        seen("call_wire_0_0", performed),
        {"role": "user", "content": "[result of computer, type] Denied: no typing"},
    ]


async def test_each_action_waits_for_a_person(closed_clients: None) -> None:
    """By default every action needs its own approval, and one can be denied."""
    done: list[Any] = []
    async with WireServer.openai([asks(CLICK, TYPE, SEE), "Done."]) as server:
        agent = Agent("a", wire(server), tools=[display(done, requires_approval=True)])
        reply = await agent.call("Go.", session="s")
        asked: list[object] = []
        while reply.pending:
            (waits,) = reply.pending
            assert waits.tool_use is not None
            asked.append((waits.id, waits.tool_use.input["action"], len(done)))
            verdict = Deny("not this") if waits.tool_use.input["action"] == "type" else Approve()
            reply = await agent.resume("s", {waits.id: verdict})
    name = "call_wire_0_0-cu"
    assert asked == [(f"{name}0", "left_click", 0), (f"{name}1", "type", 1), (f"{name}2", "screenshot", 1)]
    assert [one["action"] for one in done] == ["left_click", "screenshot"]
    assert inputs(server)[1][2:] == [
        seen("call_wire_0_0"),
        {
            "role": "user",
            "content": "[result of computer, left_click] done\n[result of computer, type] Denied: not this",
        },
    ]


# ---- safety checks


def allow(event: PreActing) -> None:
    event.context.approve(event.tool_use.id)


def refuse(event: PreActing) -> Deny:
    return Deny("a check")


def clear(event: PreActing) -> None:
    rest = {name: value for name, value in event.tool_use.input.items() if name != "pending_safety_checks"}
    event.tool_use = event.tool_use.replace(input=rest)


ACKNOWLEDGED = [call("call_wire_0_0", SEE, checks=[CHECK]), seen("call_wire_0_0", acknowledged_safety_checks=[CHECK])]
BLIND = ToolResultBlock("", "computer", (SHOT,), "denied")
DENIED = {"type": "input_text", "text": "(denied)"}
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{SHOT.data}"}
UNDONE = function("call_wire_0_0-cu0", action="screenshot", openai=SEE, pending_safety_checks=[CHECK])


@pytest.mark.parametrize(
    ("hook", "decision", "performed", "sent"),
    [
        (None, Approve(), 1, ACKNOWLEDGED),
        (allow, None, 1, ACKNOWLEDGED),
        (clear, None, 1, ACKNOWLEDGED),
        (None, Deny("no"), 0, [UNDONE, returned("call_wire_0_0-cu0", "Denied: no")]),
        (None, Answer("later"), 0, [UNDONE, returned("call_wire_0_0-cu0", "later")]),
        (None, Answer(BLIND), 0, [UNDONE, returned("call_wire_0_0-cu0", [DENIED, IMAGE])]),
        (refuse, None, 0, [UNDONE, returned("call_wire_0_0-cu0", "Denied: a check")]),
    ],
    ids=[
        "approved",
        "approved by a hook",
        "removed by a hook",
        "denied",
        "answered",
        "denied with an image",
        "denied by a hook",
    ],
)
async def test_safety_checks(hook: Any, decision: Any, performed: int, sent: Any, closed_clients: None) -> None:
    """Also without `requires_approval` an action with checks waits for a person. The checks are in its input, and are
    acknowledged only if the action was performed.
    """
    done: list[Any] = []
    hooks = [] if hook is None else [on(PreActing)(hook)]
    async with WireServer.openai([asks(SEE, pending_safety_checks=[CHECK]), "Done."]) as server:
        agent = Agent("a", wire(server), tools=[display(done)], hooks=hooks)
        reply = await agent.call("Go.", session="s")
        if decision is not None:
            (waits,) = reply.pending
            assert waits.tool_use is not None
            assert (reply.outcome, waits.hook, done) == ("suspended", "safety_checks", [])
            assert [*waits.tool_use.input["pending_safety_checks"]] == [CHECK]
            assert waits.request["input"] == dict(waits.tool_use.input)
            reply = await agent.resume("s", {waits.id: decision})
    assert reply.text == "Done."
    assert done == [{"action": "screenshot"}] * performed
    assert read(inputs(server)[1][1:]) == sent


@pytest.mark.parametrize(
    "wrong",
    [
        {"pending_safety_checks": CHECK},
        {"pending_safety_checks": "malicious_instructions"},
        {"call_id": "", "id": ""},
        {"actions": []},
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(wrong: dict[str, Any]) -> None:
    """Checks in another form are not taken for none."""
    with pytest.raises(NotUnderstoodError):
        split({"call_id": "call_1", "actions": [CLICK], **wrong})


async def test_a_lasting_approval_is_none_of_a_safety_check(closed_clients: None) -> None:
    """A person who has always allowed the display is asked about an action with checks, and can allow it only once."""
    asked: list[object] = []
    done: list[Any] = []

    def ask(request: ApprovalRequest) -> ApprovalDecision:
        asked.append((request.tool_use.input["action"], request.choices))
        return ApprovalDecision("always" if len(asked) == 1 else "once")

    replies = [asks(CLICK), asks(CLICK), asks(SEE, pending_safety_checks=[CHECK]), "Done."]
    async with WireServer.openai(replies) as server:
        await Agent("a", wire(server), tools=[display(done)], hooks=[Approval(ask=ask)]).call("Go.")
    every = ("once", "session", "always", "no")
    assert asked == [("left_click", every), ("screenshot", ("once", "no"))]
    assert [one["action"] for one in done] == ["left_click", "left_click", "screenshot"]


async def test_checks_of_several_actions(closed_clients: None) -> None:
    """Each action waits; the checks are acknowledged if one was performed, and the model reads of the other."""
    done: list[Any] = []
    async with WireServer.openai([asks(TYPE, SEE, pending_safety_checks=[CHECK]), "Done."]) as server:
        agent = Agent("a", wire(server), tools=[display(done)])
        reply = await agent.call("Go.", session="s")
        reply = await agent.resume("s", {reply.pending[0].id: Deny("no")})
        await agent.resume("s", {reply.pending[0].id: Approve()})
    assert done == [{"action": "screenshot"}]
    assert inputs(server)[1][1:] == [
        call("call_wire_0_0", TYPE, SEE, checks=[CHECK]),
        seen("call_wire_0_0", acknowledged_safety_checks=[CHECK]),
        {"role": "user", "content": "[result of computer, type] Denied: no"},
    ]


# ---- what a computer call cannot express


BACK = {"type": "click", "button": "back", "x": 1, "y": 1}
TWO_WAYS = {"type": "scroll", "x": 1, "y": 1, "scroll_x": 5, "scroll_y": 5}


@pytest.mark.parametrize(
    "action", [{"type": "format_disk"}, BACK, TWO_WAYS, {"type": "click"}, {"type": "move", "x": "1"}]
)
async def test_an_unknown_action(action: dict[str, Any], closed_clients: None) -> None:
    """Nothing runs, nobody is asked, the model reads an error, and the other actions run."""
    done: list[Any] = []
    async with WireServer.openai([asks(action, SEE), "Done."]) as server:
        await Agent("a", wire(server), tools=[display(done)]).call("Go.", session="s")
    assert done == [{"action": "screenshot"}]
    made, screen, error, image = read(inputs(server)[1][1:])
    name = translated(action)["action"]
    assert name.startswith(f"unsupported {action['type']}")
    assert made == function("call_wire_0_0-cu0", action=name, openai=action)
    assert screen == function("call_wire_0_0-cu1", action="screenshot", openai=SEE)
    assert image["output"][0]["type"] == "input_image"
    assert error["output"].endswith(f'got "{name}"')


@pytest.mark.parametrize(
    ("action", "made"),
    [
        ({**CLICK, "button": "middle"}, {"action": "middle_click", "coordinate": [10, 20]}),
        ({"type": "click", "x": 1, "y": 2}, {"action": "left_click", "coordinate": [1, 2]}),
        ({"type": "double_click", "button": "right", "x": 1, "y": 2}, {"action": "unsupported double_click"}),
        (
            {"type": "scroll", "x": 1, "y": 2, "scrollX": 0, "scrollY": -240},
            {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "up", "scroll_amount": 2},
        ),
        (
            {"type": "drag", "path": [[1, 2], [3, 4]]},
            {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]},
        ),
        ("screenshot", {"action": "unsupported"}),
    ],
)
def test_forms_of_an_action(action: Any, made: dict[str, Any]) -> None:
    """Forms that OpenAI's guide has and its types do not are understood; nothing is guessed."""
    assert translated(action) == made


async def test_a_path_that_leaves_the_display(closed_clients: None) -> None:
    """All points of a drag are checked."""
    done: list[Any] = []
    path = [{"x": 1, "y": 2}, {"x": 5000, "y": 9}, {"x": 3, "y": 4}]
    async with WireServer.openai([asks({"type": "drag", "path": path}), "Done."]) as server:
        await Agent("a", wire(server), tools=[display(done)]).call("Go.")
    assert done == []
    assert "path [5000, 9] is outside the display of 1024 x 768 pixels" in inputs(server)[1][2]["output"]


@pytest.mark.parametrize("actions", [[CLICK], [SEE, CLICK]])
async def test_no_screenshot_of_the_last_action(actions: list[Any], closed_clients: None) -> None:
    """The results are sent as those of functions: no picture is invented, and none is shown that is out of date."""
    async with WireServer.openai([asks(*actions), "Done."]) as server:
        await Agent("a", wire(server), tools=[display([])]).call("Go.")
    sent = read(inputs(server)[1][1:])
    assert sent[-1] == returned(f"call_wire_0_0-cu{len(actions) - 1}", "done")
    assert [one["type"] for one in sent] == ["function_call"] * len(actions) + ["function_call_output"] * len(actions)


async def test_a_changed_history(closed_clients: None) -> None:
    """A call that a hook has changed in the reply is sent as it now is."""
    done: list[Any] = []

    @on
    def redact(event: PostReasoning) -> None:
        changed = [
            block.replace(input={**block.input, "text": "***"}) if isinstance(block, ToolUseBlock) else block
            for block in event.reasoning_result.content
        ]
        event.reasoning_result = replace(event.reasoning_result, content=tuple(changed))

    async with WireServer.openai([asks(TYPE), "Done."]) as server:
        await Agent("a", wire(server), tools=[display(done, sees=True)], hooks=[redact]).call("Go.")
    assert done == [{"action": "type", "text": "***"}]
    assert read(inputs(server)[1])[1]["arguments"]["text"] == "***"


# ---- conversations


async def test_a_stored_conversation(closed_clients: None) -> None:
    """It is sent the same after it was saved as JSON, also by a model that has not seen it."""
    session = Session.fresh()
    script = [asks(CLICK, SEE, pending_safety_checks=[CHECK]), "Done.", "Yes.", "Yes."]
    async with WireServer.openai(script) as server:
        agent = Agent("a", wire(server), tools=[display([], requires_approval=True)])
        reply = await agent.call("Go.", session=session)
        while reply.pending:
            session = Session.from_json(session.to_json())
            reply = await agent.resume(session, {reply.pending[0].id: Approve()})
        again = Session.from_json(session.to_json())
        await agent.call("Sure?", session=session)
        await Agent("a", wire(server), tools=[display([])]).call("Sure?", session=again)
    _, _, third, fourth = inputs(server)
    assert third == fourth
    assert third[1:3] == [
        call("call_wire_0_0", CLICK, SEE, checks=[CHECK]),
        seen("call_wire_0_0", acknowledged_safety_checks=[CHECK]),
    ]


async def test_thoughts_and_other_calls_beside_it(closed_clients: None) -> None:
    """A thought is sent back before the call that it led to; two computer calls and a function call of one reply have
    one result each.
    """

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    reply = WireReply(thinking="hm", calls=(act(CLICK, SEE), ScriptedCall("look"), act(SEE)))
    async with WireServer.openai([reply, "Done."]) as server:
        options = ModelOptions(thinking="low")
        await Agent("a", wire(server), tools=[display([]), look], options=options).call("Go.")
    thought, *rest = inputs(server)[1][1:]
    assert thought["type"] == "reasoning"
    assert rest == [
        call("call_wire_0_0", CLICK, SEE),
        {"type": "function_call", "call_id": "call_wire_0_1", "name": "look", "arguments": "{}"},
        call("call_wire_0_2", SEE),
        seen("call_wire_0_0"),
        returned("call_wire_0_1", "nothing"),
        seen("call_wire_0_2"),
        {"role": "user", "content": "[result of computer, left_click] done"},
    ]


async def test_a_conversation_moves_between_models(closed_clients: None) -> None:
    """Computer calls of another vendor, and in requests without the tool, are sent as ordinary calls."""
    session = Session.fresh()
    there = UseTool("computer", {"action": "screenshot"}, id="toolu_1")
    async with (
        WireServer.openai([asks(CLICK, SEE), "Done.", "Yes.", "Yes."]) as openai,
        WireServer.anthropic(["Sure.", there, "Done."]) as anthropic,
    ):
        claude = AnthropicWire("claude-sonnet-4-5", api_base=anthropic.url, api_key="k")
        tools = [display([])]
        await Agent("a", wire(openai), tools=tools).call("Go.", session=session)
        await Agent("a", claude, tools=tools).call("Sure?", session=session)
        await Agent("a", claude, tools=tools).call("Look.", session=session)
        await Agent("a", wire(openai), tools=tools).call("Sure?", session=session)
        await Agent("a", wire(openai)).call("Sure?", session=session)
    assert [request.refused for request in anthropic.requests] == [None] * 3
    made, results = cast("Any", anthropic.requests[0].body)["messages"][1:3]
    assert [(one["id"], one["name"], one["input"]["action"]) for one in made["content"]] == [
        ("call_wire_0_0-cu0", "computer", "left_click"),
        ("call_wire_0_0-cu1", "computer", "screenshot"),
    ]
    assert [one["tool_use_id"] for one in results["content"]] == ["call_wire_0_0-cu0", "call_wire_0_0-cu1"]
    _, _, third, fourth = inputs(openai)
    kinds = [[one["type"] for one in items if "type" in one] for items in (third, fourth)]
    foreign = ["function_call", "function_call_output"]
    assert kinds == [
        ["computer_call", "computer_call_output", *foreign],
        ["function_call"] * 2 + ["function_call_output"] * 2 + foreign,
    ]


async def test_a_choice_of_the_tool(closed_clients: None) -> None:
    """A forced tool is named by its type."""
    async with WireServer.openai(["Done."]) as server:
        await Agent("a", wire(server), tools=[display([])], options=ModelOptions(tool_choice="computer")).call("Go.")
    assert cast("Any", server.requests[0].body)["tool_choice"] == {"type": "computer"}


# ---- reading


def reply_of(*events: dict[str, Any]) -> Msg:
    reader = ItemsReader("openai/gpt-5.4", lambda usage, kept, searches: ModelChunk(usage=usage))
    return fold([chunk for event in events for chunk in reader.read(json.dumps(event).encode())])


def item(**fields: Any) -> dict[str, Any]:
    return {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_1",
        "status": "completed",
        "actions": [SEE],
        **fields,
    }


def ended(*output: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"output": [*output]}}


def done(made: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": 0, "item": made}


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([done(item()), ended(item())], [("call_1-cu0", "screenshot")]),
        ([done(item()), done(item()), ended()], [("call_1-cu0", "screenshot")]),
        ([ended(item())], [("call_1-cu0", "screenshot")]),
        ([done(item(actions=None, action=CLICK)), ended()], [("call_1-cu0", "left_click")]),
        ([done(item(call_id="")), ended()], [("cu_1-cu0", "screenshot")]),
        ([done(item(call_id="c" * 64)), ended()], [("call_52b6419d27bd7f547cee3b92-cu0", "screenshot")]),
        ([done(item(status="incomplete")), ended()], []),
    ],
    ids=["both", "twice", "at the end", "of the preview", "no id", "a long id", "incomplete"],
)
def test_forms_of_a_call(events: list[dict[str, Any]], calls: list[tuple[str, str]]) -> None:
    """A call is read once, from wherever it is; an incomplete one is left out."""
    reply = reply_of(*events)
    assert [(use.id, use.input["action"]) for use in reply.tool_uses] == calls


Values: TypeAlias = st.SearchStrategy[Any]
number: Values = st.integers(-3000, 3000)
words: Values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)
names = ["CTRL", "shift", "A", "a", "+", "Enter", "ARROWUP", "F5", "é", "MediaPlay"]
keys: Values = st.lists(st.sampled_from(names), min_size=1)
held: Values = st.one_of(st.just({}), st.fixed_dictionaries({"keys": keys}))
point: Values = st.fixed_dictionaries({"x": number, "y": number})


def acting(kind: str, fields: dict[str, Any], more: Values = held) -> Values:
    return st.builds(merged, st.fixed_dictionaries({"type": st.just(kind), **fields}), more)


def merged(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return {**one, **two}


action: Values = st.one_of(
    acting("click", {"button": st.sampled_from(["left", "right", "wheel"]), "x": number, "y": number}),
    acting("double_click", {"x": number, "y": number}),
    acting("move", {"x": number, "y": number}),
    acting("drag", {"path": st.lists(point, min_size=2, max_size=4)}),
    acting("scroll", {"x": number, "y": number, "scroll_x": st.just(0), "scroll_y": number}),
    acting("scroll", {"x": number, "y": number, "scroll_x": number, "scroll_y": st.just(0)}),
    acting("keypress", {"keys": keys}, st.just({})),
    acting("type", {"text": words}, st.just({})),
    acting("wait", {}, st.just({})),
    acting("screenshot", {}, st.just({})),
)
check: Values = st.fixed_dictionaries({"id": words, "code": words, "message": st.none() | words})


@given(st.lists(action, min_size=1, max_size=12), st.lists(check, max_size=2))
def test_the_fold_of_the_split_is_what_was_received(actions: list[Any], checks: list[Any]) -> None:
    """Whatever the actions are, the call that is sent back is the one received."""
    received = call("call_1", *actions, checks=checks)
    parts = split(received)
    calls = [{"type": "function_call", "call_id": one, "name": "computer", "arguments": text} for one, text in parts]
    outputs = [returned(one, [IMAGE]) for one, _ in parts]
    more: dict[str, Any] = {"acknowledged_safety_checks": checks} if checks else {}
    sent = [{**received, "id": "cu_call_1"}, seen("call_1", **more)]
    assert joined([*calls, *outputs], ()) == sent
    assert len({one for one, _ in parts}) == len(actions)
    # A later reply with the same id and one action more: the ids that are used already were replaced.
    again = [
        {"type": "function_call", "call_id": one, "name": "computer", "arguments": text}
        for one, text in split(call("call_1", *actions, {"type": "screenshot"}, checks=checks))
    ]
    for n, item in enumerate(again[:-1]):
        item["call_id"] = f"other_{n}"
    later = [*again, *[returned(item["call_id"], [IMAGE]) for item in again]]
    assert joined([*calls, *outputs, *later], ()) == [*sent, *later]
    if len(actions) > 2:  # a hook has removed an action: the others are still one call
        rest = [whole for whole in joined([calls[0], *calls[2:], outputs[0], *outputs[2:]], ()) if "actions" in whole]
        assert [len(whole["actions"]) for whole in rest] == [len(actions) - 1]


# ---- models


@pytest.mark.parametrize("name", ["gpt-5.4-nano", "gpt-5.3-chat", "responses/gpt-5", "computer-use-preview"])
async def test_models_without_it(name: str) -> None:
    """A model that is not trained on this tool is refused before a request is sent."""
    with pytest.raises(UsageError, match="has no built-in tool 'computer'"):
        await Agent("a", OpenAIWire(name, api_key="k"), tools=[display([])]).call("Go.")


async def test_checks_in_a_script() -> None:
    """The checks need no wire: any call with them waits, unless it would not run, and a guard that suspends first is the
    one that is named.
    """

    @on(guard=True)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"why": "mine"})

    hooks: list[str] = []
    for action, extra in (("screenshot", []), ("screenshot", [ask]), ("format_disk", [])):
        use = ToolUseBlock("t1", "computer", {"action": action, "pending_safety_checks": [CHECK]})
        model: Model = ScriptedModel([use, "Done."])
        shown = Agent("a", cast("Any", model), tools=[display([])], hooks=extra)
        hooks += [waits.hook for waits in (await shown.call("Go.")).pending]
    assert hooks == ["safety_checks", "ask"]
