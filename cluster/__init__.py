"""The deployment as data, and the command line.

Lives here: config, the Serve app builder, a pair of engines in one process, the commands of `skim`. Not here: code that
handles requests of clients.
"""
