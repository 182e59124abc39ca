"""The daemon: commands, operations, periodic tasks, and the REST interface."""
