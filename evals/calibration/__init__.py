"""The measurements behind `skim calibrate`."""
