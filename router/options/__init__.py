"""What a client or an operator may ask: request options, headers, policies, settings, and errors.

The lowest floor of the router. `evals.report.options` writes the tables of docs/options.md from these declarations.
"""
