"""A log line is one line and shows no value of an exception, alike ones are shown once; a lock is one process's."""

import fcntl
import io
import json
import logging
import sys

import pytest

from undersong_common import files
from undersong_common.errors import ConfigurationError
from undersong_common.files import holding, is_held
from undersong_common.program.logs import Repeats, to_stderr


@pytest.fixture(autouse=True)
def root():
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(capsys, *, as_json):
    to_stderr(("undersong_server",), as_json=as_json, debug=False)
    log = logging.getLogger("undersong_server.runs")
    try:
        raise ValueError("a private note")
    except ValueError:
        log.exception("run %s failed", "first\n2026-01-01 INFO forged")
    log.debug("not at this level")
    logging.getLogger("library").info("what a library was given")
    return capsys.readouterr().err


def test_text_log_has_one_line_a_record_and_no_traceback(capsys):
    (line,) = logged(capsys, as_json=False).splitlines()
    assert line.endswith("ERROR run first\\n2026-01-01 INFO forged failed")


def test_a_line_begins_with_the_time_to_the_millisecond_and_the_level(capsys):
    to_stderr(("undersong_server",), as_json=False, debug=False)
    usual = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    for created in (1.9999, 2.0, 2.25, 86399.5, 1.5):
        record = logging.makeLogRecord({"levelname": "INFO", "msg": "a run", "created": created})
        record.msecs = created % 1 * 1000
        logging.getLogger().handlers[0].handle(record)
        assert capsys.readouterr().err == usual.format(record) + "\n"


def test_json_log_names_the_kind_of_an_exception_and_nothing_else(capsys):
    (line,) = logged(capsys, as_json=True).splitlines()
    value = json.loads(line)
    assert (value["level"], value["logger"], value["exception"]) == ("error", "undersong_server.runs", "ValueError")
    assert "private" not in line


def test_json_log_carries_the_code_of_our_own_errors(capsys):
    to_stderr((), as_json=True, debug=False)
    try:
        raise ConfigurationError("no such file", code="missing-file")
    except ConfigurationError:
        logging.getLogger("undersong_server.runs").exception("failed")
    assert json.loads(capsys.readouterr().err)["code"] == "missing-file"


def test_lock_that_is_held_cannot_be_taken_again(tmp_path):
    path = tmp_path / "lock"
    assert not is_held(path)
    with holding(path, RuntimeError("held")):
        assert is_held(path)
        with pytest.raises(RuntimeError, match="held"), holding(path, RuntimeError("held")):
            pass
        with pytest.raises(BlockingIOError, match="the body's own"), holding(tmp_path / "other", RuntimeError("held")):
            raise BlockingIOError("the body's own")
    assert not is_held(path)


def test_checking_if_a_lock_is_held_stops_no_program_from_taking_it(tmp_path, monkeypatch):
    """The console asks once a second, and a coordinator that started at that moment was refused."""
    path = tmp_path / "lock"
    with path.open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # as it is for an instant within is_held
        assert not is_held(path)
        monkeypatch.setattr(files.time, "sleep", lambda _s: asking.close())
        with holding(path, RuntimeError("held")):
            assert is_held(path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_lines_differing_in_a_number_are_counted_until_another_comes() -> None:
    now = [0.0]
    repeats = Repeats(quiet_s=60.0, clock=lambda: now[0])
    shown = [line for n in range(5) for line in repeats.lines(f"votes/1: attempt {n} is void")]
    shown += repeats.lines("beta: disconnected")
    shown += repeats.lines("beta: connected")
    shown += repeats.lines("beta: disconnected")
    now[0] = 61.0
    shown += repeats.lines("beta: disconnected")
    assert shown == [
        "votes/1: attempt 0 is void",
        "(4 more like it)",
        "beta: disconnected",
        "beta: connected",
        "beta: disconnected",
        "beta: disconnected",
    ]


def test_log_lines_differing_in_names_dates_or_addresses_are_all_shown() -> None:
    repeats = Repeats()
    lines = [
        "site-1 has approved",
        "site-2 has approved",
        "refused 10.0.0.7: no certificate",
        "refused 10.0.0.8: no certificate",
        "run 'spring 1' failed",
        "run 'spring 2' failed",
        "votes/1 failed",
        "votes/2 failed",
        "until 2026-01-02",
        "until 2026-01-03",
    ]
    assert [line for each in lines for line in repeats.lines(each)] == lines


def logged_to(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, as_json: bool) -> list[str]:
    monkeypatch.setattr(sys, "stderr", stream)
    own = logging.getLogger("undersong_repeats")
    to_stderr(("undersong_repeats",), as_json=as_json, debug=False)
    for seconds in (0.5, 1.0, 2.0):
        own.warning("cannot connect: %s; next try in %.1f s", "refused", seconds)
    own.warning("cannot connect: %s; next try in %.1f s", "no route", 4.0)
    for done in (50, 100):
        own.info("embedded %d of %d records", done, 100)
    for attempt in (1, 2):
        own.info("run %s: %s", "a", f"attempt {attempt}", extra={"alike": ("a", "attempt")})
    return stream.getvalue().splitlines()


def test_log_folds_repeated_lines_on_a_terminal_and_not_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = logged_to(monkeypatch, Terminal(), as_json=False)
    assert [line.partition(" WARNING ")[2] or line.partition(" INFO ")[2] for line in watched] == [
        "cannot connect: refused; next try in 0.5 s",
        "(2 more like it)",
        "cannot connect: no route; next try in 4.0 s",
        "embedded 50 of 100 records",
        "embedded 100 of 100 records",
        "run a: attempt 1",
    ]
    assert len(logged_to(monkeypatch, io.StringIO(), as_json=False)) == 8
    assert len(logged_to(monkeypatch, Terminal(), as_json=True)) == 8
