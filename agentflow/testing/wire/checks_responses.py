"""The checks for `rules_responses.tsv`. Each returns the values for the placeholders of its row's text, or None.

The column `about` of a row describes its check.
"""

from collections.abc import Callable, Iterator

from agentflow.testing.wire.checks_openai import is_bad_name, is_empty, is_long_name, is_open, is_optional
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, kind_of, objects
from agentflow.testing.wire.responses import is_own_reasoning, thought_before
from agentflow.testing.wire.rules import Subject, Violation, repeated, strict_objects

ROLES = ("assistant", "system", "developer", "user")
PARTS = ("input_text", "input_image", "output_text", "refusal", "input_file", "computer_screenshot", "summary_text")
MAX_ID, MIN_OUTPUT = 64, 16
CALLS = ("function_call", "computer_call")
OUTPUTS = ("function_call_output", "computer_call_output")
ACTIONS = {
    "click": ("button", "x", "y"),
    "double_click": ("x", "y"),
    "drag": ("path",),
    "keypress": ("keys",),
    "move": ("x", "y"),
    "screenshot": (),
    "scroll": ("x", "y", "scroll_x", "scroll_y"),
    "type": ("text",),
    "wait": (),
}
"""The actions of a computer, with their fields."""
MODEL_ITEMS = ("message", "reasoning", "function_call", "image_generation_call", "computer_call")
"""The types of items that a model produces."""


def items(s: Subject) -> list[JsonObject]:
    """Return the input's items; a text counts as a user message."""
    source = s.body.get("input")
    return [{"role": "user", "content": source}] if isinstance(source, str) else objects(source)


def of_type(s: Subject, *types: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield positions and items of these types."""
    return ((n, item) for n, item in enumerate(items(s)) if item_type(item) in types)


def item_type(item: JsonObject) -> str:
    """Return the type of an item, which a message may omit."""
    return as_text(item.get("type")) or ("message" if "role" in item else "")


def no_input(s: Subject) -> Violation | None:
    return None if any(s.body.get(name) is not None for name in ("input", "prompt")) else Violation()


def input_type(s: Subject) -> Violation | None:
    source = s.body.get("input")
    return None if source is None or isinstance(source, str | list) else Violation(kind=kind_of(source))


def item_kind(s: Subject) -> Violation | None:
    for n, item in enumerate(as_list(s.body.get("input"))):
        if not isinstance(item, dict):
            return Violation(n=n, kind=kind_of(item))
    return None


def untyped(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, item in enumerate(items(s)) if not item_type(item)), None)


def role(s: Subject) -> Violation | None:
    for n, item in of_type(s, "message"):
        if as_text(item.get("role")) not in ROLES:
            return Violation(n=n, x=as_text(item.get("role")))
    return None


def content_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, item in of_type(s, "message") if item.get("content") is None), None)


def parts(s: Subject) -> Iterator[tuple[int, str, int, JsonObject]]:
    """Yield the parts of messages and results: the item's position, its field, the part's position, and the part."""
    for key, kind in (("content", "message"), ("output", "function_call_output")):
        for n, item in of_type(s, kind):
            for m, part in enumerate(objects(item.get(key))):
                yield n, key, m, part


def part_type(s: Subject) -> Violation | None:
    for n, key, m, part in parts(s):
        if as_text(part.get("type")) not in PARTS:
            return Violation(n=n, key=key, m=m, x=as_text(part.get("type")))
    return None


def image_missing(s: Subject) -> Violation | None:
    for n, key, m, part in parts(s):
        if part.get("type") == "input_image" and not (part.get("image_url") or part.get("file_id")):
            return Violation(n=n, key=key, m=m)
    return None


def renamed_field(s: Subject) -> Violation | None:
    """Check for fields of chat completions that have another name in this API."""
    new_names = {
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "max_tokens": "max_output_tokens",
    }
    for name, new in {**new_names, "max_completion_tokens": "max_output_tokens", "messages": "input"}.items():
        if name in s.body:
            return Violation(x=name, place=new)
    return None


def unknown(s: Subject) -> Violation | None:
    """Check for fields of chat completions that do not exist in this API."""
    return next((Violation(x=name) for name in ("stop", "seed", "n", "logit_bias") if name in s.body), None)


def unknown_in_item(s: Subject) -> Violation | None:
    for n, item in of_type(s, "message"):
        for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
            if name in item:
                return Violation(n=n, x=name)
    return None


def field_missing(key: str, *types: str) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        return next((Violation(n=n) for n, item in of_type(s, *types) if item.get(key) is None), None)

    return check


call_id_missing = field_missing("call_id", *CALLS, *OUTPUTS)
call_name_missing = field_missing("name", "function_call")
arguments_missing = field_missing("arguments", "function_call")
output_missing = field_missing("output", *OUTPUTS)
computer_id_missing = field_missing("id", "computer_call")
computer_status_missing = field_missing("status", "computer_call")
computer_checks_missing = field_missing("pending_safety_checks", "computer_call")
summary_missing = field_missing("summary", "reasoning")


def call_id_long(s: Subject) -> Violation | None:
    for n, item in of_type(s, *CALLS, *OUTPUTS):
        if len(as_text(item.get("call_id"))) > MAX_ID:
            return Violation(n=n, x=len(as_text(item.get("call_id"))))
    return None


def arguments_type(s: Subject) -> Violation | None:
    for n, item in of_type(s, "function_call"):
        if not isinstance(item.get("arguments"), str):
            return Violation(n=n, kind=kind_of(item.get("arguments")))
    return None


def call_name_pattern(s: Subject) -> Violation | None:
    return next(
        (Violation(n=n) for n, item in of_type(s, "function_call") if is_bad_name(as_text(item.get("name")))), None
    )


def item_twice(s: Subject) -> Violation | None:
    duplicate = repeated([ident for item in items(s) if (ident := as_text(item.get("id")))])
    return None if duplicate is None else Violation(id=duplicate)


def orphan(s: Subject) -> Violation | None:
    """Check for an output of a call that was not made before it."""
    called: set[tuple[str, str]] = set()
    for _, item in of_type(s, *CALLS, *OUTPUTS):
        kind, ident = item_type(item), as_text(item.get("call_id"))
        if kind in CALLS:
            called.add((kind, ident))
        elif (kind.removesuffix("_output"), ident) not in called:
            return Violation(kind=_type_text(kind.removesuffix("_output")), id=ident)
    return None


def unanswered(s: Subject) -> Violation | None:
    answered = {(item_type(item), as_text(item.get("call_id"))) for _, item in of_type(s, *OUTPUTS)}
    for _, item in of_type(s, *CALLS):
        kind, ident = item_type(item), as_text(item.get("call_id"))
        if (f"{kind}_output", ident) not in answered:
            return Violation(kind=_type_text(kind), id=ident)
    return None


def _type_text(kind: str) -> str:
    return kind.replace("_", " ")


def computer_id(s: Subject) -> Violation | None:
    for n, item in of_type(s, "computer_call"):
        if not as_text(item.get("id")).startswith("cu"):
            return Violation(n=n, x=as_text(item.get("id")))
    return None


def actions(s: Subject) -> Iterator[tuple[int, int, JsonObject]]:
    for n, item in of_type(s, "computer_call"):
        for m, action in enumerate(objects(item.get("actions")) or [as_object(item.get("action"))]):
            yield n, m, action


def action_type(s: Subject) -> Violation | None:
    for n, m, action in actions(s):
        if as_text(action.get("type")) not in ACTIONS:
            return Violation(n=n, m=m, x=as_text(action.get("type")))
    return None


def action_field(s: Subject) -> Violation | None:
    for n, m, action in actions(s):
        for name in ACTIONS.get(as_text(action.get("type")), ()):
            if action.get(name) is None:
                return Violation(n=n, m=m, x=name)
    return None


def screenshot_type(s: Subject) -> Violation | None:
    for n, item in of_type(s, "computer_call_output"):
        kind = as_text(as_object(item.get("output")).get("type"))
        if kind != "computer_screenshot":
            return Violation(n=n, x=kind)
    return None


def screenshot_missing(s: Subject) -> Violation | None:
    for n, item in of_type(s, "computer_call_output"):
        shot = as_object(item.get("output"))
        if not shot.get("image_url") and not shot.get("file_id"):
            return Violation(n=n)
    return None


def unacknowledged(s: Subject) -> Violation | None:
    """Check for an output that does not acknowledge the safety checks of its call."""
    known = {
        (as_text(item.get("call_id")), as_text(check.get("id")))
        for _, item in of_type(s, "computer_call_output")
        for check in objects(item.get("acknowledged_safety_checks"))
    }
    for _, item in of_type(s, "computer_call"):
        pending = [as_text(check.get("id")) for check in objects(item.get("pending_safety_checks"))]
        lacking = [check for check in pending if (as_text(item.get("call_id")), check) not in known]
        if lacking:
            return Violation(x=repr(lacking))
    return None


def computer_alone(s: Subject) -> Violation | None:
    """Check for a computer call in a request without the tool."""
    has = any(tool.get("type") == "computer" for tool in s.tools)
    return None if has else next((Violation(n=n) for n, _ in of_type(s, "computer_call")), None)


def reasoning_alone(s: Subject) -> Violation | None:
    """Check for a reasoning item without the item that followed it."""
    source = items(s)
    for n, item in of_type(s, "reasoning"):
        following = source[n + 1] if n + 1 < len(source) else {}
        is_output = item_type(following) in MODEL_ITEMS and as_text(following.get("role")) in ("", "assistant")
        if not is_output:
            return Violation(id=as_text(item.get("id")))
    return None


def thought_missing(s: Subject) -> Violation | None:
    """Check for an item that followed a reasoning item and is returned without it."""
    known: set[str] = set()
    for item in items(s):
        ident = as_text(item.get("id"))
        wanted = thought_before(ident)
        if wanted is not None and wanted not in known:
            return Violation(id=ident, type=item_type(item), thought=wanted)
        known.add(ident)
    return None


def not_stored(s: Subject) -> Violation | None:
    """Check for a reasoning item without its encrypted content whose text the server does not have either."""
    for _, item in of_type(s, "reasoning"):
        ident = as_text(item.get("id"))
        if not item.get("encrypted_content") and (s.body.get("store") is False or not is_own_reasoning(ident)):
            return Violation(id=ident)
    return None


def changed_content(s: Subject) -> Violation | None:
    for _, item in of_type(s, "reasoning"):
        sealed = as_text(item.get("encrypted_content"))
        if sealed and s.signer.check(sealed) is None:
            return Violation(x=f"{sealed[:4]}...{sealed[-4:]}")
    return None


def reference(s: Subject) -> Violation | None:
    return next((Violation(id=as_text(item.get("id"))) for _, item in of_type(s, "item_reference")), None)


def previous(s: Subject) -> Violation | None:
    ident = s.body.get("previous_response_id")
    return None if ident is None else Violation(id=as_text(ident))


def functions(s: Subject) -> Iterator[tuple[int, JsonObject]]:
    return ((n, tool) for n, tool in enumerate(s.tools) if tool.get("type") == "function")


def tool_untyped(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, tool in enumerate(s.tools) if not as_text(tool.get("type"))), None)


def tool_name_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, tool in functions(s) if tool.get("name") is None), None)


def tool_name(test: Callable[[str], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for n, tool in functions(s):
            name = as_text(tool.get("name"))
            if test(name):
                return Violation(n=n, x=len(name))
        return None

    return check


tool_name_empty, tool_name_pattern, tool_name_long = map(tool_name, (is_empty, is_bad_name, is_long_name))


def broken_schema(schema: JsonValue, violates: Callable[[JsonObject], bool]) -> str | None:
    return next((repr(path) for path, inner in strict_objects(schema) if violates(inner)), None)


def tool_strict(violates: Callable[[JsonObject], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for n, tool in functions(s):
            path = broken_schema(tool.get("parameters"), violates) if tool.get("strict") is True else None
            if path is not None:
                return Violation(n=n, x=as_text(tool.get("name")), path=path)
        return None

    return check


def format_strict(violates: Callable[[JsonObject], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        form = as_object(as_object(s.body.get("text")).get("format"))
        path = broken_schema(form.get("schema"), violates) if form.get("strict") is True else None
        return None if path is None else Violation(x=as_text(form.get("name")), path=path)

    return check


strict_open, strict_optional = tool_strict(is_open), tool_strict(is_optional)
format_open, format_optional = format_strict(is_open), format_strict(is_optional)


def format_name(s: Subject) -> Violation | None:
    form = as_object(as_object(s.body.get("text")).get("format"))
    return Violation() if form.get("type") == "json_schema" and not form.get("name") else None


def choice_unknown(s: Subject) -> Violation | None:
    choice = as_object(s.body.get("tool_choice"))
    name = as_text(choice.get("name"))
    known = [as_text(tool.get("name")) for _, tool in functions(s)]
    return Violation(x=name) if choice.get("type") == "function" and name not in known else None


def least_output(s: Subject) -> Violation | None:
    requested = s.body.get("max_output_tokens")
    return Violation(x=requested) if isinstance(requested, int) and requested < MIN_OUTPUT else None


def sampling(s: Subject) -> Violation | None:
    if s.dialect.sampling:
        return None
    return next((Violation(x=name) for name in ("temperature", "top_p") if s.body.get(name) is not None), None)


def ceiling(s: Subject) -> Violation | None:
    requested, limit = s.body.get("max_output_tokens"), s.dialect.max_output
    return (
        Violation(n=requested, m=limit)
        if isinstance(requested, int) and limit is not None and requested > limit
        else None
    )
