"""Runs vLLM's tests on the three systems and writes what became of them: `python -m tests.peer`, about an hour.

It writes results.json and the tables in docs/compatibility.md. Reasons that results.json has stay; a new difference has
the reason "?", which a test refuses: write its reason there, or mend Skim, and run `python -m tests.peer --tables`.
"""

import argparse
import json
import re

from tests.peer.hub import build_hub
from tests.peer.report import RESULTS, read_results, results, tables
from tests.peer.source import BUILD, ROOT
from tests.peer.suite import FILES, MODELS, SYSTEMS, run_suite
from tests.reference.smollm2 import folder

PAGE = ROOT / "docs" / "compatibility.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="make the tables of the results that are there")
    if not parser.parse_args().tables:
        home = BUILD / "hub"
        build_hub(folder(), home, MODELS)
        outcomes = {system: run_suite(system, FILES, home) for system in SYSTEMS}
        RESULTS.write_text(json.dumps(results(outcomes, read_results()), indent=1) + "\n")
    made = f"<!-- tables -->\n\n{tables(read_results())}\n<!-- end -->"
    PAGE.write_text(re.sub("<!-- tables -->.*<!-- end -->", lambda _: made, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
