"""The deployment as data, and the command line.

Lives here: config, the Serve app builder, the commands of `skim`. Not here: code that handles requests.
"""
