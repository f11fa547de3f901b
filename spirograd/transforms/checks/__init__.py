"""Passes that check: what programs may not do, and what devices cannot."""
