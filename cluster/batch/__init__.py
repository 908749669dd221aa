"""`skim batch`: a file of requests in OpenAI's Batch format, asked of an endpoint through Ray Data, resumable.

Here: the file's format, the journal beside the output, the workers and the job. Not here: how rows are answered, which
is the endpoint's business, and scheduling, which is Ray's.
"""
