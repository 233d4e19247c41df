"""The file sink: Parquet files, and a log of its own that says which of them count."""
