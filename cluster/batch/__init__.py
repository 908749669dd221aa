"""`skim batch`: sends a file of requests in OpenAI's Batch format to an endpoint, through Ray Data, resumable.

Lives here: the file's format, the journal beside the output, the workers and the job. Not here: answering rows (the
endpoint does it) and scheduling (Ray does it).
"""
