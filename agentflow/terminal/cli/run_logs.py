"""`agentflow replay`, `agentflow diff`, `agentflow explain`: commands for recorded runs."""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agentflow._support.shown import one_line
from agentflow.errors import AgentFlowError
from agentflow.recording import RunLog
from agentflow.recording.diffing import RunDiff, diff_runs
from agentflow.recording.recorder.records import Explanation, Recording, records_of
from agentflow.recording.replay import Divergence, Replay, ReplayOptions
from agentflow.recording.replay.player import Reaction
from agentflow.serve.inspector.stored_runs import load_named
from agentflow.terminal.cli.completion import agents_like
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import load_agent, load_hook, load_output
from agentflow.terminal.phrases import cost_text, shorten
from agentflow.vocabulary.event_json import json_line

_DIVERGED = 1
_RUN_ID = click.option("--run", "run_id", metavar="ID", help="The run, if the file has several.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_SHOWN = 200


# ---- replay


@click.command()
@click.argument("run", metavar="RUN", type=click.Path())
@click.argument("agent", metavar="MODULE:AGENT", shell_complete=agents_like)
@_RUN_ID
@click.option("--hook", "hooks", multiple=True, metavar="MODULE:HOOK", help="Add a hook; may be repeated.")
@click.option("--without", multiple=True, metavar="NAME", help="Leave out a hook of the agent; may be repeated.")
@click.option("--system", metavar="TEXT", help="Use another system prompt.")
@click.option("--output", metavar="MODULE:TYPE", help="The type given to the recorded call as output=.")
@click.option(
    "--from",
    "since",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQ",
    help="Ignore differences before this event.",
)
@click.option(
    "--pace", type=click.FloatRange(min=0, min_open=True), help="Replay speed; 2 is twice as fast as recorded."
)
@click.option("--model", metavar="NAME", help="Continue with this model after a divergence.")
@click.option(
    "--tool", "tools", multiple=True, metavar="NAME", help="Tool that may run after a divergence; may be repeated."
)
@click.option("--ask", is_flag=True, help="Ask how to continue after a divergence.")
@click.option("--inexact", is_flag=True, help="Replay a run even if it is unknown where it was cancelled.")
@_JSON
def replay(
    run: str,
    agent: str,
    run_id: str | None,
    hooks: Sequence[str],
    without: Sequence[str],
    system: str | None,
    output: str | None,
    since: int,
    pace: float | None,
    model: str | None,
    tools: Sequence[str],
    ask: bool,
    inexact: bool,
    as_json: bool,
) -> int:
    """Replay a recorded run: hooks run for real, models and tools return recorded data.

    Nothing is sent and no tool runs. The first difference from the recording is printed, and the replay stops there; with
    --model it continues. Exit code 0: the same as recorded; 1: different.
    """
    loaded = load_agent(agent)
    added = [load_hook(name) for name in hooks]

    def diverged(found: Divergence) -> Reaction:
        say(str(found), err=as_json)
        if click.confirm("Continue with a live model?", default=False, err=True):
            return "live"
        return (
            "continue" if click.confirm("Continue with the rest of the recording?", default=False, err=True) else "stop"
        )

    options: ReplayOptions = {"hooks": added, "without": without, "since": since, "pace": pace, "model": model}
    options["tools"] = tools
    if system is not None:
        options["system"] = system
    if output is not None:
        options["output"] = load_output(output)
    if ask:
        options["diverged"] = diverged
    try:
        done = Replay(load_named(run, run_id), inexact=inexact).run(loaded, **options)
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    found = done.divergence
    if as_json:
        divergence = None if found is None else asdict(found)
        text = None if done.reply is None else done.reply.text
        outcome = None if done.reply is None else done.reply.outcome
        say(json_line({"divergence": divergence, "reply": text, "outcome": outcome}))
    else:
        if not (ask and found is not None):
            say(str(done))
        if found is not None and not done.stopped and done.reply is not None:
            say(f"continued to: {one_line(done.reply.text)} ({done.reply.outcome})")
        elif found is not None and not done.stopped and done.error is not None:
            say(f"continued to: {type(done.error).__name__}: {one_line(str(done.error))}")
    return 0 if found is None else _DIVERGED


# ---- diff


@click.command()
@click.argument("one", metavar="A", type=click.Path())
@click.argument("other", metavar="B", type=click.Path())
@click.option("--html", "as_html", type=click.Path(), metavar="FILE", help="Write an HTML page; - for standard output.")
@_JSON
def diff(one: str, other: str, as_html: str | None, as_json: bool) -> int:
    """Compare two recorded runs by calls, rounds and tool calls. Exit code 0: equal; 1: different."""
    try:
        found = diff_runs(load_named(one), load_named(other))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    if as_json:
        say(json_line(asdict(found)))
    elif as_html is not None:
        rows = [(_where(each), each.one, each.other, ", ".join(each.hooks)) for each in found.differences]
        _write(as_html, _page(f"{one} and {other}", ("where", one, other, "hooks"), rows, _totals(found)))
    else:
        _print_diff(found)
    return 0 if found.first is None else _DIVERGED


def _where(each: Any) -> str:
    return f"{each.where}: {each.what}"


def _print_diff(found: RunDiff) -> None:
    if found.first is None:
        say("the runs are equal")
    for number, each in enumerate(found.differences):
        say(("they differ first at " if number == 0 else "") + _where(each))
        say(f"  - {_short(each.one)}")
        say(f"  + {_short(each.other)}")
        if each.hooks:
            say(f"  by {', '.join(each.hooks)}")
    for line in _totals(found):
        say(line)


def _short(value: object) -> str:
    if value is None or value == "":
        return "(nothing)"
    return shorten(value if isinstance(value, str) else repr(value), _SHOWN)


def _totals(found: RunDiff) -> list[str]:
    one, other = found.usage
    return [
        f"rounds {found.rounds[0]} and {found.rounds[1]}",
        f"tokens {one.total_tokens} and {other.total_tokens}, cost {cost_text(one)} and {cost_text(other)}",
    ]


# ---- explain


@click.command()
@click.argument("run", metavar="RUN", type=click.Path())
@click.argument("message", metavar="MESSAGE")
@click.option("--html", "as_html", type=click.Path(), metavar="FILE", help="Write an HTML page; - for standard output.")
@_JSON
def explain(run: str, message: str, as_html: str | None, as_json: bool) -> int:
    """Show which hooks affected a message of a recorded run, and how. MESSAGE is its id, or "last" for the reply."""
    try:
        log = load_named(run)
        found = Recording(records_of(log, short=_SHOWN)).explain(_message_id(log, message))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    if not found.known:
        known = ", ".join(list(log.message_refs())[:_MAX_NAMED])
        raise CommandError(f"{run} contains no message {message!r}. Its first messages: {known}.")
    if as_json:
        say(json_line(asdict(found)))
    elif as_html is not None:
        _write(as_html, _page(f"{run}: {message}", ("hook", "effect"), _rows(found), []))
    else:
        for line in str(found).splitlines():
            say(line)
    return 0


_MAX_NAMED = 20


def _message_id(log: RunLog, message: str) -> str:
    if message != "last":
        return message
    finals = [entry.ref("final_message") for entry in log.events() if entry.type == "PostCall"]
    return log.message(finals[-1]).id if finals else message


def _rows(found: Explanation) -> list[tuple[object, ...]]:
    return [(record.hook, str(record)) for record in (*found.changes, *found.request_changes, *found.shadows)]


# ---- pages


def _write(path: str, page: str) -> None:
    if path == "-":
        sys.stdout.write(page)
        return
    try:
        Path(path).write_text(page, "utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    say(f"written to {path}")


def _page(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str]) -> str:
    """Build a self-contained page; texts of models and tools are escaped."""

    def cell(value: object, tag: str = "td") -> str:
        text = "" if value is None else value if isinstance(value, str) else repr(value)
        return f"<{tag}><bdi>{html.escape(text)}</bdi></{tag}>"  # right-to-left text must not reorder other text

    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    notes_html = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{html.escape(title)}</title><style>"
        ":root{color-scheme:light dark}body{font:14px/1.5 system-ui;margin:2rem}table{border-collapse:collapse}"
        "td,th{border:1px solid #8888;padding:.3rem .6rem;text-align:left;vertical-align:top;white-space:pre-wrap}"
        f"</style></head><body><h1>{html.escape(title)}</h1>{notes_html}<table><thead><tr>"
        f"{''.join(cell(head, 'th') for head in heads)}</tr></thead><tbody>{body}</tbody></table></body></html>\n"
    )
