"""Spans as a person reads them: a tree of lines, from an exporter in memory or from what a collector has printed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import format_span_id, format_trace_id

__all__ = ["Seen", "printed", "seen", "tree"]

_SHOWN = {
    "gen_ai.tool.call.id": "",
    "agentflow.attempt": "attempt ",
    "agentflow.purpose": "",
    "error.type": "failed: ",
    "agentflow.outcome": "",
}


@dataclass
class Seen:
    """A span that has been exported."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    links: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Of its events."""
    kind: str = "INTERNAL"
    status: str = "UNSET"
    said: str | None = None

    @property
    def line(self) -> str:
        """Its name, and what it ended with."""
        told = [f"{said}{self.attributes[name]}" for name, said in _SHOWN.items() if name in self.attributes]
        return f"{self.name}  ({', '.join(told)})" if told else self.name


def seen(spans: Iterable[ReadableSpan]) -> list[Seen]:
    """What an exporter in memory holds, in the order in which the spans began."""
    found: list[Seen] = []
    for span in spans:
        context = span.get_span_context()
        assert context is not None
        found.append(
            Seen(
                span.name,
                format_trace_id(context.trace_id),
                format_span_id(context.span_id),
                "" if span.parent is None else format_span_id(span.parent.span_id),
                span.start_time or 0,
                dict(span.attributes or {}),
                [(event.name, dict(event.attributes or {})) for event in span.events],
                [(format_span_id(link.context.span_id), dict(link.attributes or {})) for link in span.links],
                [event.timestamp for event in span.events],
                span.kind.name,
                span.status.status_code.name,
                span.status.description,
            )
        )
    return sorted(found, key=lambda one: one.start)


def printed(lines: Iterable[str]) -> list[Seen]:
    """What a collector has printed of spans, a JSON object each (OTLP)."""
    found: list[Seen] = []
    for line in lines:
        data = json.loads(line)
        if "spanId" in data:
            found.append(
                Seen(
                    data["name"],
                    data["traceId"],
                    data["spanId"],
                    data["parentSpanId"],
                    int(data["startTimeUnixNano"]),
                    _values(data["attributes"]),
                    [(event["name"], _values(event["attributes"])) for event in data["events"]],
                    [(link["spanId"], _values(link["attributes"])) for link in data["links"]],
                    [int(event["timeUnixNano"]) for event in data["events"]],
                )
            )
    return sorted(found, key=lambda one: one.start)


def _values(attributes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}


def tree(spans: Sequence[Seen], lost: str = "(never exported)") -> str:
    """The spans of one trace, each below its parent, with their events, in order; links point to the span that is meant.

    Args:
        spans: In the order in which they began.
        lost: What stands for a parent that nobody has exported.
    """
    lines: list[str] = []
    ids = {one.id: one for one in spans}
    roots = [one for one in spans if one.parent == ""]
    missing = list(dict.fromkeys([one.parent for one in spans if one.parent and one.parent not in ids]))

    def below(parent: str, indent: str) -> None:
        children: list[tuple[int, str | Seen]] = [(one.start, one) for one in spans if one.parent == parent]
        if parent in ids:
            above = ids[parent]
            children += [(time, _event(*event)) for time, event in zip(above.times, above.events, strict=True)]
        for n, (_, child) in enumerate(sorted(children, key=lambda pair: pair[0])):
            last = n == len(children) - 1
            mark, more = ("└─ ", "   ") if last else ("├─ ", "│  ")
            if isinstance(child, str):
                lines.append(f"{indent}{mark}{child}")
                continue
            lines.append(f"{indent}{mark}{child.line}{_links(child, ids, lost)}")
            below(child.id, indent + more)

    for one in roots:
        lines.append(one.line + _links(one, ids, lost))
        below(one.id, "")
    for parent in missing:
        lines.append(lost)
        below(parent, "")
    return "\n".join(lines)


def _links(one: Seen, ids: dict[str, Seen], lost: str) -> str:
    return "".join(
        f" → {said.get('agentflow.link', 'linked')} {ids[to].line if to in ids else lost}" for to, said in one.links
    )


def _event(name: str, said: dict[str, Any]) -> str:
    told = " ".join(str(value) for value in said.values())
    return f"· {name.removeprefix('agentflow.')}: {told}"
