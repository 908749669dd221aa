"""The questions, with their texts and evidence."""
