"""`makeway view`: a live page on this machine. Workers compute, the server passes on, the page draws."""
