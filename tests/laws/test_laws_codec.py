"""Stored facts of any run survive JSON, and no two different facts have the same key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, note
from laws_harness import facts_of, run
from laws_programs import Path, Program, journals

from agentflow.loop.history import fold_facts
from agentflow.loop.machine import Machine
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.saving.codec import fact_from_json, fact_key, fact_to_json

CALL = Path("call")


def _state(facts: Sequence[Fact]) -> tuple[Any, ...]:
    machine = Machine.from_facts(facts)
    return (
        machine.state,
        machine.next(),
        machine.iteration,
        machine.suspension.pending,
        machine.round.finished,
        machine.round.started,
    )


@given(journals(halves=False))  # half a surrogate pair is stored as a character, so it is not equal
def test_any_journal_survives_json(program: Program) -> None:
    """Decoded facts are equal, fold to the same history and the same state, and their natural keys are unique."""
    note(repr(program))
    facts = run(lambda: facts_of(program))
    again = [fact_from_json(fact_to_json(fact)) for fact in facts]
    assert again == facts
    assert fold_facts(again) == fold_facts(facts)
    assert _state(again) == _state(facts)
    keys = [key for fact in facts if (key := fact_key(fact)) is not None]
    assert len(keys) == len(set(keys)), sorted(keys)
