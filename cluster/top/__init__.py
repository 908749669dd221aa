"""What `skim top` shows: the quantities of the dashboard and the alert rules, computed from the nodes' own metrics.

Not here: which metrics there are (`actors.observability.metric_table`), the dashboard and the rules themselves
(`cluster/monitoring`), the state of the pools (`cluster.serve.status`).
"""
