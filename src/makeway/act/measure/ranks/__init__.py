"""What runs inside one rank: the only modules of measure/ that load torch."""
