"""What runs inside one rank; only these modules, and those of the runtime, load torch."""
