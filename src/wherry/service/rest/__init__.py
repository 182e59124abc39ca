"""The REST interface of the daemon."""
