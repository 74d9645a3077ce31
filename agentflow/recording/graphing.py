"""`run_graph`: the agents and tools of a recorded run, with the number and the time of their calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentflow.agent.graph import Edge, Graph, Kind
from agentflow.recording.entries import CallEntry, EventEntry, RequestEntry
from agentflow.recording.log import RunLog
from agentflow.vocabulary.specs import WORKFLOW_STEP

__all__ = ["run_graph"]


@dataclass(slots=True)
class _Part:
    name: str
    kind: Kind
    duration_ms: float = 0
    states: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0

    def __str__(self) -> str:
        count = self.states.total()
        parts = [f"{count} call{'s' * (count != 1)}"]
        parts += [f"{number} {state}" for state, number in self.states.items() if state not in ("success", "completed")]
        parts += [f"{self.requests} model call{'s' * (self.requests != 1)}"] if self.requests else []
        parts += [f"{self.duration_ms / 1000:.1f} s" if self.duration_ms >= 1000 else f"{self.duration_ms:.0f} ms"]
        return f"{self.name}: {', '.join(parts)}"


def run_graph(log: RunLog) -> Graph:
    """Return the graph of calls that a recorded run made. Each name shows the number of calls, of unsuccessful calls and
    of model calls, and the total time.

    An agent or tool has one node for each caller. A call without an end is `unfinished`.
    """
    parts: dict[str, _Part] = {}
    edges: dict[Edge, None] = {}
    keys: dict[str, str] = {}
    agents = {(e.parent.call, e.parent.tool_use) for e in log.calls.values() if e.parent is not None}
    open_calls: set[str] = set()
    for entry in log.entries:
        match entry:
            case CallEntry():
                above = keys.get(entry.parent.call, "") if entry.parent is not None else ""
                own = keys.setdefault(entry.call, f"{above}/{entry.agent or entry.source}")
                parts.setdefault(own, _Part(entry.agent or entry.source, "agent"))
                open_calls.add(entry.call)
                if above:
                    edges[Edge(above, own)] = None
            case RequestEntry() if entry.call in keys:
                parts[keys[entry.call]].requests += 1
            case EventEntry(type="CallEnded") if entry.call in keys:
                parts[keys[entry.call]].states[entry.fields.get("outcome", "completed")] += 1
                open_calls.discard(entry.call)
            case EventEntry(type="PostCall") if entry.call in keys:
                parts[keys[entry.call]].duration_ms += entry.fields.get("duration_ms", 0)
            case EventEntry(type="PostActing") if entry.call in keys:
                use = log.use_data(entry.ref("tool_use"))
                if (entry.call, use["id"]) in agents:  # the sub-agent has a node of its own
                    continue
                name = str(use.get("input", {}).get("function", "")) if use["name"] == WORKFLOW_STEP else ""
                own = f"{keys[entry.call]}/{use['name']} {name}"
                part = parts.setdefault(own, _Part(f"step {name}" if name else use["name"], "tool"))
                part.states[log.result_data(entry.ref("tool_result")).get("state", "success")] += 1
                part.duration_ms += entry.fields.get("duration_ms", 0)
                edges[Edge(keys[entry.call], own)] = None
            case _:
                pass
    for call in open_calls:
        parts[keys[call]].states["unfinished"] += 1
    roots = [keys[e.call] for e in log.calls.values() if e.parent is None or e.parent.call not in keys]
    return Graph(next(iter(roots), ""), {key: (str(part), part.kind) for key, part in parts.items()}, tuple(edges))
