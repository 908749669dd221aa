"""What crosses between the pools: messages, their codec, the draft channel, and the model facts that both compare.

Lives here: the data that travels, its limits, and the errors that both sides know. Not here: engines, Ray, HTTP, any
algorithm.
"""
