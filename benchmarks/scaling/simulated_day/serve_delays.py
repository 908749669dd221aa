"""What Serve's autoscaler makes of a policy's wish at a given time, by two functions of Ray that are not public."""

from ray.serve import autoscaling_policy
from ray.serve.config import AutoscalingConfig

from skim_common.symbols import Hook

HOOK = Hook(
    what="gains and delays of Serve's autoscaler, in a benchmark alone",
    how="Ray: `_apply_scaling_factors` and `_apply_delay_logic` are called",
    until="these functions are public, or the benchmark goes",
    symbols=(
        (
            "ray.serve.autoscaling_policy",
            "_apply_scaling_factors",
            "desired_num_replicas current_num_replicas autoscaling_config",
        ),
        (
            "ray.serve.autoscaling_policy",
            "_apply_delay_logic",
            "desired_num_replicas curr_target_num_replicas config policy_state _now",
        ),
    ),
)


def settled(
    wanted: float, running: int, target: int, config: AutoscalingConfig, delays: dict[str, float], now: float
) -> tuple[int, dict[str, float]]:
    """The number of replicas after Serve's gains and delays, and the state of the delays for the next call.

    wanted: by the policy. running, target: replicas that run, and that run or start. delays: of the call before. now:
    seconds.
    """
    scaled = autoscaling_policy._apply_scaling_factors(wanted, running, config)
    decided, state = autoscaling_policy._apply_delay_logic(scaled, target, config, delays, _now=now)
    return int(decided), state
