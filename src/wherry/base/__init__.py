"""Units, errors, ids, clock: no domain words, no I/O."""
