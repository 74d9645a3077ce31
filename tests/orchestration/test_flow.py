"""The steps of a workflow, drawn from the source of its function; nothing in it is run."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from agentflow import Agent, tool
from agentflow.agent import orchestration
from agentflow.agent.orchestration import StepError, ask, flow_of, gather, handoffs, race, step, use, workflow
from agentflow.agent.orchestration import ask as consult
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel


@tool
async def publish(text: str) -> int:
    """Publish."""
    raise AssertionError("it was run")


def agent(name: str) -> Agent[Any]:
    return Agent(name, ScriptedModel([]))


def today() -> str:
    raise AssertionError("it was run")


writer, editor, critic = agent("writer"), agent("editor"), agent("critic")
experts = {"a": writer}
held = SimpleNamespace(writer=writer)


def drawn(function: Any) -> str:
    found = flow_of(workflow(writer, editor, critic, publish)(function))
    assert found is not None
    return "\n".join(str(found).splitlines()[1:])


async def everything(topic: str) -> int:
    draft = (await ask(writer, topic)).text
    while not (await consult(critic, draft)).output:
        if len(draft) > 100:
            break
        draft = (await ask(editor, draft)).text
    opinions = await gather(
        ask(editor, draft), *[ask(critic, line) for line in draft.splitlines()], return_exceptions=True
    )
    first = await race(ask(writer, draft), orchestration.ask(editor, draft))
    if opinions and first:
        return 0
    return await use(publish, text=draft)


EVERYTHING = """\
├─ ask writer
├─ while not (await consult(critic, draft)).output
│  ├─ ask critic
│  ├─ if len(draft) > 100
│  │  ├─ yes
│  │  │  └─ break
│  │  └─ no
│  └─ ask editor
├─ gather
│  ├─ ask editor
│  └─ ask critic, for line in draft.splitlines()
├─ race
│  ├─ ask writer
│  └─ ask editor
├─ if opinions and first
│  ├─ yes
│  │  └─ return
│  └─ no
└─ use publish"""

MERMAID = """\
flowchart TD
  s0(["everything"])
  s1["ask writer"]
  s0 --> s1
  s2{"while not #40;await consult#40;critic#44; draft#41;#41;.output"}
  s1 --> s2
  s3["ask critic"]
  s2 -->|"repeat"| s3
  s4{"if len#40;draft#41; #62; 100"}
  s3 --> s4
  s5["ask editor"]
  s4 -->|"no"| s5
  s5 --> s2
  s6{{"gather"}}
  s2 -->|"done"| s6
  s4 -->|"yes"| s6
  s7["ask editor"]
  s6 --> s7
  s8["ask critic#44; for line in draft.splitlines#40;#41;"]
  s6 --> s8
  s9{{"race"}}
  s7 --> s9
  s8 --> s9
  s10["ask writer"]
  s9 --> s10
  s11["ask editor"]
  s9 --> s11
  s12{"if opinions and first"}
  s10 --> s12
  s11 --> s12
  s13(["return"])
  s12 -->|"yes"| s13
  s14["use publish"]
  s12 -->|"no"| s14
  s15(["end"])
  s14 --> s15"""


def test_steps_branches_and_loops() -> None:
    """Steps by the names of agents and tools, in order, with loops, branches, groups, and other names of `ask`."""
    assert drawn(everything) == EVERYTHING
    found = flow_of(workflow(writer, editor, critic, publish)(everything))
    assert found is not None
    assert found.mermaid() == MERMAID


async def other_statements(topic: str) -> str:
    for expert in experts.values():
        try:
            await ask(expert, topic)
        except StepError:
            continue
        except (ValueError, TypeError):
            raise
        else:
            await step(today)
        finally:
            await ask(held.writer, topic)
    match topic:
        case "a" | "b":
            await use(publish, text=(await ask(writer, topic)).text)
        case str():
            pass
    text = (await ask(writer, topic)).text if topic else (await ask(experts[topic], topic)).text
    several = [ask(writer, one) for one in text]
    with nullcontext() as _:
        await gather(*several)
    if not topic:
        text = "no steps"
    for _ in range(3):
        text += "."

    async def later() -> None:
        await ask(critic, topic)

    raise ValueError(text, later)


OTHERS = """\
├─ for expert in experts.values()
│  ├─ try
│  │  ├─ works
│  │  │  ├─ ask expert
│  │  │  └─ step today
│  │  ├─ fails: StepError
│  │  │  └─ continue
│  │  └─ fails: (ValueError, TypeError)
│  │     └─ raise
│  └─ ask held.writer
├─ match topic
│  ├─ case 'a' | 'b'
│  │  ├─ ask writer
│  │  └─ use publish
│  ├─ case str()
│  └─ no case
├─ if topic
│  ├─ yes
│  │  └─ ask writer
│  └─ no
│     └─ ask experts[topic]
├─ for one in text
│  └─ ask writer
├─ gather
└─ raise"""


def test_other_statements() -> None:
    """Errors, cases, conditional expressions and comprehensions; statements without steps are left out."""
    assert drawn(other_statements) == OTHERS


def test_texts_of_a_diagram_are_text() -> None:
    """A name or a condition cannot add a node, a link or a script to the diagram, nor a line to the text."""

    @workflow(writer, name='x"]\n  click s0 href "javascript:alert(1)"\n</script>\x1b[2J')
    async def flow(topic: str) -> str:
        return (await ask(writer, topic)).text if topic != '"]\x1b; <b>' else ""

    found = flow_of(flow)
    assert found is not None
    assert found.mermaid().splitlines()[:4] == [
        "flowchart TD",
        '  s0(["x#34;#93; click s0 href #34;javascript:alert#40;1#41;#34; #60;/script#62;#92;x1b#91;2J"])',
        '  s1{"if topic #33;#61; #39;#34;#93;#92;x1b#59; #60;b#62;#39;"}',
        "  s0 --> s1",
    ]
    assert str(found).splitlines()[:2] == [
        'x"] click s0 href "javascript:alert(1)" </script>\\x1b[2J (workflow)',
        "└─ if topic != '\"]\\x1b; <b>'",
    ]


def test_agents_without_steps_to_draw() -> None:
    """Other agents and handoffs have no flow; a workflow without source says so."""
    one, other = agent("one"), agent("other")
    assert flow_of(one) is None
    assert flow_of(handoffs(one, other, name="desk")) is None
    made: dict[str, Any] = {"__name__": "made"}
    exec("async def flow(topic: str) -> str: ...", made)  # a function without a file
    with pytest.raises(UsageError, match="The source of workflow 'flow' is not available"):
        flow_of(workflow()(made["flow"]))
