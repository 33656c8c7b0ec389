"""The way back: any class of SGLang's `HiCacheStorage` as a hicache backend, unchanged and unprotected.

    {"backend": "sglang", "options": {"sglang_class": "sglang.srt.mem_cache.hicache_storage:HiCacheFile",
                                      "extra_config": {"file_storage_path": "/kv"}}}

What the class is asked is what SGLang asks it: a page of the namespace `n` under the key `n/rest` is the page `rest`
of a model that is called `n`. Nothing is added and nothing is mended, so that the conformance suite sees the class.
"""
