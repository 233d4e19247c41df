"""More than one driver on a pipeline, and drivers that are stopped, continued or told to end."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.crash.drivers import Driver, read_state, run, sinks_hold

ROWS = 12_000


def staged(folder: Path) -> list[str]:
    return [str(path) for path in folder.glob("totals-*/_slackwater/*/*/staged/*")]


def test_the_loser_of_two_interleaved_drivers_exits_11_and_leaves_what_it_staged(tmp_path: Path) -> None:
    # With one epoch in flight nothing is staged ahead: what it stages next comes after the winner's survey.
    one = ("--epochs-in-flight", "1")
    loser = Driver(tmp_path, rows=ROWS, failpoints="append.after@2=stop", options=one)
    loser.wait_stopped("append.after")
    winner = Driver(tmp_path, rows=ROWS, failpoints="append.after@2=stop")
    winner.wait_stopped("append.after")
    # Both have appended. The loser goes on: it commits an epoch that the winner has driven already, stages, appends.
    loser.resume()
    assert loser.end() == 11, loser.words
    assert "[driver.fenced]" in loser.words
    left = set(staged(tmp_path))
    winner.resume()
    assert winner.end() == 0, winner.words
    state = read_state(tmp_path)
    assert state is not None
    sinks_hold(tmp_path, ROWS, (state.epoch,))
    # What is staged still is the loser's: it touched nothing, and only a later generation sweeps.
    assert staged(tmp_path) and set(staged(tmp_path)) <= left
    assert run(tmp_path, rows=ROWS)[0] == 0
    assert not staged(tmp_path)
    sinks_hold(tmp_path, ROWS, (state.epoch,))


def test_a_driver_that_slept_through_anothers_whole_run_changes_nothing(tmp_path: Path) -> None:
    sleeper = Driver(tmp_path, rows=ROWS, failpoints="append.after@2=stop")
    sleeper.wait_stopped("append.after")
    code, words = run(tmp_path, rows=ROWS)
    assert code == 0, words
    state = read_state(tmp_path)
    assert state is not None
    sinks_hold(tmp_path, ROWS, (state.epoch,))
    sleeper.resume()
    assert sleeper.end() == 11, sleeper.words
    after = read_state(tmp_path)
    assert after == state
    sinks_hold(tmp_path, ROWS, (state.epoch,))


def test_ctrl_c_ends_after_a_last_checkpoint_and_the_next_run_goes_on(tmp_path: Path) -> None:
    driver = Driver(tmp_path, rows=ROWS)
    driver.wait_for(r"epoch 2,")
    driver.process.send_signal(signal.SIGINT)
    assert driver.end() == 130, driver.words
    assert "stopping: what is committed is checkpointed" in driver.words
    state = read_state(tmp_path)
    assert state is not None
    assert state.release_append_id is not None
    assert state.settled_epoch == state.epoch
    sinks_hold(tmp_path, ROWS, (state.epoch,))
    assert not list((tmp_path / "work").glob("*/*"))
    assert not staged(tmp_path)
    assert run(tmp_path, rows=ROWS)[0] == 0
    end = read_state(tmp_path)
    assert end is not None
    sinks_hold(tmp_path, ROWS, (end.epoch,))
