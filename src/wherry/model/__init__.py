"""What there is: frozen data, specs and their validation; no I/O."""
