"""A class without any packaging and without decorators, as the backend `dynamic` opens it."""

from hicache_core.types import KEY_PATTERN, Outcome


class DynamicStore:
    """Pages in a dict of the instance."""

    def __init__(self):
        self.pages = {}

    def batch_exists(self, keys):
        return next((n for n, key in enumerate(keys) if key not in self.pages), len(keys))

    def batch_get(self, keys, pages):
        return [self._get(key, page) for key, page in zip(keys, pages, strict=True)]

    def batch_set(self, keys, pages):
        return [self._set(key, page) for key, page in zip(keys, pages, strict=True)]

    def close(self):
        """Nothing to give back."""

    def _get(self, key, page):
        data = self.pages.get(key)
        if data is None:
            return Outcome.MISS
        if len(data) != sum(map(len, page)):
            return Outcome.CORRUPT
        at = 0
        for buffer in page:
            buffer[:] = data[at : at + len(buffer)]
            at += len(buffer)
        return Outcome.HIT

    def _set(self, key, page):
        if KEY_PATTERN.fullmatch(key) is None:
            return Outcome.REJECTED
        return Outcome.STORED if self.pages.setdefault(key, b"".join(page)) is not None else Outcome.REJECTED
