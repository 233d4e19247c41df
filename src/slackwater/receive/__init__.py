"""Receivers: what is pushed to them is durable in an inbox before it is acknowledged."""
