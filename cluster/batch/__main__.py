"""`python -m cluster.batch`: the command line of `skim batch`, for `ray job submit`."""

import sys

from cluster.commands.cli import main

sys.argv.insert(1, "batch")
main()
