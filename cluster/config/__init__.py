"""The deployment as data: the settings of a deployment file, how it is read, and how it is shown.

Lives here: pydantic models and YAML. Not here: anything that starts a process.
"""
