"""Figures, tables and plots of the answers."""
