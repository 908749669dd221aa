"""A process sees the flags of others, and they end with their process."""

import subprocess
import sys

import pytest

from vllm_hooks.machine_flags import OWED, READING, STREAM_SHARE, MachineFlags, with_stream_share

OTHER = """
import sys
from pathlib import Path
from vllm_hooks.machine_flags import OWED, MachineFlags
flags = MachineFlags(Path(sys.argv[1]))
for held in (True, False, True):
    flags.hold(OWED, held)
    flags.hold(OWED, held)
    print(held, flush=True)
    sys.stdin.readline()
"""


def test_a_flag_is_seen_until_it_is_cleared_or_its_process_is_killed(tmp_path):
    file = tmp_path / "flags"
    flags = MachineFlags(file)
    command = [sys.executable, "-c", OTHER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        for held in (True, False):
            assert other.stdout.readline() == f"{held}\n"
            assert (flags.seen(OWED), flags.seen(READING)) == (held, False)
            other.stdin.write("\n")
            other.stdin.flush()
        assert other.stdout.readline() == "True\n"
        assert flags.seen(OWED)
        other.kill()
        other.wait()
    assert not flags.seen(OWED)


def test_two_processes_may_have_the_same_flag(tmp_path):
    file = tmp_path / "flags"
    flags = MachineFlags(file)
    flags.hold(OWED, True)
    command = [sys.executable, "-c", OTHER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n", "it does not wait for ours"
        other.kill()


def test_a_process_does_not_see_its_own_flags(tmp_path):
    flags = MachineFlags(tmp_path / "flags")
    flags.hold(READING, True)
    assert not flags.seen(OWED)


def test_without_a_file_nothing_is_seen(tmp_path, caplog):
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    flags = MachineFlags(tmp_path / "link")
    flags.hold(OWED, True)
    assert not flags.seen(READING)
    assert "are not paced" in caplog.text


@pytest.mark.parametrize("given", [None, {}, {"a": 1}])
def test_the_share_joins_what_a_user_gave(given):
    assert with_stream_share({"additional_config": given}, None) == {}
    assert with_stream_share({"additional_config": given}, 0.5) == {
        "additional_config": {**(given or {}), STREAM_SHARE: 0.5}
    }
