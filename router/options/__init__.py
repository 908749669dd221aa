"""What a client or an operator may ask: request options, headers, policies, settings, and errors.

The lowest floor of the router. docs/options.md describes the same.
"""
