"""What `skim status` says of start probes that have failed."""

from cluster.serve.status import probe_parts


def test_a_failed_start_probe_is_a_line_of_its_own():
    [part] = probe_parts({"target": "restored positions change nothing"})
    assert part.line == (
        "target start probe: failed, so all prompts run dense (start_probe: off trusts the pool): restored positions"
        " change nothing"
    )
    assert (part.name, part.reason) == ("target start probe", "restored positions change nothing")


def test_no_failure_is_no_line():
    assert probe_parts({}) == []
