"""The bearer token that a receiver wants, or says to its upstream."""

from __future__ import annotations

import os

TOKEN_VARIABLE = "SLACKWATER_RECEIVE_TOKEN"


def read_token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None
