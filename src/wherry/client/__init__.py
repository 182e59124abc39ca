"""The HTTP client that the command line and the lab use."""
