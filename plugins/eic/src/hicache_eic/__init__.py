"""Storage backend `eic`: pages in EIC, by the vendor's Python client."""
