"""The launch shim: a small C library that a program is started under, its rules and the receipts it leaves."""
