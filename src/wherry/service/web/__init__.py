"""The web page: a view of the REST interface, without rules or commands of its own (docs/design/0030)."""
