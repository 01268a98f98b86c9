"""Records of the runs that the documents quote; `python -m results` writes the documents' numbers from them."""
