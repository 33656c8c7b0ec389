"""hicache storage backend `file`: one page per file in a local or shared directory.

The entry point is `hicache_file.plugin`; nothing else is imported before a store is opened.
"""
