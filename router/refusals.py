"""A request that is refused with an HTTP status of its own, before or while it is read."""

from kv_transfer.errors import SkimError


class RefusedError(SkimError):
    """status, type: of the HTTP error. retry_after_s: when the client may try again; None: never as it is."""

    def __init__(self, status: int, type: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.type, self.retry_after_s = status, type, retry_after_s
