"""`evaluate`: cases in parallel, checks, a judging model; reports for people and for machines."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from nursery import Nursery
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentflow import Agent, ModelChunk, Output, ToolUseBlock, Usage, tool
from agentflow.errors import ModelError, UsageError
from agentflow.models import ModelRequest
from agentflow.plugins import OpenTelemetry
from agentflow.testing import Case, Judge, ScriptedModel, Trial, evaluate
from agentflow.testing.evaluation import Grade
from agentflow.testing.pytest_plugin import evaluation


def clerk(request: ModelRequest) -> Any:
    """Knows sums; `boom` breaks it."""
    asked = request.messages[-1].text
    if asked == "boom":
        return ModelError("overloaded")
    return [{"1 + 2?": "3", "2 + 2?": "5"}.get(asked, "I do not know."), ModelChunk(usage=Usage(10, 2, cost=0.001))]


def agent() -> Agent:
    return Agent("clerk", ScriptedModel(clerk))


def short(trial: Trial) -> bool:
    return len(trial.text) < 10


async def certain(trial: Trial) -> str | None:
    return "it gives up" if "not know" in trial.text else None


def uses_no_tool(trial: Trial) -> None:
    assert not trial.tool_uses, "a tool was used"


async def test_each_case_is_a_call_of_its_own_and_says_what_is_wrong() -> None:
    """Expectation, checks and a failing call: each case has its own result; the others continue."""
    cases = [Case("1 + 2?", "3"), Case("2 + 2?", "4", name="four"), "What else?", Case("boom", name="broken")]
    report = await evaluate(agent, cases, [short, certain, uses_no_tool])
    assert [(trial.case.name, trial.failures) for trial in report.trials] == [
        ("1", ()),
        ("four", ("expected '4', got '5'",)),
        ("3", ("short failed", "certain: it gives up")),
        ("broken", ("ModelError: overloaded",)),
    ]
    assert [trial.case.name for trial in report.failed] == ["four", "3", "broken"]
    assert (report.name, report.usage.total_tokens, report.usage.cost) == ("clerk", 36, 0.003)
    with pytest.raises(AssertionError, match="1 of 4 passed"):
        report.assert_passed()


async def test_the_table_is_for_people_and_escapes_what_the_model_says() -> None:
    """A row for each case, its failures below the answer; control characters and markup are text."""
    evil = Agent("clerk", ScriptedModel(["[red]\x1b[2J"]))
    told = str(await evaluate(evil, [Case("Hi", "Hello", name="greets")]))
    assert told.splitlines()[0].strip() == "clerk: 0 of 1 passed"
    assert "[red]\\x1b[2J" in told
    assert "expected 'Hello', got" in told
    assert "\x1b" not in told


async def test_machines_read_json_and_junit(tmp_path: Path) -> None:
    """`save` writes JUnit for `.xml`, else JSON; both say which case failed, and why."""
    report = await evaluate(agent, [Case("1 + 2?", "3"), Case("2 + 2?", "4", name="fo\x00ur")])
    report.save(tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert (data["cases"], data["failed"], data["cost"]) == (2, 1, 0.002)
    assert [one["failures"] for one in data["trials"]] == [[], ["expected '4', got '5'"]]
    report.save(tmp_path / "report.xml")
    assert (tmp_path / "report.xml").read_text("utf-8").startswith("<?xml version='1.0'")
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = suite.findall("testcase/failure")
    assert [one.get("message") for one in failed] == ["expected '4', got '5'"]


async def test_no_more_calls_than_allowed_run_at_once_and_the_reports_order_is_the_cases() -> None:
    """`concurrency` limits the calls; the trials are in the order of the cases, whichever ends first."""
    running, most = 0, 0

    @tool
    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return "done"

    def made() -> Agent:
        return Agent("worker", ScriptedModel([ToolUseBlock("t1", "work"), "Done."]), tools=[work])

    report = await evaluate(made, [Case(str(n)) for n in range(20)], concurrency=3)
    assert (most, [trial.case.input for trial in report.trials]) == (3, [str(n) for n in range(20)])
    assert report.trials[0].tool_uses[0].name == "work"


async def test_a_typed_output_is_compared_as_a_value() -> None:
    """`expected` is compared with the typed output where the agent has one."""

    @dataclass
    class Sum:
        value: int

    typed = Agent("clerk", ScriptedModel(['{"value": 3}', '{"value": 4}']), output=Output(Sum, via="prompt"))
    report = await evaluate(typed, [Case("1 + 2?", Sum(3)), Case("2 + 1?", Sum(3))], concurrency=1)
    assert [trial.passed for trial in report.trials] == [True, False]


async def test_a_judging_model_says_why_and_its_cost_counts() -> None:
    """`Judge` fails a case with its reason; what it consumed is in the report, and it does not follow the answer."""
    answer = ['{"meets": false, "reason": "No source."}', ModelChunk(usage=Usage(20, 5, cost=0.01))]
    judges = ScriptedModel(lambda request: answer)
    report = await evaluate(agent, [Case("1 + 2?", "3")], [Judge("It names its source.", judges)])
    assert report.trials[0].failures == ("It names its source. No source.",)
    assert (report.usage.total_tokens, report.usage.cost) == (37, pytest.approx(0.011))
    assert "<answer>3</answer>" in judges.requests[0].messages[-1].text


@dataclass
class Named:
    """A check with a name of its own."""

    name: str

    def __call__(self, trial: Trial) -> bool:
        return True


async def test_checks_of_one_name_are_numbered() -> None:
    """A number is not used twice, even if a check is named like a numbered one."""
    report = await evaluate(agent(), [Case("1 + 2?", "3")], [Named("polite"), Named("polite 2"), Named("polite")])
    assert list(report.trials[0].grades) == ["polite", "polite 2", "polite 3"]


@pytest.mark.parametrize(("rubric", "decision"), [(None, "meets"), ({1: "wrong", 2: "right"}, "level")])
async def test_a_judging_model_writes_its_reason_before_it_decides(
    rubric: dict[int, str] | None, decision: str
) -> None:
    """A model writes the fields in the order of the form: a reason after the decision would only defend it."""
    judges = ScriptedModel([f'{{"reason": "None.", "{decision}": 1}}'])
    await evaluate(agent, [Case("1 + 2?", "3")], [Judge("It names its source.", judges, rubric=rubric)])
    [form] = judges.requests[0].tools
    assert list(form.parameters["properties"]) == ["reason", decision]


async def test_a_check_reads_the_spans_of_its_call() -> None:
    """The id of the run is an attribute of its spans, so a check finds those of its trial among all."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))

    def spans(trial: Trial) -> Grade:
        assert trial.reply is not None
        ended = [one for one in exporter.get_finished_spans() if one.attributes is not None]
        [whole] = [one for one in ended if (one.attributes or {}).get("agentflow.run.id") == trial.reply.run_id]
        inside = [one.name for one in ended if one.parent == whole.context]
        return Grade(score=len(inside), label=" ".join(sorted({*inside, whole.name})))

    def with_tool(request: ModelRequest) -> Any:
        asked = request.messages[-1].text == "look"
        return ToolUseBlock("t1", "look", {}) if asked else "Done."

    @tool
    async def look() -> str:
        return "seen"

    def task() -> Agent:
        hooks = [OpenTelemetry(tracer_provider=tracers)]
        return Agent("clerk", ScriptedModel(with_tool, name="openai/gpt-5"), tools=[look], hooks=hooks)

    report = await evaluate(task, ["look", "Hi"], [spans])
    assert [[(grade.score, grade.label) for grade in trial.grades.values()] for trial in report.trials] == [
        [(3, "chat gpt-5 execute_tool look invoke_agent clerk")],
        [(1, "chat gpt-5 invoke_agent clerk")],
    ]


async def test_mistakes_are_told() -> None:
    """No cases, a name twice, no slot."""
    for cases, options, text in (
        ([], {}, "there are no cases"),
        ([Case("a", name="x"), Case("b", name="x")], {}, "two cases are named 'x'"),
        (["a"], {"concurrency": 0}, "concurrency=0"),
    ):
        with pytest.raises(UsageError, match=text):
            await evaluate(agent, cases, **options)


async def test_a_task_that_swallows_the_end_of_its_time_fails() -> None:
    """Its late value is not graded."""

    async def late(_: str) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "3"
        raise AssertionError

    report = await evaluate(late, [Case("1 + 2?", "3")], timeout=0.01)
    [trial] = report.trials
    assert (trial.passed, trial.value, type(trial.error)) == (False, None, TimeoutError)


async def test_a_cancelled_evaluation_ends_its_calls() -> None:
    """After the cancellation no call continues."""
    begun, ended = asyncio.Event(), []

    @tool
    async def wait() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return ""

    waiting = Agent("worker", ScriptedModel([ToolUseBlock("t1", "wait")]), tools=[wait])
    task = asyncio.create_task(evaluate(waiting, ["a"]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


def test_the_bar_is_drawn_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """On the error stream; by default only at a terminal."""
    asyncio.run(evaluate(agent, ["a", "b"]))
    assert capsys.readouterr() == ("", "")
    asyncio.run(evaluate(agent, ["a", "b"], progress=True))
    assert capsys.readouterr().out == ""


test_pytest_collects_cases = evaluation(agent, [Case("1 + 2?", "3", name="a sum"), Case("What?", name="anything")])


def test_a_case_that_fails_is_a_test_that_fails(tmp_path: Path, commands: Nursery) -> None:
    """Each case is a test of its name, and the report is what a failing one says."""
    (tmp_path / "test_clerk.py").write_text(
        """
from agentflow import Agent
from agentflow.testing import Case, ScriptedModel
from agentflow.testing.pytest_plugin import evaluation

agent = Agent("clerk", ScriptedModel(lambda request: "3"))
test_clerk = evaluation(agent, [Case("1 + 2?", "3", name="right"), Case("2 + 2?", "4", name="wrong")])
""",
        "utf-8",
    )
    command = ["pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = commands.run(command, dict(os.environ), cwd=str(tmp_path))
    assert done.returncode == 1
    assert "test_clerk[wrong]" in done.stdout
    assert "expected '4', got '3'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
