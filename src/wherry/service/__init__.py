"""The daemon: operations, events, and the drivers joined to the domain."""
