"""The one error for an analysis that does not apply; any other error is a mistake of the caller or a defect."""

from __future__ import annotations


class Unsupported(ValueError):
    """An analysis does not apply to this model or these images; the message says what they lack.

    A page of many figures leaves that one out and gives the message as the reason.
    """
