"""What crosses between the pools: messages, their codec, and the facts of a model that both sides compare.

Lives here: data that travels and the errors that explain it. Not here: engines, Ray, HTTP, any algorithm.
"""
