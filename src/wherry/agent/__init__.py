"""The agent of a host: what works emulated hosts in the daemon, called over SSH. See docs/design/0026."""
