"""`check_store` finds each planted defect, and nothing else; our own stores are clean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from planted_stores import DEFECTS, Lines, Newest

from agentflow.errors import UsageError
from agentflow.plugins.redaction.store import redacted_store
from agentflow.state.sql import SqlStore
from agentflow.testing import FindingsError, check_store, check_store_async
from agentflow.testing.faults import delivered_twice, slow
from agentflow.testing.store_checks.samples import VERDICTS, samples
from agentflow.testing.store_checks.trial import StoreFlaw
from agentflow.vocabulary.facts import Fact, ToolDecided
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import Store
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper
from agentflow.vocabulary.verdicts import AnyVerdict


@pytest.mark.parametrize(
    ("kind", "store", "options"),
    [pytest.param(*row, id=f"{row[0]}-{getattr(row[1], '__name__', '')}") for row in DEFECTS],
)
def test_a_planted_defect_is_found_and_nothing_else(kind: StoreFlaw, store: Any, options: dict[str, Any]) -> None:
    """A store with one defect gets findings of that kind only."""
    report = check_store(store, **options)
    assert report.kinds == {kind}, str(report)


def test_every_kind_of_finding_has_a_planted_defect() -> None:
    """No kind is listed that nothing can show."""
    assert {row[0] for row in DEFECTS} == set(get_args(StoreFlaw))


def test_the_page_tells_of_every_kind() -> None:
    """`docs/testing-stores.md` says of each kind what it means and what to do."""
    page = (Path(__file__).parents[2] / "docs" / "testing-stores.md").read_text("utf-8")
    table = page.split("## Findings")[1].split("## ")[0]
    assert [kind for kind in get_args(StoreFlaw) if f"`{kind}`" not in table] == []


def test_the_samples_cover_what_there_is() -> None:
    """Every kind of fact and every verdict has a sample; a new one needs one too."""
    assert {type(fact) for fact in samples()} == set(get_args(Fact))
    assert {type(verdict) for verdict in VERDICTS} == set(get_args(AnyVerdict)) | {
        one for part in get_args(AnyVerdict) for one in get_args(part)
    }
    decided = [fact.verdict for fact in samples() if isinstance(fact, ToolDecided)]
    assert decided == [None, *VERDICTS]


# ---- our own


def unreachable() -> Store:
    return SqlStore("postgresql+psycopg://nobody@127.0.0.1:1/nothing", timeout=1)


@pytest.mark.ci
@pytest.mark.parametrize("conflicts", ["fail", "wait"])
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_databases_are_clean(url: str, conflicts: Any) -> None:
    """`SqlStore` passes every check, fences and two processes' views included."""
    report = check_store(lambda: SqlStore(url, on_conflict=conflicts), broken=unreachable, timeout=30)
    report.assert_clean()
    assert (set(report.checks), report.notes) == (set(get_args(StoreFlaw)) - {"hang"}, ())


WRAPPERS: list[Callable[[], Store]] = [
    MemoryStore,
    lambda: StoreWrapper(MemoryStore()),
    lambda: StoreWrapper(SqlStore("sqlite://")),
    lambda: redacted_store(SqlStore("sqlite://"), lambda fact: fact, lambda facts: facts),
    lambda: slow(MemoryStore(), 0.001),
    lambda: delivered_twice(MemoryStore()),
]


@pytest.mark.parametrize("store", WRAPPERS, ids=lambda store: type(store()).__name__)
def test_stores_in_memory_and_around_others_are_clean(store: Callable[[], Store]) -> None:
    """A wrapper around a store is a store like it."""
    check_store(store, timeout=30).assert_clean()


def test_the_least_that_is_a_store() -> None:
    """A store of `append` and `load` is checked for what it can do; the notes say what was left out."""
    for store in (Lines, lambda: redacted_store(Lines(), lambda fact: fact, lambda facts: facts)):
        report = check_store(store)
        report.assert_clean()
        assert set(report.checks) == {"order", "aliasing", "facts", "concurrency", "cancellation", "loops"}
        assert report.notes == (
            (
                "not checked: version, duplicate, atomicity, fencing, listing, delete, rename, fork, prune, exchange, "
                "newer, errors (it has only append and load, so it is not a SessionStore)"
            ),
            "not checked: sharing (each opened store has separate data)",
        )


# ---- the report


def test_the_report_says_what_was_seen_and_what_was_left_out() -> None:
    """One line for the store, one for each finding with what was found, one for each check that builds on it."""
    report = check_store(Newest)
    lines = str(report).splitlines()
    assert lines[0] == f"Newest: 1 finding ({len(report.checks)} checks)"
    assert lines[1] == "  order: does not return the appended facts, oldest first"
    assert lines[2].startswith("      found:  [CallClosed(run_id='run_3'")
    assert lines[4].startswith("  note: not checked: aliasing, facts, version, duplicate")
    assert lines[4].endswith("(fix order first)")
    with pytest.raises(FindingsError) as failed:
        report.assert_clean()
    assert (str(failed.value), failed.value.report) == (str(report), report)


async def test_in_a_coroutine() -> None:
    """In a coroutine, `check_store` says what to write."""
    with pytest.raises(UsageError, match="await check_store_async"):
        check_store(MemoryStore)
    assert (await check_store_async(MemoryStore())).clean
