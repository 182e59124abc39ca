"""The agent of a host: the code that works emulated hosts in the daemon, called over SSH. See docs/design/0026."""
