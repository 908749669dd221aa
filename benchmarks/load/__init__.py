"""Many requests at once: goodput, refusals, hostile clients, CPU time, batches."""
