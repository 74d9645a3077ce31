"""`agentflow graph`, as a process."""

from __future__ import annotations

from typing import Any

from agentflow import Agent, ToolUseBlock
from agentflow.plugins import Recorder
from agentflow.testing import ScriptedModel

TEAM = '''
from shop import Agent, ScriptedModel, add, helper
from agentflow.agent.orchestration import ask, use, workflow


@workflow(helper, add)
async def team(topic: str) -> int:
    """Works."""
    if topic:
        await ask(helper, topic)
    return await use(add, a=1, b=2)


boss = Agent("boss", ScriptedModel(["Hi."]), tools=[team])
'''

TREE = """\
boss (agent)
└─ team (agent)
   ├─ helper (agent)
   └─ add (tool)

team (workflow)
├─ if topic
│  ├─ yes
│  │  └─ ask helper
│  └─ no
└─ use add
"""

DIAGRAM = """\
flowchart TD
  n0["boss"]
  n1["team"]
  n2["helper"]
  n3("add")
  n1 --> n2
  n1 --> n3
  n0 --> n1
  subgraph f0["team"]
    f0_0(["team"])
    f0_1{"if topic"}
    f0_0 --> f0_1
    f0_2["ask helper"]
    f0_1 -->|"yes"| f0_2
    f0_3["use add"]
    f0_2 --> f0_3
    f0_1 -->|"no"| f0_3
    f0_4(["end"])
    f0_3 --> f0_4
  end
"""


def test_an_agent(shop: Any) -> None:
    """The possible calls, and the steps of the workflows below; as a diagram too."""
    (shop.folder / "team.py").write_text(TEAM, "utf-8")
    assert [shop("graph", "team:boss", *more).stdout for more in ((), ("--mermaid",))] == [TREE, DIAGRAM]


def test_a_run(shop: Any) -> None:
    """A recorded run by its file; a damaged or missing one is an error in one line."""
    helper = Agent("helper", ScriptedModel(["from below"]))
    boss = Agent("boss", ScriptedModel([ToolUseBlock("h1", "helper", {"message": "help"}), "Done."]), tools=[helper])
    boss.call("go", hooks=[recorder := Recorder(shop.folder / "run.jsonl")]).block()
    recorder.close()
    (shop.folder / "bad.jsonl").write_text("{}\n")
    lines = shop("graph", "run.jsonl").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["boss: 1 call", "└─ helper: 1 call"]
    done = [shop("graph", name) for name in ("bad.jsonl", "none.jsonl", "shop:number")]
    assert [(one.returncode, len(one.stderr.splitlines())) for one in done] == [(2, 1)] * 3
