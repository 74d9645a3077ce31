"""OpenAI's `/embeddings`: its rules, and vectors derived from the terms of texts."""

from agentflow.testing.embedding import TermEmbedder
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_text
from agentflow.testing.wire.reply import HttpAnswer
from agentflow.testing.wire.request import WireRequest

_FIELDS = {"model", "input", "dimensions", "encoding_format", "user"}
_MAX_INPUTS = 2048
_MAX_INPUT = 8192 * 4  # characters: about four for each of 8192 tokens


def embeddings_body(request: WireRequest, tokens: int) -> JsonObject | HttpAnswer:
    """Build the answer to a request for embeddings, or its refusal."""
    body = request.body
    inputs = [body.get("input")] if isinstance(body.get("input"), str) else as_list(body.get("input"))
    size = body.get("dimensions", 256)
    if request.headers.get("authorization", "").strip() in ("", "Bearer"):
        return HttpAnswer(status=401)
    problem = ""
    if not as_text(body.get("model")):
        problem = "you must provide a model parameter"
    elif unknown := sorted(body.keys() - _FIELDS):
        problem = f"Unrecognized request argument supplied: {unknown[0]}"
    elif not 0 < len(inputs) <= _MAX_INPUTS or not all(isinstance(item, str) and item for item in inputs):
        problem = "'$.input' is invalid. It should be a text, or an array of 1 to 2048 texts, none of which is empty."
    elif any(len(str(item)) > _MAX_INPUT for item in inputs):
        problem = "This model's maximum context length is 8192 tokens, however you requested more."
    elif not isinstance(size, int) or not 1 <= size <= 4096:
        problem = "Invalid value for 'dimensions'."
    if problem or not isinstance(size, int):
        return HttpAnswer(status=400, message=problem)
    embedder = TermEmbedder(size)
    rows: list[JsonValue] = []
    for n, text in enumerate(inputs):
        rows.append({"object": "embedding", "index": n, "embedding": [*embedder.vector(str(text))]})
    usage: JsonObject = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": rows, "model": as_text(body.get("model")), "usage": usage}
