"""Malformed inputs as data: each ends in one line, or is rightly taken."""
