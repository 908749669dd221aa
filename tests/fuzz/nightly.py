"""The nightly run: many bytes and many requests with a new seed, which is printed; any fault ends it with status 1.

    python -m tests.fuzz.nightly --messages 1000000 --requests 20000 [--seed N]

atheris follows the coverage of kv_transfer and router; each target runs in a process of its own. Bytes that reach new
code are written to the folder `build/fuzz`, not to the committed corpus.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

NEW = Path("build/fuzz")
TARGETS = ("messages", "options", "bodies")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="calls of each target that takes bytes")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--target", choices=TARGETS, help="only this target, in this process")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    if asked.target:
        _bytes(asked.target, asked.messages, asked.seed)
    failed = False
    for name in TARGETS if asked.messages else ():
        command = [sys.executable, "-m", "tests.fuzz.nightly", "--target", name, "--messages", str(asked.messages)]
        failed |= subprocess.run([*command, "--seed", str(asked.seed)]).returncode != 0
    return int((_requests(asked.requests, asked.seed) if asked.requests else False) or failed)


def _bytes(name: str, count: int, seed: int) -> None:
    """Does not return: atheris ends the process."""
    import atheris

    with atheris.instrument_imports(
        include=["kv_transfer", "router.http.body", "router.options", "router.prompt.markers"]
    ):
        from tests.fuzz.targets import CORPUS, TARGETS

    folder = NEW / name
    folder.mkdir(parents=True, exist_ok=True)
    options = [f"-atheris_runs={count}", f"-seed={seed}", "-timeout=20", "-max_len=4096", f"-artifact_prefix={NEW}/"]
    atheris.Setup([name, *options, str(folder), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def _requests(count: int, seed: int) -> bool:
    """Whether there was a fault."""
    from tests.fuzz.app import serve
    from tests.fuzz.requests import Faults, run

    # vLLM logs a traceback for each chat that a template refuses.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    faults = Faults()
    served, close = loop.run_until_complete(serve())
    try:
        run(served, loop, faults, count, seed)
    finally:
        loop.run_until_complete(close())
    print(f"{sum(faults.statuses.values())} answers by status: {dict(sorted(faults.statuses.items()))}")
    print(f"{len(faults.found)} faults")
    return bool(faults.found)


if __name__ == "__main__":
    sys.exit(main())
