"""The deployment as data: the settings of a deployment file, reading the file, and showing it.

Lives here: pydantic models and YAML. Not here: anything that starts a process.
"""
