"""The version of Wherry; client, daemon and agents must have the same."""

__version__ = "0.1.0"
