"""Fuzzing: targets that take any bytes, requests of any form, the nightly run. Its short form is in the unit ring."""
