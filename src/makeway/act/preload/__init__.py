"""The launch shim: a small preloaded C library, its launch rules and its receipts."""
