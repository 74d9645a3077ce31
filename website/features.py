"""The table of features on the page "Features", with the page and the test of each. A row without them is a missing feature.

`python -m website.features` writes it; a test compares it, and checks that pages and tests exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from website.blocks import with_block

__all__ = ["FEATURES", "PAGE", "ROOT", "groups", "present", "with_table"]

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "features.md"

FEATURES: Final = """
# The loop
Hooks before and after each stage | hooks.md | hooks/test_edits.py::an_edit_is_seen_by_later_hooks_the_model_and_the_reader
Hooks that wrap models and tools | around.md | hooks/test_around.py::map_over_chunks_reaches_consumer_and_history
Typed events, streamed | events.md | words/test_events.py::match_sees_all_forms
Chunk edits in the stream and the history | around.md | hooks/test_around.py::map_over_chunks_reaches_consumer_and_history
Retries, and error recovery by hooks | plugins/retry.md | plugins/test_retry.py::a_whole_run_with_a_flaky_tool
Fallback models | plugins/fallback.md | plugins/test_fallback.py::a_whole_run_changes_providers_and_back
A model chosen for each request | around.md | hooks/test_around.py::catch_with_another_model
Interrupts and time limits | recovery.md | recovery/test_interrupts.py::every_way_takes_one_path
Messages added to a running call | plugins/steering.md | plugins/test_steering.py::a_message_in_mid_run_over_the_wire
Shadow mode of hooks | hook-options.md | hooks/test_failure.py::shadow_records_and_applies_nothing
# Tools
Schemas from signatures and docstrings | tools.md | tools/test_schema.py::the_schema_of_every_kind_of_parameter
Tools from JSON Schema | tool-arguments.md | tools/test_json_schema.py::a_tool_says_what_its_schema_asks_for
Toolsets, prepared for each step | toolsets.md | tools/test_toolset.py::annotated_public_methods_become_tools
Parallel tools, in groups | tools.md | loop/test_rounds.py::parallel
Streaming tools | tools.md | loop/test_tools_in_loop.py::a_streaming_tool
Time limits, retries and locks for tools | tools.md | loop/test_tools_in_loop.py::a_tool_that_passes_its_limit
Search among hundreds of tools | plugins/tool_search.md | plugins/test_tool_search.py::tokens_and_the_right_tool
Tools that providers run | server-tools.md | models/test_server_tools.py::a_search_over_anthropic
Skills | plugins/skills.md | plugins/test_skills.py::a_skill_is_listed_and_read
Skills from packages and repositories | plugins/skills.md | plugins/test_skill_sources.py::a_repository_at_a_commit
Tools of MCP servers | mcp.md | mcp/test_mcp_server.py::a_round_over_each_way
Agents as MCP servers | mcp-server.md | mcp/test_mcp_offering.py::an_agent_is_asked
Code in a sandbox | code.md | plugins/test_code.py::a_hostile_program_gets_nothing
Tools called from code | code.md | plugins/test_code.py::code_calls_tools_with_events_of_their_own
Ready-made tools for files and shells | |
Computer use | computer.md | tools/test_computer_openai.py::a_guard_sees_every_action
# Safety
Approvals by people | approvals.md | plugins/test_approval.py::suspended_and_resumed
Approvals of shell commands | plugins/shell.md | plugins/test_shell.py::denied
Guardrails, optionally concurrent with the model | plugins/guardrails.md | plugins/test_guardrails.py::racing_the_model
Redaction of personal data and secrets | plugins/redaction.md | plugins/test_redaction.py::nothing_secret_reaches_the_provider
Limits on tokens, cost and calls | plugins/limits.md | plugins/test_limits.py::tokens_end_a_run_over_the_wire
Rate limits | plugins/rate_limit.md | plugins/test_rate_limit.py::a_whole_run_keeps_to_the_budget
Policies in a dedicated language | |
Taint labels on data | |
# Answers and content
Typed answers | typed-answers.md | output/test_typed_answers.py::forms
Several output types | several-outputs.md | output/test_several.py::the_model_selects_one
Partial typed answers | typed-answers.md | output/test_partials.py::over_the_wires
Images, audio and files as input | content.md | models/test_content_over_wires.py::a_picture_of_the_user_and_one_of_a_tool
Citations | content.md | models/test_content_over_wires.py::citations_are_kept
Reasoning, with signatures | messages.md | models/test_bound_thoughts.py::what_is_only_added_to_keeps_its_thoughts
Realtime voice | voice.md | voice/test_openai_realtime.py::a_spoken_turn_is_a_call_with_its_events_tools_history_and_usage
# Context
Prompt caches | models.md | models/test_prompt_cache.py::marks_stand_behind_what_stays_the_same
Compaction by summaries | plugins/compaction.md | plugins/test_compaction.py::a_long_run_stays_short_on_the_wire
Clearing and offloading of results | plugins/offload.md | plugins/test_offload.py::the_model_reads_what_was_put_aside
Reminders and dynamic context | plugins/reminders.md | plugins/test_reminders.py::additions_over_the_wire
Memory per user | plugins/memory.md | plugins/test_memory.py::remembered_in_another_session
Retrieval with citations | plugins/retrieval.md | plugins/test_retrieval.py::passages_and_citations
Embeddings and hybrid search | plugins/retrieval.md | plugins/test_retrieval.py::meaning
PostgreSQL for vectors | plugins/retrieval.md | plugins/test_postgres_texts.py::meaning
A provider's own memory tool | plugins/memory.md | plugins/test_memory_files.py::anthropics_own_tool
# Several agents
Agents as tools | multi-agent.md | orchestration/test_through_all.py::one_stream_has_the_events_of_all
Handoffs, with typed input | multi-agent.md | orchestration/test_handoff.py::typed_input
Workflows with recorded steps | workflows.md | orchestration/test_functions.py::a_function_runs_once
Diagrams of workflows and recorded runs | workflows.md | orchestration/test_flow.py::steps_branches_and_loops
Graphs of agents | multi-agent.md | orchestration/test_graph.py::a_tree_with_hand_offs_in_a_circle
Many inputs at once | batch.md | orchestration/test_batch.py::order_and_limit
Batch endpoints of providers | batch.md | models/test_batches.py::a_killed_process_is_continued_without_a_second_bill
# State
Sessions in SQL databases | stores.md | state/test_sql.py::another_process_finds_what_was_kept
Branches, forks and export | sessions.md | agent/test_sessions.py::a_branch_goes_on_with_the_conversation
Calls that survive their process | durable.md | durable/test_processes.py::workers_are_killed_at_random_and_every_call_ends_once
# Development
Record and replay | replay.md | recording/test_replay.py::a_run_runs_again_without_a_network_and_without_effects
Backtests of hooks | backtest.md | recording/test_backtest.py::a_guard_that_is_exchanged
Evaluations | evaluation.md | testing/test_evaluate.py::each_case_is_a_call_of_its_own_and_says_what_is_wrong
Evaluation pages | inspector.md | inspector/test_evaluations.py::from_the_list_to_a_run
Conformance suites | testing-hooks.md | testing/test_check_hook.py::a_planted_defect_is_found_and_nothing_else
Test doubles and simulated providers | testing-wire.md | wire/test_wire_server.py::one_function_answers_on_both_wires
OpenTelemetry | plugins/opentelemetry.md | plugins/test_opentelemetry.py::a_run_whole
Prompt optimisation | |
# Interfaces
HTTP servers with OpenAI's and Anthropic's APIs | serve-models.md | serve/test_models_api.py::a_streamed_chat_completion
A2A, AG-UI and ACP | a2a.md | serve/test_a2a.py::a_message_and_its_stream
Output in the terminal and on web pages | inspector.md | inspector/test_page.py::runs_are_listed_filtered_and_opened
"""
"""A row is a feature, its page and its test (the function without `test_`); both are empty if agentflow lacks the feature."""


def groups() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the headings, each with its rows."""
    found: list[tuple[str, list[tuple[str, str, str]]]] = []
    for line in FEATURES.strip().splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        else:
            feature, page, test = [cell.strip() for cell in line.split("|")]
            found[-1][1].append((feature, page, test))
    return found


def present() -> list[tuple[str, str, str]]:
    """Return the rows of the features that agentflow has."""
    return [row for _, rows in groups() for row in rows if row[1]]


def table() -> str:
    """Return the tables, with their count."""
    count = sum(len(rows) for _, rows in groups())
    lines = [f"agentflow has {len(present())} of {count}."]
    for heading, rows in groups():
        lines += ["", f"## {heading}", "", "| Feature | Page | Test |", "|---|---|---|"]
        for feature, page, test in rows:
            shown = f"[{page[:-3]}]({page}) | `{test.replace('::', '::test_')}`" if page else "no |"
            lines.append(f"| {feature} | {shown} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the current tables."""
    return with_block(page, "website.features", table())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
