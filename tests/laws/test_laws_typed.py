"""Random programs with typed answers: the laws hold, and each output has the requested type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, note
from laws_harness import World, run
from laws_programs import Piece, Program, programs
from laws_shares import report
from laws_whole import check_program

from agentflow.agent.typed_call import TypedOutput
from agentflow.errors import OutputError
from agentflow.loop.output import Output, Way


@dataclass
class Point:
    x: int
    y: int = 0


async def plot(x: int) -> int:
    """Plot it."""
    return x


def typed_world(form: Any, way: Way) -> type[World]:
    """A world whose agent has an `output` type; its model ends with a valid answer."""

    class Typed(World):
        def __init__(self, program: Program) -> None:
            output: Output[Any] = Output(form, via=way, retries=1)
            name = output.tool.name
            renamed = [
                tuple(
                    replace(piece, name=name) if piece.name in ("read", "ghost") else fitting(piece) for piece in pieces
                )
                for pieces in program.replies
            ]
            super().__init__(replace(program, replies=(*renamed, (Piece("call", id="f", name=name, args='{"x": 1}'),))))
            vars(self.agent)["_output"] = TypedOutput(form, output)

        @property
        def armed(self) -> bool:
            """Unless armed, the model says "done", and no typed answer is requested."""
            return self._armed

        @armed.setter
        def armed(self, value: bool) -> None:
            self._armed = value
            if not value:
                vars(self.agent)["_output"] = None

        async def call(self, words: str = "hi", **given: Any) -> Any:
            """Call, and check the output."""
            seen = await super().call(words, **given)
            if seen.reply is not None and seen.reply.typed:
                assert isinstance(seen.reply.output, Point if form is Point else int | str)
            if isinstance(seen.error, OutputError):
                assert seen.error.times == 2
            return seen

    return Typed


def fitting(piece: Piece) -> Piece:
    """Return the lines of which some are an answer."""
    return replace(piece, text='{"x": 2}') if piece.kind == "text" and piece.text == "ok" else piece


@pytest.mark.parametrize("form", [Point, plot])
@pytest.mark.parametrize("way", ["native", "tool", "prompt"])
def test_the_laws_hold_for_typed_answers(form: Any, way: Way) -> None:
    """Each law holds, whatever model, tools, hooks and callers do, together with the hooks of typed answers."""

    @given(programs())
    def check(program: Program) -> None:
        note(repr(program))
        report(run(lambda: check_program(program, typed_world(form, way))))

    check()
