"""hicache storage backend `s3`: one page per object in S3, GCS, Azure, or any fsspec file system.

The entry point is `hicache_s3.plugin`; neither obstore nor fsspec is imported before a store is opened.
"""
