"""Actions: apply a plan to programs, measure on ranks, export it, and look at this machine."""
