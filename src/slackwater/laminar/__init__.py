"""LaminarDB's formats and folders: read, verified, and written."""
