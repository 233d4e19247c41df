"""How hypothesis runs here: by count of examples, not by the time that a busy machine takes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("slackwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slackwater")
