"""What is kept of a prompt, and whether the evidence is in it."""
