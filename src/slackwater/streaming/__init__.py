"""``writeStream``: one Spark query on the path of a pipeline."""
