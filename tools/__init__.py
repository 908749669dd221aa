"""Programs for those who maintain Skim. Not part of the wheel."""
