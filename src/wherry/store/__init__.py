"""Tables of what the daemon must remember."""
