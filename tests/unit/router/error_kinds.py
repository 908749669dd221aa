"""The type that an error has on an endpoint."""

OF_ANTHROPIC = {400: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"}


def kind_on(path: str, status: int, kind: str) -> str:
    """kind: that of OpenAI's endpoints."""
    return OF_ANTHROPIC[status] if path == "/v1/messages" else kind
