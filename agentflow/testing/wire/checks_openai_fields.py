"""The checks for `rules_openai.tsv` that concern the fields of a request: names, types, ranges, allowed values, lengths."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from agentflow.testing.wire.checks_openai import is_bad_name
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, dump, kind_of
from agentflow.testing.wire.rules import Subject, Violation

FIELDS = frozenset(
    (
        *(
            "audio",
            "frequency_penalty",
            "function_call",
            "functions",
            "logit_bias",
            "logprobs",
            "max_completion_tokens",
        ),
        *(
            "max_tokens",
            "messages",
            "metadata",
            "modalities",
            "model",
            "moderation",
            "n",
            "parallel_tool_calls",
            "prediction",
        ),
        *("presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
        *("response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options"),
        *("temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity", "web_search_options"),
    )
)
NUMBER, INTEGER, TEXT, BOOLEAN, OBJECT, ARRAY = (
    "a decimal",
    "an integer",
    "a string",
    "a boolean",
    "an object",
    "an array",
)
TYPES = {
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), NUMBER),
    **dict.fromkeys(("n", "max_tokens", "max_completion_tokens", "seed", "top_logprobs"), INTEGER),
    **dict.fromkeys(("user", "prompt_cache_key", "safety_identifier", "service_tier"), TEXT),
    **dict.fromkeys(("logprobs", "stream", "parallel_tool_calls", "store"), BOOLEAN),
    **dict.fromkeys(("metadata", "logit_bias", "stream_options", "response_format"), OBJECT),
    **dict.fromkeys(("messages", "tools", "modalities"), ARRAY),
}
_PYTHON: dict[str, tuple[type, ...]] = {
    NUMBER: (int, float),
    INTEGER: (int,),
    TEXT: (str,),
    BOOLEAN: (bool,),
    OBJECT: (dict,),
    ARRAY: (list,),
}
RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "n": (1, 128),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "top_logprobs": (0, 20),
}
VALUES = {
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh"),
    "service_tier": ("auto", "default", "flex", "scale", "priority"),
    "verbosity": ("low", "medium", "high"),
    "tool_choice": ("none", "auto", "required"),
}
FORMATS = ("text", "json_object", "json_schema")
MAX_STOPS, MAX_KEY, MAX_METADATA, MAX_BIAS = 4, 64, 16, 100
_IMAGE_DATA = re.compile(r"data:image/(?:png|jpe?g|gif|webp);base64,[A-Za-z0-9+/]+={0,2}\Z")


def unknown_field(s: Subject) -> Violation | None:
    return next((Violation(x=name) for name in s.body if name not in FIELDS), None)


def field_type(s: Subject) -> Violation | None:
    for name, want in TYPES.items():
        value = s.body.get(name)
        if value is not None and (
            not isinstance(value, _PYTHON[want]) or (want != BOOLEAN and isinstance(value, bool))
        ):
            return Violation(x=name, want=want, kind=kind_of(value))
    for name, value in as_object(s.body.get("metadata")).items():
        if not isinstance(value, str):
            return Violation(x=f"metadata.{name}", want=TEXT, kind=kind_of(value))
    return None


class _Bound(NamedTuple):
    name: str
    value: float
    limit: float
    above: bool


def _out_of_range(s: Subject) -> Iterator[_Bound]:
    for name, (low, high) in RANGES.items():
        value = s.body.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if value < low:
            yield _Bound(name, value, low, above=False)
        elif high is not None and value > high:
            yield _Bound(name, value, high, above=True)


def _range(kind: str, *, above: bool) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        found = (bound for bound in _out_of_range(s) if bound.above is above and TYPES[bound.name] == kind)
        return next((Violation(x=bound.name, m=str(bound.limit), n=str(bound.value)) for bound in found), None)

    return check


integer_low, integer_high = _range(INTEGER, above=False), _range(INTEGER, above=True)
decimal_low, decimal_high = _range(NUMBER, above=False), _range(NUMBER, above=True)


def _listed(values: tuple[str, ...]) -> str:
    quoted = [f"'{value}'" for value in values]
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}" if len(quoted) > 2 else " and ".join(quoted)


def known_value(s: Subject) -> Violation | None:
    for name, known in VALUES.items():
        value = s.body.get(name)
        if isinstance(value, str) and value not in known:
            return Violation(x=value, values=_listed(known), path=name)
    kind = as_object(s.body.get("response_format")).get("type")
    if kind is not None and kind not in FORMATS:
        return Violation(x=as_text(kind), values=_listed(FORMATS), path="response_format.type")
    for n, tool in enumerate(s.tools):
        if tool.get("type") not in ("function", "custom"):
            return Violation(
                x=as_text(tool.get("type")), values=_listed(("function", "custom")), path=f"tools[{n}].type"
            )
    return None


def assistant_part(s: Subject) -> Violation | None:
    for n, m, part in s.blocks():
        kind = as_text(part.get("type"))
        if s.role(n) == "assistant" and kind not in ("text", "refusal"):
            return Violation(n=n, m=m, x=kind)
    return None


def stops_many(s: Subject) -> Violation | None:
    count = len(as_list(s.body.get("stop")))
    return Violation(x=count) if count > MAX_STOPS else None


def stops_empty(s: Subject) -> Violation | None:
    return Violation() if s.body.get("stop") == [] else None


def logit_bias_key(s: Subject) -> Violation | None:
    return next((Violation(x=key) for key in as_object(s.body.get("logit_bias")) if not key.isdecimal()), None)


def logit_bias_range(s: Subject) -> Violation | None:
    for key, value in as_object(s.body.get("logit_bias")).items():
        if isinstance(value, int | float) and not -MAX_BIAS <= value <= MAX_BIAS:
            return Violation(x=key, n=dump(value))
    return None


def audio_missing(s: Subject) -> Violation | None:
    wanted = "audio" in as_list(s.body.get("modalities")) and s.body.get("audio") is None
    return Violation() if wanted else None


def key_long(s: Subject) -> Violation | None:
    for name in ("prompt_cache_key", "safety_identifier"):
        if (size := len(as_text(s.body.get(name)))) > MAX_KEY:
            return Violation(x=name, n=size)
    return None


def metadata_many(s: Subject) -> Violation | None:
    count = len(as_object(s.body.get("metadata")))
    return Violation(x=count) if count > MAX_METADATA else None


def both_limits(s: Subject) -> Violation | None:
    both = s.body.get("max_tokens") is not None and s.body.get("max_completion_tokens") is not None
    return Violation() if both else None


def logprobs_alone(s: Subject) -> Violation | None:
    alone = s.body.get("top_logprobs") is not None and s.body.get("logprobs") is not True
    return Violation() if alone else None


def json_word(s: Subject) -> Violation | None:
    if as_object(s.body.get("response_format")).get("type") != "json_object":
        return None
    return None if "json" in dump(s.body.get("messages")).lower() else Violation()


def _schema_format(s: Subject) -> JsonObject | None:
    wanted = as_object(s.body.get("response_format"))
    return as_object(wanted.get("json_schema")) if wanted.get("type") == "json_schema" else None


def format_name(s: Subject) -> Violation | None:
    wanted = _schema_format(s)
    return Violation() if wanted is not None and not as_text(wanted.get("name")) else None


def format_name_pattern(s: Subject) -> Violation | None:
    wanted = _schema_format(s)
    return Violation() if wanted is not None and is_bad_name(as_text(wanted.get("name"))) else None


def _arrays(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonObject]]:
    """Yield the arrays in a JSON schema, each with its path."""
    schema = as_object(value)
    if schema.get("type") == "array":
        yield path, schema
    for key, inner in as_object(schema.get("properties")).items():
        yield from _arrays(inner, (*path, "properties", key))
    if "items" in schema:
        yield from _arrays(schema["items"], (*path, "items"))


def array_items(s: Subject) -> Violation | None:
    for n, function in s.functions():
        for path, schema in _arrays(function.get("parameters")):
            if "items" not in schema and "prefixItems" not in schema:
                return Violation(n=n, x=as_text(function.get("name")), path=repr(path))
    return None


def tool_name_twice(s: Subject) -> Violation | None:
    names: set[str] = set()
    for n, function in s.functions():
        name = as_text(function.get("name"))
        if name in names:
            return Violation(n=n, x=name)
        names.add(name)
    return None


def image_url(s: Subject) -> Violation | None:
    for n, m, part in s.blocks("image_url"):
        url = as_text(as_object(part.get("image_url")).get("url"))
        fine = _IMAGE_DATA.match(url) if url.startswith("data:") else urlsplit(url).scheme in ("http", "https")
        if not fine:
            return Violation(n=n, m=m)
    return None
