"""What trains several models and compares them, and what measures speed."""
