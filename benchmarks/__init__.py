"""Benchmarks against other libraries, and of growing costs: `python -m benchmarks` in the checkout lists them."""
