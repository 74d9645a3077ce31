"""The `Hook` class, functions as hooks, and the registration of both (`docs/hooks.md`)."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.hooks.defaults import RetryEmptyAnswers, RetryTruncatedAnswers, default_hooks
    from agentflow.hooks.discovery import installed_hook_names, installed_hooks
    from agentflow.hooks.functions import FunctionHook, HookOptions, on
    from agentflow.hooks.hook import Hook, HookResult
    from agentflow.hooks.hook_set import HookSet
    from agentflow.hooks.named import (
        HooksByName,
        HookSource,
        after_each_tool,
        after_llm,
        after_put,
        after_tool_round,
        after_turn,
        after_user_input,
        before_each_tool,
        before_llm,
        before_put,
        before_tool_round,
        before_turn,
        on_complete,
        on_error,
        on_pause,
        on_resume,
        on_turn_value,
    )
    from agentflow.hooks.registered import Registered
    from agentflow.hooks.scope import ProcessHooks, process_hooks
    from agentflow.hooks.wrapping import ModelSource, ToolSource

__all__ = [
    "FunctionHook",
    "Hook",
    "HookOptions",
    "HookResult",
    "HookSet",
    "HookSource",
    "HooksByName",
    "ModelSource",
    "ProcessHooks",
    "Registered",
    "RetryEmptyAnswers",
    "RetryTruncatedAnswers",
    "ToolSource",
    "after_each_tool",
    "after_llm",
    "after_put",
    "after_tool_round",
    "after_turn",
    "after_user_input",
    "before_each_tool",
    "before_llm",
    "before_put",
    "before_tool_round",
    "before_turn",
    "default_hooks",
    "installed_hook_names",
    "installed_hooks",
    "on",
    "on_complete",
    "on_error",
    "on_pause",
    "on_resume",
    "on_turn_value",
    "process_hooks",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = lazily(
        __name__,
        {
            ".defaults": "RetryEmptyAnswers RetryTruncatedAnswers default_hooks",
            ".discovery": "installed_hook_names installed_hooks",
            ".functions": "FunctionHook HookOptions on",
            ".hook": "Hook HookResult",
            ".hook_set": "HookSet",
            ".named": "HooksByName HookSource after_each_tool after_llm after_put after_tool_round after_turn "
            "after_user_input before_each_tool before_llm before_put before_tool_round before_turn on_complete "
            "on_error on_pause on_resume on_turn_value",
            ".registered": "Registered",
            ".scope": "ProcessHooks process_hooks",
            ".wrapping": "ModelSource ToolSource",
        },
    )
