"""The classifier of whole-text tasks: wordings in many languages, its training, and its measurement."""
