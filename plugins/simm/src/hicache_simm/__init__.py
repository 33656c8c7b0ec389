"""Storage backend `simm`: pages in SiMM, by its Python client."""
