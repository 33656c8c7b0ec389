"""Storage backend `nixl`: pages as files or S3 objects, their bytes moved by NIXL."""
