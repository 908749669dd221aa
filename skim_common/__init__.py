"""The ground floor, imported by all folders: errors, validation, environment, files of a model.

Not here: Ray, vLLM, numpy, anything that one service alone needs.
"""
