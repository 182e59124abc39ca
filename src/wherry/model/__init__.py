"""The data model: frozen records, specs and their validation; no I/O."""
