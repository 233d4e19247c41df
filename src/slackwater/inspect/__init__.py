"""Read-only questions, shared by the command line and the web pages."""
