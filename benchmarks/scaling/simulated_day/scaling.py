"""Ray Serve's autoscaler of one pool in virtual time: the real policies, delays, gains and bounds."""

from collections import deque

import numpy as np
from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingConfig as ServeAutoscalingConfig
from ray.serve.config import AutoscalingContext

from benchmarks.scaling.simulated_day.serve_delays import settled
from cluster.config.pools import AutoscalingConfig
from cluster.serve.app import scaling_options
from cluster.serve.autoscaling import Load, WorkPolicy


class Autoscaler:
    """One pool's. interval_s: time between two calls, in each of which the pool reports."""

    def __init__(self, scaling: AutoscalingConfig, interval_s: float) -> None:
        self._config = ServeAutoscalingConfig(**scaling_options(scaling, scaling.max_replicas))
        by_work = scaling.policy == "work"
        self._policy = WorkPolicy(scaling.drain_s) if by_work else replica_queue_length_autoscaling_policy
        self._reports: deque[Load] = deque(maxlen=max(1, round(scaling.look_back_period_s / interval_s)))
        self._state: dict[str, float] = {}
        self._delays: dict[str, float] = {}

    def wanted(self, now: float, load: Load, running: int, target: int) -> int:
        """The number of replicas from now on. load: the newest report. running, target: replicas that run, and that
        run or start."""
        self._reports.append(load)
        context = self._context(now, Load(*np.mean(self._reports, axis=0).tolist()), running, target)
        wanted, self._state = self._policy(context)
        decided, self._delays = settled(wanted, running, target, self._config, self._delays, now)
        return int(max(self._config.min_replicas, min(self._config.max_replicas, decided)))

    def _context(self, now: float, load: Load, running: int, target: int) -> AutoscalingContext:
        reported = {
            "tokens_in_flight": load.tokens,
            "busy": load.busy,
            "seconds_per_request": load.seconds_per_request,
            "seconds_per_token": load.seconds_per_token,
        }
        return AutoscalingContext(
            deployment_id=None,
            deployment_name="pool",
            app_name=None,
            current_num_replicas=running,
            target_num_replicas=target,
            running_replicas=[],
            total_num_requests=load.requests,
            total_queued_requests=load.queued,
            aggregated_metrics={name: {"pool": value} for name, value in reported.items()},
            raw_metrics=None,
            capacity_adjusted_min_replicas=self._config.min_replicas,
            capacity_adjusted_max_replicas=self._config.max_replicas,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now,
            config=self._config,
        )
