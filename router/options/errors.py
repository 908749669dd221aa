"""A request that is refused with an HTTP status of its own, before or while it is read."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from skim_common.errors import DeadlineError, EngineUnavailableError, InvalidRequestError, ModelError, SkimError

_ANTHROPIC_PATHS = ("/messages", "/messages/count_tokens")
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status. Anthropic's clients show the message of an error in this form only."""


class InvalidOptionError(InvalidRequestError):
    """A field that is unknown, of the wrong type or out of range. `param` is its dotted name in the body."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error that a client sees. type: OpenAI's name of the kind. retry_after_s: when the client may try again; None:
    after a second for a 503, never for another status."""

    status: int
    type: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: Exception) -> "HttpError":
        """The response for any error. An unexpected error shows the client no internals."""
        message = _encodable(str(error))
        if isinstance(error, InvalidRequestError | ModelError):
            param = _encodable(error.param) if isinstance(error, InvalidOptionError) else None
            return cls(400, "BadRequestError", message, param)
        if isinstance(error, EngineUnavailableError):
            return cls(503, "ServiceUnavailableError", message, retry_after_s=error.retry_after_s)
        if isinstance(error, DeadlineError):
            return cls(504, "GatewayTimeoutError", message)
        if isinstance(error, RefusedError):
            return cls(error.status, error.type, message, retry_after_s=error.retry_after_s)
        if not isinstance(error, SkimError):
            message = "an internal error stopped this request; the server's log has the cause"
        return cls(500, "InternalServerError", message)

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that belong to the error. OpenAI's and Anthropic's clients retry a 500 without one."""
        if self.status == 500:
            return {"x-should-retry": "false"}
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        retry = self.retry_after_s or (1 if self.status == 503 else None)
        return {} if retry is None else {"retry-after": str(retry)}

    def body(self, path: str = "") -> dict[str, Any]:
        """The error in the form of the endpoint at `path`: Anthropic's for its own, OpenAI's for all others."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        if not path.endswith(_ANTHROPIC_PATHS):
            return {"error": error}
        other = "invalid_request_error" if self.status < 500 else "api_error"
        return {"type": "error", "error": {**error, "type": _ANTHROPIC_TYPES.get(self.status, other)}}

    def response(self, path: str = "") -> JSONResponse:
        """The whole response of the endpoint at `path`."""
        return JSONResponse(self.body(path), self.status, self.headers)


def _encodable(text: str) -> str:
    """`text` with lone surrogates escaped: JSON can contain them, UTF-8 cannot, and an error may quote the request."""
    return text.encode("utf-8", "backslashreplace").decode()


class RefusedError(SkimError):
    """status, type: of the HTTP error. retry_after_s: when the client may try again; None: never as it is."""

    def __init__(self, status: int, type: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.type, self.retry_after_s = status, type, retry_after_s
