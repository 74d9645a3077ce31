"""The checks for `rules_anthropic.tsv` that concern a request's fields; the vendor's errors are worded like pydantic's."""

import re
from base64 import b64decode
from collections.abc import Iterator

from agentflow.testing.wire.checks_anthropic import IMAGES, own_tools
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, objects
from agentflow.testing.wire.rules import Subject, Violation

SERVER_TOOLS = (
    *("advisor_20260301", "bash_20241022", "bash_20250124", "browser_toolset_20260801", "code_execution_20250522"),
    *("code_execution_20250825", "code_execution_20260120", "code_execution_20260521", "computer_20241022"),
    *("computer_20250124", "computer_20251124", "computer_toolset_20260801", "mcp_toolset", "memory_20250818"),
    *("text_editor_20241022", "text_editor_20250124", "text_editor_20250429", "text_editor_20250728"),
    *("tool_search_tool_bm25", "tool_search_tool_bm25_20251119", "tool_search_tool_regex"),
    *("tool_search_tool_regex_20251119", "web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309"),
    *("web_fetch_20260318", "web_search_20250305", "web_search_20260209", "web_search_20260318"),
)
VENDOR_NAMES = {
    "memory_20250818": "memory",
    "computer_20250124": "computer",
    "computer_20251124": "computer",
    "tool_search_tool_bm25_20251119": "tool_search_tool_bm25",
    "tool_search_tool_regex_20251119": "tool_search_tool_regex",
}
"""The required names of tools with a schema of the vendor, by type."""
BETAS = {
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""The betas that a request must name to use tools of these types."""
CHOICES = ("auto", "any", "tool", "none")
SCHEMA_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
# The allowed fields, by kind of object.
FIELDS_OF = {
    "message": frozenset({"role", "content"}),
    "text": frozenset({"type", "text", "citations", "cache_control"}),
    "metadata": frozenset({"user_id"}),
    "auto": frozenset({"type", "disable_parallel_tool_use"}),
    "any": frozenset({"type", "disable_parallel_tool_use"}),
    "tool": frozenset({"type", "name", "disable_parallel_tool_use"}),
    "none": frozenset({"type"}),
    "custom": frozenset(
        (
            *(
                "type",
                "name",
                "description",
                "input_schema",
                "cache_control",
                "strict",
                "defer_loading",
                "input_examples",
            ),
            *("allowed_callers", "eager_input_streaming"),
        )
    ),
    "disabled": frozenset({"type"}),
    "adaptive": frozenset({"type", "display", "block_binding"}),
}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MAGIC = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
_LIST, _BOOLEAN, _INTEGER = "a valid list", "a valid boolean", "a valid integer"
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "system": ((str, list), _LIST),
    "stop_sequences": ((list,), _LIST),
    "tools": ((list,), _LIST),
    "stream": ((bool,), _BOOLEAN),
    "top_k": ((int,), _INTEGER),
    "max_tokens": ((int,), _INTEGER),
    "temperature": ((int, float), "a valid number"),
    "top_p": ((int, float), "a valid number"),
    "metadata": ((dict,), "a valid dictionary or object to extract fields from"),
    "tool_choice": ((dict,), "a valid dictionary or object to extract fields from"),
    "container": ((str, dict), "a valid string"),
    "service_tier": ((str,), "a valid string"),
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def _fits(value: JsonValue, types: tuple[type, ...]) -> bool:
    """Whether a value has one of the types; in Python, a boolean is an integer too."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _problems(s: Subject) -> Iterator[tuple[str, str]]:
    """Yield the path and pydantic's error text of each invalid field."""
    for name, (types, expected) in _TYPES.items():
        value = s.body.get(name)
        if value is not None and not _fits(value, types):
            yield name, f"Input should be {expected}"
    if s.body.get("model") == "":
        yield "model", "String should have at least 1 character"
    if s.body.get("service_tier") not in (None, "auto", "standard_only"):
        yield "service_tier", "Input should be 'auto' or 'standard_only'"
    if len(as_text(as_object(s.body.get("metadata")).get("user_id"))) > 256:
        yield "metadata.user_id", "String should have at most 256 characters"
    top_k = s.body.get("top_k")
    if isinstance(top_k, int) and top_k < 0:
        yield "top_k", "Input should be greater than or equal to 0"
    effort = as_object(s.body.get("output_config")).get("effort")
    if effort is not None and effort not in _EFFORTS:
        yield "output_config.effort", "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    for n, block in enumerate(objects(s.body.get("system"))):
        if block.get("type") != "text":
            yield f"system.{n}.type", "Input should be 'text'"
    for n, tool in own_tools(s):
        if "description" in tool and not isinstance(tool["description"], str):
            yield f"tools.{n}.custom.description", "Input should be a valid string"
    for n, m, block in s.blocks("document"):
        source = as_object(block.get("source"))
        if source.get("type") == "base64" and source.get("media_type") != "application/pdf":
            yield f"messages.{n}.content.{m}.document.source.base64.media_type", "Input should be 'application/pdf'"


def field(s: Subject) -> Violation | None:
    return next((Violation(path=path, why=why) for path, why in _problems(s)), None)


def _objects(s: Subject) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield the path, kind and value of each object with a closed set of fields."""
    for n, message in enumerate(s.messages):
        yield f"messages.{n}", "message", message
    for n, m, block in s.blocks("text"):
        yield f"messages.{n}.content.{m}.text", "text", block
    yield "metadata", "metadata", as_object(s.body.get("metadata"))
    for n, tool in own_tools(s):
        yield f"tools.{n}.custom", "custom", tool
    for name in ("tool_choice", "thinking"):
        inner = as_object(s.body.get(name))
        kind = as_text(inner.get("type"))
        if kind in FIELDS_OF:
            yield f"{name}.{kind}", kind, inner


def extra_inside(s: Subject) -> Violation | None:
    for path, kind, inner in _objects(s):
        for name in inner:
            if name not in FIELDS_OF[kind]:
                return Violation(path=f"{path}.{name}")
    return None


def choice_tag(s: Subject) -> Violation | None:
    choice = s.body.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") in CHOICES:
        return None
    return Violation(x=as_text(choice.get("type")), tags=", ".join(f"'{tag}'" for tag in CHOICES))


def tool_tag(s: Subject) -> Violation | None:
    for n, tool in enumerate(s.tools):
        kind = as_text(tool.get("type"))
        beta = BETAS.get(kind, "")
        if kind not in ("", "custom", *SERVER_TOOLS) or beta not in s.headers.get("anthropic-beta", ""):
            return Violation(n=n, x=kind, tags=", ".join(f"'{tag}'" for tag in sorted(("custom", *SERVER_TOOLS))))
    return None


def vendor_tool(s: Subject) -> Violation | None:
    for n, tool in enumerate(s.tools):
        kind = as_text(tool.get("type"))
        name = VENDOR_NAMES.get(kind)
        if name is None:
            continue
        if tool.get("name") != name:
            return Violation(n=n, kind=kind, x="name", why=f"Input should be '{name}'")
        sizes = ("display_width_px", "display_height_px") if name == "computer" else ()
        if lacking := [size for size in sizes if not isinstance(tool.get(size), int)]:
            return Violation(n=n, kind=kind, x=lacking[0], why="Field required")
        foreign = next((key for key in ("description", "input_schema") if key in tool), None)
        if foreign is not None:
            return Violation(n=n, kind=kind, x=foreign, why="Extra inputs are not permitted")
    return None


def mcp_server(s: Subject) -> Violation | None:
    servers = [as_text(server.get("name")) for server in objects(s.body.get("mcp_servers"))]
    used = [as_text(tool.get("mcp_server_name")) for tool in s.tools if tool.get("type") == "mcp_toolset"]
    unpaired = [name for name in (*servers, *used) if servers.count(name) != 1 or used.count(name) != 1]
    return Violation(x=unpaired[0]) if unpaired else None


def deferred_mark(s: Subject) -> Violation | None:
    for tool in s.tools:
        if tool.get("defer_loading") is True and tool.get("cache_control") is not None:
            return Violation(x=as_text(tool.get("name")))
    return None


def deferred_all(s: Subject) -> Violation | None:
    return Violation() if s.tools and all(tool.get("defer_loading") is True for tool in s.tools) else None


def lost_reference(s: Subject) -> Violation | None:
    names = {as_text(tool.get("name")) for tool in s.tools}
    for _, _, block in s.blocks("tool_search_tool_result"):
        for found in objects(as_object(block.get("content")).get("tool_references")):
            if (name := as_text(found.get("tool_name"))) not in names:
                return Violation(x=name)
    return None


def stop_blank(s: Subject) -> Violation | None:
    stops = as_list(s.body.get("stop_sequences"))
    return next((Violation() for stop in stops if not as_text(stop).strip()), None)


def both_samplers(s: Subject) -> Violation | None:
    both = s.body.get("temperature") is not None and s.body.get("top_p") is not None
    return Violation() if both else None


def top_p_range(s: Subject) -> Violation | None:
    value = s.body.get("top_p")
    return Violation() if isinstance(value, (int, float)) and not 0 <= value <= 1 else None


def schema_union(s: Subject) -> Violation | None:
    for n, tool in own_tools(s):
        if not {"oneOf", "allOf", "anyOf"}.isdisjoint(as_object(tool.get("input_schema"))):
            return Violation(n=n)
    return None


def _wrong_type(schema: JsonObject) -> bool:
    kinds = schema.get("type", [])
    named = kinds if isinstance(kinds, list) else [kinds]
    if any(kind not in SCHEMA_TYPES for kind in named if not isinstance(kind, (dict, list))):
        return True
    inner = [*as_object(schema.get("properties")).values(), *as_object(schema.get("$defs")).values()]
    inner += [*as_list(schema.get("anyOf")), schema.get("items")]
    return any(_wrong_type(item) for item in inner if isinstance(item, dict))


def schema_draft(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, tool in own_tools(s) if _wrong_type(as_object(tool.get("input_schema")))), None)


def schema_keys(s: Subject) -> Violation | None:
    for n, tool in own_tools(s):
        keys = as_object(as_object(tool.get("input_schema")).get("properties"))
        if any(_KEY.fullmatch(key) is None for key in keys):
            return Violation(n=n)
    return None


def _sources(s: Subject) -> Iterator[tuple[int, int, JsonObject]]:
    for n, m, block in s.blocks("image"):
        yield n, m, as_object(block.get("source"))


def image_data(s: Subject) -> Violation | None:
    for n, m, source in _sources(s):
        if source.get("type") == "base64" and _decoded(source) is None:
            return Violation(n=n, m=m)
    return None


def image_kind(s: Subject) -> Violation | None:
    for n, m, source in _sources(s):
        kind, data = as_text(source.get("media_type")), _decoded(source)
        if source.get("type") == "base64" and kind in IMAGES and data is not None and not data.startswith(_MAGIC[kind]):
            return Violation(n=n, m=m, x=kind)
    return None


def _decoded(source: JsonObject) -> bytes | None:
    try:
        return b64decode(as_text(source.get("data")), validate=True)
    except ValueError:
        return None


def image_url(s: Subject) -> Violation | None:
    for n, m, source in _sources(s):
        if source.get("type") == "url" and not as_text(source.get("url")).startswith("https://"):
            return Violation(n=n, m=m)
    return None


def citations_mixed(s: Subject) -> Violation | None:
    found: list[bool] = []
    for n, m, block in s.blocks("document"):
        found.append(as_object(block.get("citations")).get("enabled") is True)
        if found[-1] != found[0]:
            return Violation(n=n, m=m)
    return None
