"""What users set, call and read has its row in docs/options.md, with the defaults and bounds of the code."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.settings import Settings
from slackwater.store import Requests
from slackwater.streaming.metrics import serve
from slackwater.streaming.options import OPTIONS, SETTINGS
from slackwater.streaming.progress import Progress

ROOT = Path(__file__).parents[2]
UNITS = {"MiB": 1024**2, "KiB": 1024}


def rows(section: str) -> dict[str, list[str]]:
    """Read the table of a section: what is named in the first column → the other columns."""
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", body, re.MULTILINE)
    assert len(found) == len(dict(found)), "a name has two rows"
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def write(field: msgspec.inspect.Field) -> list[str]:
    """Write the default and the bounds of a setting as the page has them."""
    kind: Any = field.type

    def say(number: float) -> str:
        for unit, size in UNITS.items():
            if field.name.endswith("_bytes") and number >= size:
                return f"{number / size:.15g} {unit}"
        return f"{number:.15g}"

    return [say(field.default), say(kind.ge) if kind.gt is None else f"above {say(kind.gt)}", say(kind.le)]


def test_every_option_has_its_row():
    assert rows("Options").keys() == OPTIONS - SETTINGS | {"store.NAME"}


def test_every_setting_has_its_row_with_its_default_and_bounds():
    settings: Any = msgspec.inspect.type_info(Settings)
    documented = {name: cells[:3] for name, cells in rows("Settings").items()}
    assert documented == {field.name: write(field) for field in settings.fields}


def test_what_is_public_can_be_found_before_it_is_loaded():
    assert {*sw.__all__, "list"} <= set(dir(sw))


def test_whoever_imports_all_keeps_the_builtins():
    taken: dict[str, Any] = {}
    exec("from slackwater import *", taken)
    assert not taken.keys() & (vars(builtins).keys() - {"__builtins__", "__doc__", "__name__"})


def test_every_public_call_has_its_row_with_all_its_arguments():
    public = {name: getattr(sw, name) for name in (*sw.__all__, "list")}
    said = [
        f"sw.{name}({', '.join(inspect.signature(call).parameters)})"
        for name, call in public.items()
        if not (isinstance(call, type) and issubclass(call, Exception))
    ]
    assert sorted(rows("In Python")) == sorted(said)


def test_every_key_of_the_progress_has_its_row():
    told = Progress(SystemClock(), None, Requests(), lambda: 0).describe(None)
    assert list(rows("Progress")) == list(told)


def test_every_metric_has_its_row_with_its_kind():
    endpoint = serve(0, "orders")
    try:
        families = list(endpoint._server.collect())
    finally:
        endpoint.close()
    served = {f.name + "_total" * (f.type == "counter"): f.type for f in families}
    assert {name: cells[0] for name, cells in rows("Metrics").items()} == served


def test_the_page_can_be_found():
    assert "(docs/options.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", ["Options", "Settings", "In Python", "Progress", "Metrics"])
def test_every_row_says_something(section):
    assert all(cells[-1] for cells in rows(section).values())
