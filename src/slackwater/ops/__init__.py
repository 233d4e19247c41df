"""What a person asks of a pipeline. Functions that return values; the command line only prints them."""
