"""Running an unmodified program under a plan: what is set before it starts, the program itself, what became of it."""
