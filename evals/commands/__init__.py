"""The commands `skim eval`, `skim calibrate`, and those of `skim bench` that ask for answers or evidence."""
