"""The CPU benchmark: processes told apart, and the CPU time of a request, computed from given times."""

import pytest

from benchmarks.load.cpu import CpuSettings, _conversations, describe, part_of, per_request, table


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("ray::ServeReplica:skim:router", "router"),
        ("ray::ServeReplica:skim:router.handle_request_streaming", "router"),
        ("ray::ServeReplica:skim:speculator", "speculator"),
        ("ray::ServeReplica:skim:target", "target"),
        ("ray::ProxyActor", "front proxy"),
        ("ray::ServeController.listen_for_change", "rest of Ray"),
        ("/ray/core/src/ray/raylet/raylet --target", "rest of Ray"),
    ],
)
def test_a_process_belongs_to_a_part(command, part):
    assert part_of(command) == part


def test_the_replicas_of_a_part_add_up_and_only_processes_of_the_whole_time_count():
    before = {1: ("router", 1.0), 2: ("router", 2.0), 3: ("target", 5.0), 4: ("rest of Ray", 1.0)}
    after = {1: ("router", 1.5), 2: ("router", 2.3), 3: ("target", 5.1), 9: ("rest of Ray", 70.0)}
    spent = per_request(before, after, 100)
    assert spent == pytest.approx(
        {"router": 8.0, "speculator": 0.0, "target": 1.0, "front proxy": 0.0, "rest of Ray": 0.0}
    )


def test_each_turn_continues_the_one_before():
    first, second, third = next(_conversations(CpuSettings("t", "s", prompt_tokens=1200, turns=3)))
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][: len(second["messages"])] == second["messages"]
    assert third["messages"][-1]["role"] == "user"


def test_the_sum_is_without_rays_background_work():
    cpu_ms = {"router": 7.0, "speculator": 2.0, "target": 1.0, "front proxy": 0.5, "rest of Ray": 99.0}
    rows = [{"routers": 1, "at_once": 32, "cpu_ms": cpu_ms, "first_ms": 140.0}]
    result = {"settings": vars(CpuSettings("t", "s")), "rows": rows}
    columns, [row] = table(result)
    assert dict(zip(columns, row, strict=True))["sum without rest"] == "10.5"
    assert "2048 tokens" in describe(result)
