"""The gRPC stream between a target worker and a speculator.

Lives here: client, server, TLS, circuit breaker. Not here: what is drafted, and when.
"""
