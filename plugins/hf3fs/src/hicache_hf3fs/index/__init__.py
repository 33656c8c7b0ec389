"""Which key is in which slot: one interface, embedded in SQLite or asked of a service."""
