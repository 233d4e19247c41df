"""Folders of LaminarDB: looked at as they are, verified, and copied in."""
