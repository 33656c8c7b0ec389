"""hicache storage backend `hf3fs`: page slots in large files, and an index that says which key is where.

The entry point is `hicache_hf3fs.plugin`; nothing else is imported before a store is opened.
"""
