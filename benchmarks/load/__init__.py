"""Many requests at once: goodput, refusals, hostile clients, interference, CPU time, batches."""
