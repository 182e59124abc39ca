"""Calls of objects at another host: frames, values, and the daemon's end over SSH. See docs/design/0026."""
