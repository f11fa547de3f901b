"""Passes that expand elementary functions to arithmetic."""
