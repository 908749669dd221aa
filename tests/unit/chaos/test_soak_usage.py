"""What a soak run says of memory: by kind of process, and how fast it grows."""

import pytest

from tests.soak.usage import WARM_S, Sample, by_kind, kind_of, slope, usage


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ray::ServeReplica:skim:router", "router"),
        ("ray::ServeReplica:skim:speculator.select", "speculator"),
        ("ray::ServeController.get_serve_details", "controller"),
        ("ray::ProxyActor", "proxy"),
        ("/venv/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray", "Ray head"),
        ("/venv/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", "raylet"),
        ("ray::IDLE", "other Ray workers"),
        ("ray::DashboardAgent", "dashboard agent"),
        ("ray::RuntimeEnvAgent", "runtime environment agent"),
        ("/venv/bin/python -u /venv/ray/_private/log_monitor.py --session-dir=/tmp/ray", "log monitor"),
        ("/venv/bin/python -u /venv/ray/dashboard/agent.py --logs-dir=/tmp/ray", "Ray's helpers"),
        ("/venv/bin/python /venv/bin/skim serve /tmp/x/serve.yaml --port 8000", "skim serve"),
    ],
)
def test_kinds(command: str, kind: str) -> None:
    assert kind_of(command) == kind


def sample(
    pid: int, at_s: float, mib: float, *, kind: str = "router", age_s: float = 1e3, descriptors: int = 10
) -> Sample:
    return Sample(kind, pid, at_s, age_s, mib, descriptors)


def test_growth_is_within_processes() -> None:
    """A process that is replaced by a smaller or a larger one has not grown."""
    steady = [sample(1, 0, 100), sample(1, 60, 100), sample(2, 120, 500), sample(2, 180, 500)]
    assert slope(steady) == 0
    growing = [sample(1, 0, 100), sample(1, 60, 102), sample(2, 120, 50), sample(2, 180, 52)]
    assert slope(growing) == pytest.approx(2.0)


def test_a_process_that_warms_up_does_not_count() -> None:
    young = [sample(1, 0, 100, age_s=1), sample(1, 30, 300, age_s=WARM_S - 1)]
    assert slope(young) is None
    assert slope([*young, sample(1, 90, 310, age_s=WARM_S + 30)]) is None


def test_begin_is_after_the_warm_up() -> None:
    looks = [[sample(1, t, mib), sample(2, t, mib, kind="target")] for t, mib in ((10, 1), (70, 5), (130, 6))]
    looks[2].append(sample(3, 130, 4))
    found = usage(looks)["router"]
    assert (found["begin"]["mib"], found["end"]["mib"], found["end"]["processes"]) == (5, 10, 2)
    assert found["mib_per_minute"] == pytest.approx(1.0)
    assert by_kind(looks[2])["router"]["descriptors"] == 20


def test_kept_connections_are_no_leak_and_leaked_descriptors_are_told() -> None:
    def counts(*descriptors: int) -> tuple[float, float]:
        found = usage([[sample(1, 70 + 60 * at, 1, descriptors=count)] for at, count in enumerate(descriptors)])
        return found["router"]["begin"]["descriptors"], found["router"]["end"]["descriptors"]

    assert counts(50, 90, 60, 80, 50, 95) == (50, 50)
    assert counts(50, 90, 70, 80, 90, 95) == (50, 90)
    assert counts(50) == (50, 50)
