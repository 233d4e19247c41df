"""Receivers: what is sent to them is durable in an inbox before it is acknowledged."""
