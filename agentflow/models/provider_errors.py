"""Converts providers' failures to `ModelError`: whether and when to retry, and advice.

Rules:

1. No client is imported: the classes of LiteLLM and its clients are recognised by name, and facts are read from the chain of
   causes. `ProviderError` is the failure of a direct wire.
2. `x-should-retry` takes precedence over the status, and a provider's permanent reasons over both.
3. No error shows a credential: neither the message nor a cause, since every traceback and error reporter prints a cause's text,
   arguments and fields.
4. A message is one line with the model, the problem and advice. It contains all of the provider's text (the reason is often in
   the last line), without JSON, HTML, rulers and class names.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import from_json

from agentflow._support.frozen import EMPTY
from agentflow._support.shown import without_password, without_secrets
from agentflow.errors import ModelError, ModelFault
from agentflow.models.loose import field
from agentflow.models.waits import requested_wait

__all__ = [
    "ProviderError",
    "broken_stream",
    "chain_of",
    "is_bound_elsewhere",
    "is_secret",
    "model_error",
    "no_key",
    "secrets_in",
]

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
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_QUOTA = ("insufficient_quota", "exceeded your current quota", "credit balance is too low", "billing_hard_limit")
_BROKEN_REQUEST = ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
# Local servers answer 500 to requests that never work: a failing chat template, or an image for a text-only model.
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
_NO_EVENTS = "without a stream of events"  # in `http.refusal`, for a page, or JSON that is not a reply
_NOT_HERE = ("bound to a different conversation", "invalid_encrypted_content")
_POLICY = ("content_policy_violation", "content management policy", "responsibleaipolicyviolation")
# Exceptions that LiteLLM's catch-all class wraps if the fault is in a program rather than the connection.
_BUGS = (ImportError, AttributeError, NameError, TypeError, KeyError, IndexError, AssertionError)
_LINE = ("httpx", "httpcore", "aiohttp", "anyio", "ssl", "openai")

# Each of these runs over external text of any length, so it must take linear time: no repetition may begin where another
# attempt has just matched the same characters (tests/words/test_hostile_texts.py).
_CLASS_PREFIX = re.compile(r"^\s*(?:litellm\.)?[A-Za-z_]*(?:Error|Exception|Timeout)\b\s*(?:-|:)?\s+")
_TRAILER = re.compile(
    r"(?:Handle with `litellm\.|Original exception:|Traceback \(most recent|Error_str:|"
    r"Received Model Group=|To drop these, set).*",
    re.DOTALL,
)
_RULER = re.compile(r"^[\W_]*$")
_TAG = re.compile(r"<[^<>]*>")
_OBJECT = re.compile(r"\b\w{1,60}:<[\w.]+ object at 0x[0-9a-f]+>")
_KEY_NAME = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|KEY|TOKEN)\b")
_SECRET_NAME = re.compile(r"(?:key|token|secret|password|credentials?|authorization|cookie)$", re.IGNORECASE)
_NO_KEY = re.compile(
    r"missing.{0,30}(?:credential|api.?key)|api.?key.{0,40}(?:must be set|required|not (?:set|found|provided|passed))"
    r"|no api.?key|unable to locate credentials",
    re.IGNORECASE,
)
_VARIABLES = {"BEDROCK": "AWS_ACCESS_KEY_ID", "VERTEX_AI": "GOOGLE_APPLICATION_CREDENTIALS"}
_LONGEST = 500
_MOST_PREFIXES = 5


class ProviderError(Exception):
    """A provider's answer instead of a reply, or within one.

    Args:
        message: Its text.
        status_code: The HTTP status; None if it came in the stream.
        headers: The answer's headers, names in lower case.
        body: The error's own fields (`type`, `code`).
    """

    def __init__(
        self,
        message: str,
        status_code: int | None = None,
        headers: Mapping[str, str] = EMPTY,
        body: Mapping[str, object] = EMPTY,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.headers = headers
        self.body = body


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts in a chain of exceptions."""

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


def model_error(
    error: BaseException,
    model: str,
    *,
    secrets: Iterable[str] = (),
    now: Callable[[], float] = time.time,
    place: str | None = None,
) -> ModelError:
    """Convert a client's exception to a `ModelError`.

    It should be raised outside of the `except` block: its `__cause__` is the exception, or a copy without credentials if the
    exception or its chain shows one.

    Args:
        error: The exception of LiteLLM or a direct wire.
        model: The model's name, for the message.
        secrets: Texts to hide: some servers echo the key that they refuse. Keys in the environment are hidden anyway.
        now: Returns the seconds since the epoch; dates in headers are relative to it.
        place: The URL of the request, for failures that a wrong URL explains.

    Example:
        >>> model_error(ConnectionResetError("reset by peer"), "openai/gpt-5").retryable
        True
    """
    facts = _facts(error)
    wait = requested_wait(facts.headers, facts.raw, now)
    hidden = [*secrets, *secrets_in(os.environ)]
    failure = ModelError(
        without_secrets(_message(facts, model, wait, place), hidden),
        retryable=_retryable(facts),
        retry_after=wait,
        status=facts.status,
        model=model,
        kind=_fault(facts),
    )
    failure.__cause__ = _safe(error, hidden)
    return failure


def secrets_in(named: Mapping[str, object]) -> Iterator[str]:
    """Find the credentials in named values, at every depth, with and without a scheme such as `Bearer`.

    Example:
        >>> list(secrets_in({"servers": [{"authorization_token": "abc"}], "authorization": "Bearer xyz", "user": "u"}))
        ['abc', 'Bearer xyz', 'xyz']
    """
    for name, value in named.items():
        if isinstance(value, str):
            if is_secret(name):
                yield value
                yield from value.split()[1:]
        elif isinstance(value, Mapping):
            yield from secrets_in(cast("Mapping[str, object]", value))
        elif isinstance(value, (list, tuple)):
            for inner in cast("Sequence[object]", value):
                if isinstance(inner, Mapping):
                    yield from secrets_in(cast("Mapping[str, object]", inner))


def _safe(error: BaseException, secrets: Sequence[str]) -> BaseException:
    """Return the error, or a copy without secrets if its chain shows one."""
    if all(_shows_none(link, secrets) for link in chain_of(error)):
        return error
    text = without_secrets(str(error), secrets)
    copy = ProviderError(
        text if isinstance(error, ProviderError) else f"{type(error).__name__}: {text}",
        _status([error]),
        cast("Mapping[str, str]", _masked(_headers([error]), secrets)),
        cast("Mapping[str, object]", _masked(field(error, "body"), secrets) or EMPTY),
    )
    return copy.with_traceback(error.__traceback__)


def _shows_none(link: BaseException, secrets: Sequence[str]) -> bool:
    try:
        shown = f"{link} {link!r} {link.args!r} {vars(link)!r}"
    except Exception:  # noqa: BLE001, RUF100 - an exception that cannot be checked is replaced
        return False
    return without_secrets(shown, secrets) == shown


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of groups."""
    found, waiting = set[int](), [error]
    while waiting:
        link = waiting.pop()
        if id(link) in found:
            continue
        found.add(id(link))
        yield link
        waiting += [inner for inner in (link.__cause__, link.__context__) if inner is not None]
        if isinstance(link, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", link).exceptions


def _masked(value: object, secrets: Sequence[str]) -> object:
    if isinstance(value, str):
        return without_secrets(value, secrets)
    if isinstance(value, Mapping):
        return {key: _masked(inner, secrets) for key, inner in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_masked(inner, secrets) for inner in cast("Sequence[object]", value)]
    return value


def is_secret(name: str) -> bool:
    """Return whether a variable, header or argument of this name is a credential."""
    return _SECRET_NAME.search(name) is not None


def is_bound_elsewhere(error: ModelError) -> bool:
    """Return whether the provider refused a thought: the messages before it changed, or another account's key sealed it."""
    cause = error.__cause__
    return cause is not None and any(
        phrase in _raw_text(link).lower() for link in _chain(cause) for phrase in _NOT_HERE
    )


def broken_stream(model: str) -> ModelError:
    """Create the error of a stream that ended without a finish reason."""
    return ModelError(
        f"{model} broke off: the stream ended without a finish reason, so the reply may be incomplete. Try again, or set "
        "retries= for automatic retries.",
        retryable=True,
        model=model,
    )


def no_key(model: str, variable: str) -> ModelError:
    """Create the error of a request without a key."""
    return ModelError(
        f"There is no API key for {model}: set the environment variable {variable}, or pass api_key=.",
        status=401,
        model=model,
        kind="authentication",
    )


def _facts(error: BaseException) -> _Facts:
    chain = [*_chain(error)]
    line_fault = any(isinstance(link, OSError) or type(link).__module__.split(".")[0] in _LINE for link in chain[1:])
    head = chain[0]
    # An error within a stream wraps the original one.
    if isinstance(inner := field(head, "original_exception"), BaseException):
        chain.insert(0, inner)
    names = frozenset(cls.__name__ for cls in type(chain[0]).__mro__)
    if isinstance(chain[0], OSError) or type(chain[0]).__module__.split(".")[0] in ("httpx", "aiohttp", "httpcore"):
        names = names | {"APIConnectionError"}
    no_address = any(cls.__name__ in _NO_ADDRESS for link in chain for cls in type(link).__mro__)
    raw = "\n".join(dict.fromkeys(_raw_text(link) for link in chain[:3]))
    headers = _headers(chain)
    keyless = not headers and _NO_KEY.search(raw) is not None
    return _Facts(
        names=names,
        status=401 if keyless else _status(chain),
        headers=headers,
        text=_clean(_said(chain[0], *chain[1:])),
        raw=raw,
        is_bug=no_address or (not line_fault and isinstance(chain[-1], _BUGS)),
        keyless=keyless,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and not isinstance(link, ModelError):
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__  # LiteLLM raises `from None` over the HTTP answer


def _status(chain: list[BaseException]) -> int | None:
    """Return the original HTTP status: LiteLLM's outer classes replace it by their own (529 becomes 500)."""
    for link in reversed(chain):
        if type(link).__name__.endswith("HTTPStatusError"):
            status = field(field(link, "response"), "status_code")
            if isinstance(status, int):
                return status
    if any(isinstance(link, OSError) or "Connect" in type(link).__name__ for link in chain[1:]):
        return None
    if any(cls.__name__ in ("APIConnectionError", "Timeout") for cls in type(chain[0]).__mro__):
        return None
    if "provider not provided" in str(chain[0]).lower():
        return None
    status = field(chain[0], "status_code")
    return status if isinstance(status, int) and status >= 300 else None


def _headers(chain: list[BaseException]) -> dict[str, str]:
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


def _said(link: BaseException, *causes: BaseException) -> str:
    message = field(link, "message")
    text = message if isinstance(message, str) and message else str(link)
    if "{'error'" in text:  # a body as OpenAI's client prints it, which is also in a field
        bodies = [field(cause, "body") for cause in (link, *causes)]
        found = (field(body, "message") or field(field(body, "error"), "message") for body in bodies)
        return next((one for one in found if isinstance(one, str)), text)
    return text


def _raw_text(link: BaseException) -> str:
    body, code = field(link, "body"), vars(link).get("code")  # aiohttp's property of this name emits a warning
    extra = " ".join(str(part) for part in (field(body, "type"), field(body, "code"), code) if part)
    text = _said(link)
    return f"{text}\n{extra}" if extra else text


def _retryable(facts: _Facts) -> bool:
    if facts.mentions((*_QUOTA, *_OVERFLOW)):
        return False
    asked = facts.headers.get("x-should-retry", "").lower()
    if asked in ("true", "false"):
        return asked == "true"
    if facts.is_bug or (facts.status in (None, 500) and facts.mentions(_NEVER)):
        return False
    if facts.status is not None:
        return facts.status >= 500 or facts.status in _RETRYABLE_STATUS
    if facts.names & _PERMANENT or facts.mentions(_BROKEN_REQUEST):
        return False
    return bool(facts.names & _RETRYABLE)


def _clean(text: str) -> str:
    """Extract the provider's own text, on one line."""
    for _ in range(4):  # a proxy wraps the answer that it got
        inner = _message_in_json(text)
        text = _TRAILER.sub("", text)
        if inner is None and (inner := _message_in_json(text)) is None:
            break
        text = inner
    for _ in range(_MOST_PREFIXES):
        text = _CLASS_PREFIX.sub("", text, count=1)
    if "<html" in text.lower():
        text = _TAG.sub(" ", text.replace("b'", "").replace("\\n'", ""))
    lines = [line for line in _OBJECT.sub("", text).splitlines() if not _RULER.match(line)]
    text = _without_stray_quotes(" ".join(" ".join(lines).split()).strip(" ."))
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


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


def _message(facts: _Facts, model: str, wait: float | None, place: str | None) -> str:
    if facts.mentions(["llm provider not provided"]) or "LiteLLMUnknownProvider" in facts.names:
        return (
            f"LiteLLM does not know the provider of the model {model!r}. Name models 'provider/model', such as 'openai/gpt-5', "
            f"or 'openai/{model.split('/')[-1]}' with api_base= for a server with OpenAI's wire."
        )
    where = f" ({facts.status})" if facts.status is not None else ""
    fault = _fault(facts)
    if fault == "authentication":
        return _refused_key(facts, model, where)
    problem, cure = _FAULTS.get(fault, ("", "")) if fault is not None else ("", "")
    if not problem or facts.status == 413:
        problem = _problem(facts)
    cure = cure or _cure(facts, problem)
    if place is not None and "api_base=" in cure:
        cure += f" The request went to {without_password(place)}."
    later = f" It asks to wait {wait:g} s." if wait is not None else ""
    said = f": {facts.text}" if facts.text else ""
    end = "" if said.endswith(("!", "?", "…")) else "."
    return f"{model} {problem}{where}{said}{end}{later}{' ' * bool(cure)}{cure}"


def _refused_key(facts: _Facts, model: str, where: str) -> str:
    provider = model.split("/", 1)[0].upper().replace("-", "_")
    named = _KEY_NAME.search(facts.raw)
    variable = named[0] if named is not None else _VARIABLES.get(provider, f"{provider}_API_KEY")
    if facts.keyless:
        return str(no_key(model, variable))
    return f"{model} refused the API key{where}: {facts.text}. Check {variable} or api_key=."


def _fault(facts: _Facts) -> ModelFault | None:
    if facts.keyless or facts.status == 401 or "AuthenticationError" in facts.names:
        return "authentication"
    if facts.mentions(_QUOTA):
        return "quota"
    if "ContextWindowExceededError" in facts.names or facts.status == 413 or facts.mentions(_OVERFLOW):
        return "context_overflow"
    if "ContentPolicyViolationError" in facts.names or facts.mentions(_POLICY):
        return "content_policy"
    return "rate_limit" if facts.status == 429 else None


_ADD_CREDIT = "Add credit to the account, or use the key of another one."
_FAULTS: dict[ModelFault, tuple[str, str]] = {
    "quota": ("has no quota left", _ADD_CREDIT),
    "context_overflow": (
        "cannot hold the conversation in its context window",
        "Send less: SummaryCompaction and ClearOldResults of agentflow.plugins shorten the conversation.",
    ),
    "content_policy": ("refused the content", "Change the messages, or use another model."),
    "rate_limit": (
        "limits the rate of requests",
        "Send fewer (RateLimit of agentflow.plugins), raise retries= and max_wait=, or request a higher limit.",
    ),
}
"""The problem and the advice for each fault."""

_REFUSED, _LATE, _BROKEN = "refused the request", "did not answer in time", "could not be reached or broke off"
_UNKNOWN_FORM, _FAILED, _NOT_CALLED = "answered in an unknown form", "failed", "could not be called"
_CHANGE = "Change the messages, tools, options= or params= that it names."
_ROOT = "that api_base= is the root of the API (often .../v1)."
_PROBLEMS = {
    400: _REFUSED,
    403: "denied permission",
    404: "was not found",
    408: _LATE,
    409: "reported a conflict",
    413: "found the request too large",
    422: _REFUSED,
}
_CURES: dict[int | str, str] = {
    402: _ADD_CREDIT,
    403: "Check that the key's account may use this model, or use another key or model.",
    404: f"Check the model's name, and {_ROOT}",
    405: f"Check {_ROOT}",
    409: "Another request is in its way: try again, or raise retries=.",
    _REFUSED: _CHANGE,
    _LATE: "Check that the server is up, or raise timeout=.",
    _BROKEN: "Check api_base=, that a server listens there, and the proxy variables (HTTPS_PROXY, NO_PROXY).",
    _UNKNOWN_FORM: "Check that api_base= is a server with this wire.",
    _NOT_CALLED: "See its cause for the reason: error.__cause__.",
}
"""The advice for a status, or for a problem."""


def _problem(facts: _Facts) -> str:
    if facts.status in _PROBLEMS:
        return _PROBLEMS[facts.status]
    if facts.names & {"Timeout", "TimeoutError"}:
        return _LATE
    if (facts.status is not None and facts.status >= 500) or "ProviderError" in facts.names:
        return _FAILED
    if "NotUnderstoodError" in facts.names:
        return _UNKNOWN_FORM
    lost = "APIConnectionError" in facts.names and not facts.is_bug
    if lost or facts.names & {"InternalServerError", "ServiceUnavailableError"}:
        return _BROKEN
    return _REFUSED if facts.status is not None and 400 <= facts.status < 500 else _NOT_CALLED


def _cure(facts: _Facts, problem: str) -> str:
    """Return the advice; empty if there is none."""
    if "ProviderError" in facts.names and facts.status is None and facts.mentions([_NO_EVENTS]):
        return "Check that api_base= is the root of an API with this wire (often .../v1)."
    if facts.status is not None and 300 <= facts.status < 400:
        return "If that URL is right, set it as api_base=."
    if problem == _FAILED:
        later = "The provider is at fault: try again later, raise retries=, or add ModelFallback of agentflow.plugins."
        return later if _retryable(facts) else _CHANGE
    return _CURES.get(facts.status or 0) or _CURES.get(problem, "")
