"""Messages as bytes: arrays, columns of drafts, positions, the codec.

Not here: what the messages mean (`kv_transfer.messages`), connections.
"""
