"""Reads the facts of a provider's failure from its exception: status, headers, the provider's text, whether to retry.

Rules:

1. No client is imported: the classes of LiteLLM and its clients are recognised by name, and the facts are read from the
   whole chain of causes.
2. `x-should-retry` takes precedence over the status, and a provider's permanent reasons over both.
3. The text is the provider's complete text (the reason is often in the last line), without JSON, HTML, separator lines
   and class names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from pydantic_core import from_json

from agentflow.errors import ModelError, ModelFault
from agentflow.models.loose import field

# Names of classes of LiteLLM, OpenAI's client and agentflow, used only if there is no status.
_RETRYABLE = frozenset(
    {
        "Timeout",
        "APIConnectionError",
        "RateLimitError",
        "InternalServerError",
        "ServiceUnavailableError",
        "BadGatewayError",
        "MidStreamFallbackError",
        "ProviderError",
        "TimeoutError",
    }
)
_PERMANENT = frozenset(
    {
        "AuthenticationError",
        "BadRequestError",
        "NotFoundError",
        "PermissionDeniedError",
        "UnprocessableEntityError",
        "ContextWindowExceededError",
        "ContentPolicyViolationError",
        "UnsupportedParamsError",
        "BudgetExceededError",
        "NotUnderstoodError",
    }
)
# Exceptions of aiohttp, httpx and agentflow for invalid URLs: retrying does not help.
_NO_ADDRESS = frozenset({"WrongSettingError", "InvalidURL", "NonHttpUrlClientError", "UnsupportedProtocol"})
# 409: OpenAI's client retries it as a lock timeout; 5xx are always retryable.
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_QUOTA = ("insufficient_quota", "exceeded your current quota", "credit balance is too low", "billing_hard_limit")
# The types of errors within a stream, which have no status.
_BROKEN_REQUEST = ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
# Local servers answer 500 to requests that can never work: a failing chat template, or an image for a text-only model.
_NEVER = (
    "roles must alternate",
    "system role not supported",
    "system message must be at the beginning",
    "only user, assistant and tool roles are supported",
    "tool call ids should be alphanumeric",
    "parser for this template",
    "jinja",
    "raise_exception",
    "chat template",
    "while executing ",
    "input is not supported",
    "required for image input",
    "does not support multimodal",
    "mmproj",
)
_OVERFLOW = (
    "context length",
    "context_length_exceeded",
    "context window",
    "prompt is too long",
    "exceed context limit",
    "exceeds the available context size",  # llama.cpp
)
_POLICY = ("content_policy_violation", "content management policy", "responsibleaipolicyviolation")
# Exceptions that LiteLLM's catch-all class wraps if the fault is in a program rather than the connection.
_BUGS = (ImportError, AttributeError, NameError, TypeError, KeyError, IndexError, AssertionError)
# Modules of clients: an exception of one of them in the chain shows that the connection failed.
_LINE = ("httpx", "httpcore", "aiohttp", "anyio", "ssl", "openai")

# Each of these patterns is applied to external text of any length, so it must take linear time: no repetition may begin
# at a position where another attempt has just matched the same characters (tests/words/test_hostile_texts.py).
_CLASS_PREFIX = re.compile(r"^\s*(?:litellm\.)?[A-Za-z_]*(?:Error|Exception|Timeout)\b\s*(?:-|:)?\s+")
# The advice and details that LiteLLM appends to a provider's text.
_TRAILER = re.compile(
    r"(?:Handle with `litellm\.|Original exception:|Traceback \(most recent|Error_str:|"
    r"Received Model Group=|To drop these, set).*",
    re.DOTALL,
)
_RULER = re.compile(r"^[\W_]*$")
_TAG = re.compile(r"<[^<>]*>")
_OBJECT = re.compile(r"\b\w{1,60}:<[\w.]+ object at 0x[0-9a-f]+>")
_NO_KEY = re.compile(
    r"missing.{0,30}(?:credential|api.?key)|api.?key.{0,40}(?:must be set|required|not (?:set|found|provided|passed))"
    r"|no api.?key|unable to locate credentials",
    re.IGNORECASE,
)
_MAX_LENGTH = 500
_MAX_PREFIXES = 5  # LiteLLM adds one for each class that wraps the error


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in a chain of exceptions.

    Attributes:
        names: The names of the exception's class and its base classes.
        status: The HTTP status.
        headers: The answer's headers, names in lower case.
        text: The provider's text, on one line.
        raw: The unchanged texts of the chain.
        is_bug: Whether the program is at fault, not the connection.
        keyless: Whether the request had no API key.
    """

    names: frozenset[str]
    status: int | None
    headers: Mapping[str, str]
    text: str
    raw: str
    is_bug: bool
    keyless: bool

    def mentions(self, phrases: Iterable[str]) -> bool:
        """Return whether the provider's text contains one of the phrases, which are in lower case."""
        low = self.raw.lower()
        return any(phrase in low for phrase in phrases)


def fault_of(facts: Facts) -> ModelFault | None:
    if facts.keyless or facts.status == 401 or "AuthenticationError" in facts.names:
        return "authentication"
    # Tested before the status, because exhausted quotas come with 429, which otherwise is a rate limit.
    if facts.mentions(_QUOTA):
        return "quota"
    if "ContextWindowExceededError" in facts.names or facts.status == 413 or facts.mentions(_OVERFLOW):
        return "context_overflow"
    if "ContentPolicyViolationError" in facts.names or facts.mentions(_POLICY):
        return "content_policy"
    return "rate_limit" if facts.status == 429 else None


def facts_of(error: BaseException) -> Facts:
    chain = [*causes_of(error)]
    line_fault = any(isinstance(link, OSError) or type(link).__module__.split(".")[0] in _LINE for link in chain[1:])
    head = chain[0]
    # An error within a stream wraps the original one.
    if isinstance(inner := field(head, "original_exception"), BaseException):
        chain.insert(0, inner)
    names = frozenset(cls.__name__ for cls in type(chain[0]).__mro__)
    if isinstance(chain[0], OSError) or type(chain[0]).__module__.split(".")[0] in ("httpx", "aiohttp", "httpcore"):
        names = names | {"APIConnectionError"}
    no_address = any(cls.__name__ in _NO_ADDRESS for link in chain for cls in type(link).__mro__)
    # The provider's text is in the first links; phrases are not searched for in the transport's errors below them.
    raw = "\n".join(dict.fromkeys(raw_text(link) for link in chain[:3]))
    headers = headers_in(chain)
    # An answer has headers: without any, nothing was sent, since the client found no key.
    keyless = not headers and _NO_KEY.search(raw) is not None
    return Facts(
        names=names,
        status=401 if keyless else status_in(chain),
        headers=headers,
        text=_clean(_error_text(chain[0], *chain[1:])),
        raw=raw,
        is_bug=no_address or (not line_fault and isinstance(chain[-1], _BUGS)),
        keyless=keyless,
    )


def causes_of(error: BaseException) -> Iterator[BaseException]:
    known: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in known and not isinstance(link, ModelError):
        known.add(id(link))
        yield link
        link = link.__cause__ or link.__context__  # the HTTP answer, which LiteLLM hides with `from None`


def status_in(chain: list[BaseException]) -> int | None:
    """Return the original HTTP status: LiteLLM's outer classes replace it with their own (529 becomes 500)."""
    # Searched from the innermost error: the answer itself has the provider's own status.
    for link in reversed(chain):
        if type(link).__name__.endswith("HTTPStatusError"):
            status = field(field(link, "response"), "status_code")
            if isinstance(status, int):
                return status
    # LiteLLM gives lost connections the status 500, although no answer arrived.
    if any(isinstance(link, OSError) or "Connect" in type(link).__name__ for link in chain[1:]):
        return None
    if any(cls.__name__ in ("APIConnectionError", "Timeout") for cls in type(chain[0]).__mro__):
        return None
    if "provider not provided" in str(chain[0]).lower():
        return None
    status = field(chain[0], "status_code")
    return status if isinstance(status, int) and status >= 300 else None


def headers_in(chain: list[BaseException]) -> dict[str, str]:
    for link in chain:
        for source in (
            field(link, "litellm_response_headers"),
            field(field(link, "response"), "headers"),
            field(link, "headers"),
        ):
            if isinstance(source, Mapping) and source:
                found = cast("Mapping[object, object]", source)
                return {str(name).lower(): str(value) for name, value in found.items()}
    return {}


def _error_text(link: BaseException, *causes: BaseException) -> str:
    message = field(link, "message")
    text = message if isinstance(message, str) and message else str(link)
    if "{'error'" in text:  # OpenAI's client puts the answer's body into the text, but a field contains it too
        bodies = [field(cause, "body") for cause in (link, *causes)]
        found = (field(body, "message") or field(field(body, "error"), "message") for body in bodies)
        return next((value for value in found if isinstance(value, str)), text)
    return text


def raw_text(link: BaseException) -> str:
    body, code = field(link, "body"), vars(link).get("code")  # aiohttp's property of this name emits a warning
    extra = " ".join(str(part) for part in (field(body, "type"), field(body, "code"), code) if part)
    text = _error_text(link)
    return f"{text}\n{extra}" if extra else text


def is_retryable(facts: Facts) -> bool:
    # Permanent whatever the header says: neither a quota nor a conversation changes between attempts.
    if facts.mentions((*_QUOTA, *_OVERFLOW)):
        return False
    should_retry = facts.headers.get("x-should-retry", "").lower()
    if should_retry in ("true", "false"):
        return should_retry == "true"
    if facts.is_bug or (facts.status in (None, 500) and facts.mentions(_NEVER)):
        return False
    if facts.status is not None:
        return facts.status >= 500 or facts.status in _RETRYABLE_STATUS
    if facts.names & _PERMANENT or facts.mentions(_BROKEN_REQUEST):
        return False
    return bool(facts.names & _RETRYABLE)


def _clean(text: str) -> str:
    """Extract the provider's own text, on one line."""
    for _ in range(4):  # a proxy wraps the answer that it received
        # The JSON first, because the trailer may be within it; then again without the trailer.
        inner = _message_in_json(text)
        text = _TRAILER.sub("", text)
        if inner is None and (inner := _message_in_json(text)) is None:
            break
        text = inner
    for _ in range(_MAX_PREFIXES):
        text = _CLASS_PREFIX.sub("", text, count=1)
    if "<html" in text.lower():
        text = _TAG.sub(" ", text.replace("b'", "").replace("\\n'", ""))
    lines = [line for line in _OBJECT.sub("", text).splitlines() if not _RULER.match(line)]
    text = _without_stray_quotes(" ".join(" ".join(lines).split()).strip(" ."))
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[: _MAX_LENGTH // 2]} … {text[-_MAX_LENGTH // 2 :]}"


def _without_stray_quotes(text: str) -> str:
    """Remove quotation marks around a text, or an unpaired one at an end; `No module named 'x'` stays unchanged."""
    for quote in "'\"":
        if text.count(quote) % 2 or (text.count(quote) == 2 and text[0] == text[-1] == quote):
            text = text.strip(quote).strip(" .")
    return text


def _message_in_json(text: str) -> str | None:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        value: object = from_json(text[start : end + 1])
    except ValueError:
        return None
    message = field(field(value, "error"), "message") or field(value, "message") or field(value, "error")
    return message if isinstance(message, str) else None
