"""How much an inbox takes before it lets senders wait."""

from __future__ import annotations

import msgspec

from ..errors import Unavailable
from ..settings import MIB
from .format import Description


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_messages: int = 100_000_000
    max_bytes: int = 16 * 1024 * MIB
    # Of what waits to become durable.
    max_waiting_bytes: int = 64 * MIB
    max_keys: int = 10_000_000
    # A key is known for at least so long, in the time that receivers ran, and until what it names is covered.
    keep_keys_s: float = 3600.0
    # When nothing comes, that the receiver is there is written down so often.
    heartbeat_s: float = 5.0

    def refuse(self, known: Description, messages: int, size_bytes: int, *, keyed: bool) -> Unavailable | None:
        """Tell why messages have to wait, if they have to."""
        if known.held + messages > self.max_messages or known.held_bytes + size_bytes > self.max_bytes:
            return full(f"{known.held} messages of {known.held_bytes} bytes wait for a pipeline to cover them")
        if keyed and known.keys_held >= self.max_keys:
            return full(
                f"as many keys are remembered as may be ({known.keys_held})",
                hint=f"send it again later: a key is forgotten {self.keep_keys_s:g} s after it came, once what it "
                "names is covered; --keep-keys and --max-keys of the receiver are the limits",
            )
        return None


def full(why: str, hint: str = "send it again later; see that the pipeline runs and makes checkpoints") -> Unavailable:
    return Unavailable(f"the inbox takes no more at the moment: {why}", code="inbox.full", hint=hint)
