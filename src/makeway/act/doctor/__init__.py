"""What this machine offers, which controls can work here and why not, and the proof by self-test."""
