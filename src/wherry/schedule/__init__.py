"""Where things go and when: pure functions over the model; no I/O."""
