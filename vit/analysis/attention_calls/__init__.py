"""Queries, keys and values of one call of an attention module, as they meet, for each library's class.

A reader knows one class: which of its layers gave the vectors, what was done to them (normalised, rotated), how they
were masked and scaled, and what follows the weighted averages. Classes are known by their names, so that no library is
imported for it. `vit/analysis/proof.py` tests that a reader is right.
"""

from vit.analysis.attention_calls.call import PROJECTIONS, Call, Heads, Reader, Rows
from vit.analysis.attention_calls.readers import attention_reader, known_attention

__all__ = ["PROJECTIONS", "Call", "Heads", "Reader", "Rows", "attention_reader", "known_attention"]
