"""Serve's proxies ask the controller again when an answer does not come, as routers do (`actors.repeated_polls`).

They load no code of ours. So the controller sends it to each proxy that it starts, and to each that it finds when it
has started again.

Hooks into ActorProxyWrapper._get_or_create_proxy_actor in ray.serve._private.proxy_state, `long_poll_client` of its
actors (ProxyActor, HAProxyManager), and `__ray_call__` of every Ray actor, of the pinned Ray.
"""

from contextvars import Context
from typing import Any

from actors.repeated_polls import repeat_polls


def use() -> None:
    """In the process of Serve's controller, before it has proxies."""
    from ray.serve._private.proxy_state import ActorProxyWrapper

    create = ActorProxyWrapper._get_or_create_proxy_actor

    def create_and_tell(*given: Any, **options: Any) -> Any:
        proxy = create(*given, **options)
        proxy.__ray_call__.remote(repeat_polls_of)
        return proxy

    ActorProxyWrapper._get_or_create_proxy_actor = staticmethod(create_and_tell)


def repeat_polls_of(proxy: Any) -> None:
    """In the process of the proxy. Its open call may be one that Ray does not repeat, so the next one begins now."""
    repeat_polls()
    client = proxy.long_poll_client
    # An empty context, as in Serve: otherwise the call would be part of this one, and end with it.
    client.event_loop.call_soon_threadsafe(_poll_now, client, context=Context())


def _poll_now(client: Any) -> None:
    open_call = client._current_ref
    # Serve holds the reference only until its next call. See `actors.repeated_polls`.
    open_call._on_completed(lambda _: open_call)
    client._poll_next()
