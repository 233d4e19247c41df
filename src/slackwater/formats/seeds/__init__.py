"""The seeds' own formats, read as LaminarDB writes them, with findings, and written in exactly its shape."""
