"""matplotlib, and only here: arrays in, `Figure` out, one style. Knows nothing of where numbers come from."""
