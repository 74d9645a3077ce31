"""Evaluate one recorded run: replay it with the change, and describe the first decision that differs.

Rules:

1. The comparison of a run ends at its first difference, since the later events are unknown. If a live model is set, it
   continues the run.
2. A difference counts only if the agent without the change repeats the recording up to that point.
3. A run that is not comparable has a reason, and is never counted as unchanged.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from agentflow._support.shown import described, one_line
from agentflow.agent.agent import Agent
from agentflow.errors import UsageError
from agentflow.hooks.named import hooks_of
from agentflow.recording.entries import ChunksEntry, EventEntry, PiecesEntry
from agentflow.recording.log import RunLog, usage_of
from agentflow.recording.replay.comparing import Divergence
from agentflow.recording.replay.replay import Replay, ReplayOptions, ReplayResult
from agentflow.vocabulary.specs import Usage

__all__ = ["RunResult", "Variant", "judge"]

_REFUSALS = ("Deny", "Stop", "failed")
_MAX_LENGTH = 300
_STEPS = (EventEntry, ChunksEntry, PiecesEntry)


class Variant:
    """The agent of recorded runs, and the change to try on it.

    Args:
        agent: The agent as it was recorded.
        options: The change, as for `Replay.arun`: `hooks`, `without`, `system`, `model` and others. If a hook in `hooks` makes
            the recorded decision of a hook in `without`, with the same text, the run counts as unchanged.

    Raises:
        UsageError: The agent lacks a hook named in `without`.
    """

    def __init__(self, agent: Agent[Any], **options: Unpack[ReplayOptions]) -> None:
        self.agent = agent
        self.options = options
        self.without = options.get("without", ())
        self.unchanged: ReplayOptions = {"output": options.get("output"), "deps": options.get("deps")}
        known = [hook.name for hook in agent.hooks]
        if wrong := [name for name in self.without if name not in known]:
            raise UsageError(f"Agent {agent.name!r} has no hook {wrong[0]!r}. Its hooks: {', '.join(known) or 'none'}.")

    def settings(self) -> dict[str, str]:
        """Return the settings of the variant as text, with a digest of the files that define its hooks."""
        added = hooks_of(self.options.get("hooks", ()))
        modules = {getattr(hook, "handler", type(hook)).__module__ for hook in (*self.agent.hooks, *added)}
        files = [getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules)]
        # A digest of the content, so that stored results are not used after a hook was edited.
        code = b"".join(Path(file).read_bytes() for file in files if file is not None and Path(file).is_file())
        named = {**self.options, "agent": self.agent.name, "hooks": [hook.name for hook in added]}
        named["model"] = getattr(self.options.get("model"), "name", self.options.get("model"))
        return {**{key: str(value) for key, value in named.items()}, "code": hashlib.sha256(code).hexdigest()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one run: the first difference, or the reason why it is not comparable.

    Attributes:
        log: The name of its log.
        run: Its id; empty if the log is unreadable.
        digest: The digest of its log.
        status: `"same"` if no event differs, `"changed"` or `"incomparable"`.
        reason: Why it is not comparable; for a changed run, the text of the new verdict.
        passing: Whether the reason is temporary, such as a time limit. Such a result is not stored.
        kind: `"decision"`: another decision; `"wording"`: the same verdict with another text; `"edit"`: another event or
            request; `"unrecorded"`: a model call or tool that the recording lacks.
        event: The event's class; `"request"` for a request to a model. `seq` is its number, `source` the path of sub-agents.
        field: The field that differs.
        recorded: The recorded decision or value; empty if there was none. `now` is the decision or value in the replay.
        hooks: The hooks that changed the event or decided on it in the replay.
        refused: Whether it is a possible false refusal: a success in the recording that is refused now.
        tokens: The tokens of the whole recorded run; `cost` is in dollars, None if unknown.
        rest_tokens: The tokens of the recorded run after the difference, which is the most that can be saved.
            `rest_cost` is their cost.
        outcome: The recorded outcome; empty if the log breaks off.
        new_outcome: With a live model: the outcome, or the error, of the changed run; with `new_tokens` and `new_cost`.
    """

    log: str
    run: str = ""
    digest: str = ""
    status: Literal["same", "changed", "incomparable"] = "same"
    reason: str = ""
    passing: bool = False
    kind: Literal["", "decision", "wording", "edit", "unrecorded"] = ""
    event: str = ""
    seq: int = 0
    source: str = ""
    tool: str = ""
    field: str = ""
    recorded: str = ""
    now: str = ""
    hooks: tuple[str, ...] = ()
    refused: bool = False
    tokens: int = 0
    cost: float | None = None
    rest_tokens: int = 0
    rest_cost: float | None = None
    outcome: str = ""
    new_outcome: str = ""
    new_tokens: int = 0
    new_cost: float | None = None


def judge(log: RunLog, variant: Variant) -> RunResult:
    """Replay one run with a variant, and return the result. Errors are results too."""
    usage = _usage_of_run(log)
    ends = [each.fields.get("outcome", "") for each in log.events() if each.type == "CallEnded"]
    known = RunResult(log=log.name, run=log.run_ids[0], tokens=usage.total_tokens, cost=usage.cost)
    known = replace(known, outcome=ends[-1] if ends else "")
    agent = log.calls[next(iter(log.calls))].agent
    try:
        if agent != variant.agent.name:
            raise UsageError(f"it is a run of the agent {agent!r:.80}, not {variant.agent.name!r}")
        return _evaluate(log, variant, known)
    except Exception as error:  # a hook or a damaged log may raise anything; the other runs continue
        return replace(known, status="incomparable", reason=described(error))


def _evaluate(log: RunLog, variant: Variant, known: RunResult) -> RunResult:
    live = variant.options.get("model") is not None
    done = _replay(log, variant)
    found = done.divergence
    if found is None:
        return known
    if found.no_data and not live:
        reason = f"the change needs a {found.event} that is not in the recording; set a model to continue"
        return replace(known, status="incomparable", reason=reason)
    # Rule 2. Most runs do not differ, so this second replay is not needed for them.
    base = Replay(log).run(variant.agent, **variant.unchanged).divergence
    if base is not None and (base.source != found.source or base.seq <= found.seq):
        reason = f"the agent differs from the recording without the change too: {_text(str(base))}"
        return replace(known, status="incomparable", reason=reason)
    known = _changed(log, done, found, variant.without, replace(known, status="changed"))
    if not live:
        return known
    usage, ended = _usage_of_run(done.log), type(done.error).__name__ if done.reply is None else done.reply.outcome
    return replace(known, new_outcome=ended, new_tokens=usage.total_tokens, new_cost=usage.cost)


def _replay(log: RunLog, variant: Variant) -> ReplayResult:
    """Replay a run. If another hook now makes the recorded decision of a hook in `without`, the decision counts as
    unchanged: the run is replayed again, with the other hook's name in the log."""
    compared, last = log, -1
    while True:
        done = Replay(compared).run(variant.agent, **variant.options)
        found = done.divergence
        if found is None or found.field != "decision.hook":
            return done
        position = _place(log, done.log, found)
        # Each replay must get further than the last one, so that the loop ends.
        if position <= last or _decision(log.entries[position])[0] not in variant.without:
            return done
        last, entries = position, [*compared.entries]
        for n, entry in enumerate(log.entries[position:], position):
            if isinstance(entry, EventEntry) and entry.decision and entry.decision["hook"] in variant.without:
                entries[n] = replace(entry, decision={**entry.decision, "hook": str(found.now)})
        compared = RunLog(entries, log.name)


# ---- the first difference


def _changed(
    log: RunLog, done: ReplayResult, found: Divergence, without: Collection[str], known: RunResult
) -> RunResult:
    position = _place(log, done.log, found)
    before, total, spent = log.entries[position], _usage_of_run(log), _usage_before(log, position + 1)
    use = before.fields.get("tool_use") if isinstance(before, EventEntry) else None
    known = replace(
        known,
        kind="unrecorded" if found.no_data else "edit",
        event=found.event,
        seq=found.seq,
        source=found.source,
        tool="" if use is None else log.tool_use(use).name,
        field=found.field,
        recorded=_text(found.recorded),
        now=_text(found.now),
        hooks=found.hooks,
        rest_tokens=max(total.total_tokens - spent.total_tokens, 0),
        rest_cost=None if total.cost is None else max(total.cost - (spent.cost or 0.0), 0.0),
    )
    failed = not found.field and found.now == "Error"
    if not failed and not found.field.startswith("decision"):
        return known
    events = [each for each in done.log.events() if each.type == ("Error" if failed else found.event)]
    after = events[-1] if failed else next(each for each in reversed(events) if each.seq == found.seq)
    (hook, verdict, _), (new_hook, new_verdict, reason) = _decision(before), _decision(after)
    same = verdict == new_verdict and (hook == new_hook or hook in without)
    return replace(
        known,
        kind="wording" if same else "decision",
        field="decision",
        recorded=f"{hook}: {verdict}" if verdict else "",
        now=f"{new_hook}: {new_verdict}" if new_verdict else "",
        reason=_text(reason),
        refused=new_verdict in _REFUSALS and verdict not in _REFUSALS and _succeeded(log, before),
    )


def _text(value: Any) -> str:
    return "" if value is None else one_line(value if isinstance(value, str) else repr(value))[:_MAX_LENGTH]


def _decision(entry: object) -> tuple[str, str, str]:
    """Return the deciding hook, its verdict and the verdict's text; a failure counts as a decision."""
    if isinstance(entry, EventEntry) and entry.type == "Error" and "error" in entry.fields:
        return entry.fields.get("hook") or "", "failed", str(entry.fields["error"].get("message"))
    if not isinstance(entry, EventEntry) or entry.decision is None:
        return "", "", ""
    hook, verdict = entry.decision["hook"], entry.decision.get("verdict")
    if verdict is None:
        return hook, "failed", str(entry.decision.get("error", {}).get("message"))
    return hook, verdict["verdict"], str(verdict.get("reason", ""))


def _succeeded(log: RunLog, entry: object) -> bool:
    """Return whether the recorded work after a decision succeeded: one of its tool calls, or else the whole call."""
    if not isinstance(entry, EventEntry):
        return False
    refs = [entry.fields["tool_use"]] if "tool_use" in entry.fields else entry.fields.get("tool_uses", [])
    ids = {log.use_data(ref)["id"] for ref in refs}
    after = [each for each in log.events(entry.call) if each.seq >= entry.seq]
    if not ids:
        return any(each.fields.get("outcome") == "completed" for each in after)
    results = [log.tool_result(each.fields["tool_result"]) for each in after if "tool_result" in each.fields]
    return any(result.tool_use_id in ids and result.state == "success" for result in results)


def _place(log: RunLog, new: RunLog, found: Divergence) -> int:
    """Return the position of the last recorded entry that the replay reached."""
    ours, theirs = ([call for call, entry in one.calls.items() if entry.source == found.source] for one in (new, log))
    steps = [each for each in new.entries if isinstance(each, _STEPS) and each.call in ours]
    reached = [each for each in steps if each.seq == found.seq] or steps
    if not reached or ours.index(reached[-1].call) >= len(theirs):
        return len(log.entries) - 1
    call, seq = theirs[ours.index(reached[-1].call)], found.seq or reached[-1].seq
    places = [n for n, e in enumerate(log.entries) if isinstance(e, _STEPS) and e.call == call and e.seq <= seq]
    return places[-1] if places else 0


def _usage_before(log: RunLog, end: int) -> Usage:
    """Return the usage of the model calls before a position."""
    done = [each for each in log.entries[:end] if isinstance(each, EventEntry) and each.type == "PostReasoning"]
    return Usage.total(usage_of(each.fields.get("usage")) for each in done)


def _usage_of_run(log: RunLog) -> Usage:
    """Return the usage of a run: of its calls, or of its model calls if the log breaks off."""
    ended = {each.call: usage_of(each.fields.get("usage")) for each in log.events() if each.type == "CallEnded"}
    roots = {call for call, entry in log.calls.items() if entry.parent is None}
    return Usage.total(ended[root] for root in roots) if ended.keys() >= roots else _usage_before(log, len(log.entries))
