"""SSH to nodes: accounts are known by their keys, and run programs on nodes as by `wherry exec` (docs/design/0039)."""
