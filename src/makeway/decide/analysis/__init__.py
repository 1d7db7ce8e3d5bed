"""What a timeline tells: overlap, exposed time, waiting, slow-down, causes, advice. Pure functions on any Timeline."""
