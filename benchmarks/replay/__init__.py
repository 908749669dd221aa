"""Traces and simulations in virtual time."""
