"""Settings that have no effect beside another one: each kind is a row of one table, and is refused."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

if TYPE_CHECKING:
    from cluster.config.schema import DeploymentConfig


class Row(NamedTuple):
    """section: a dotted path from the deployment. names: its settings that have no effect if `holds`. because: the
    setting that does it."""

    section: str
    names: tuple[str, ...]
    holds: Callable[["DeploymentConfig"], bool]
    because: str


SPECULATOR_SCORES = ("scoring", "layers", "aggregation", "look_ahead", "read", "read_again", "window_tokens")
ANSWERS = (
    "admission_timeout_s", "audit_share", "catch_up", "guard", "keep_alive_s", "migration",
    "speculative_prefill",
)  # fmt: skip
DRAFTS = ("max_draft_tokens", "adaptive", "draft_context")

ROWS = (
    Row("router", ("audit_share",), lambda c: c.router.catch_up == "off", "router.catch_up: off"),
    Row("router", ("audit_share", "catch_up"), lambda c: not c.router.affinity and c.router.catch_up != "off",
        "router.affinity: false"),
    Row("router", ("audit_share", "catch_up"), lambda c: c.router.speculative_prefill is False,
        "router.speculative_prefill: false"),
    Row("router", ("audit_share",), lambda c: c.router.speculative_prefill == "always",
        "router.speculative_prefill: always"),
    Row("router", ("audit_share", "catch_up"),
        lambda c: c.router.catch_up != "off" and c.target.engine_options.get("enable_prefix_caching") is False,
        "target.engine_options.enable_prefix_caching: false"),
    Row("router", ANSWERS, lambda c: c.router.select_only, "router.select_only"),
    Row("decode", ("method", *DRAFTS), lambda c: c.router.select_only, "router.select_only"),
    Row("decode", DRAFTS, lambda c: c.decode.method == "none", "decode.method: none"),
    Row("decode", ("draft_context",), lambda c: c.decode.method != "remote", "a decode.method of vLLM's own"),
    Row("decode", ("draft_context",), lambda c: c.selection.read == "windows", "selection.read: windows"),
    Row("channel", ("port", "deadline_ms"), lambda c: c.decode.method != "remote" or c.router.select_only,
        "a decode.method that is not remote"),
    Row("selection", SPECULATOR_SCORES, lambda c: c.selection.selector == "lexical", "selection.selector: lexical"),
    Row("selection", ("layers", "aggregation", "look_ahead"), lambda c: c.selection.scoring == "heads",
        "selection.scoring: heads"),
    Row("selection", ("read_again", "window_tokens"), lambda c: c.selection.read == "whole", "selection.read: whole"),
    Row("selection", ("read_again", "window_tokens"), lambda c: c.selection.scoring == "attention",
        "selection.scoring: attention"),
    *(
        Row(f"{pool}.autoscaling", ("downscale_to_zero_delay_s",),
            lambda c, pool=pool: _section(c, pool).autoscaling.min_replicas > 0,  # type: ignore[misc, union-attr]
            f"{pool}.autoscaling.min_replicas above 0")
        for pool in ("speculator", "target", "target.prefill")
    ),
)  # fmt: skip


def settings_without_effect(config: "DeploymentConfig") -> Iterator[str]:
    """A sentence for each setting that is not at its default, and that another setting leaves without effect."""
    for row in ROWS:
        section = _section(config, row.section)
        if section is not None and row.holds(config):
            for name in row.names:
                default = type(section).model_fields[name].default
                if getattr(section, name) != default:
                    yield f"{row.section}.{name} has no effect with {row.because}: leave one of them out"


def _section(config: "DeploymentConfig", path: str) -> BaseModel | None:
    found: BaseModel | None = config
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
