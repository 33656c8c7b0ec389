"""What can go wrong inside a call."""

from __future__ import annotations


class AibrixError(Exception):
    """A question that AIBrix did not answer; the core makes it UNAVAILABLE for the pages of the call."""


class AnotherLengthError(ValueError):
    """The stored object is longer or shorter than the page."""


class RevokedError(RuntimeError):
    """A connector came for the page's memory after the call had ended: it is no longer lent."""
