"""Table: a summary that can be read aloud, then tables; plain text of bounded width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from slimgrad.ledger import PARAMETER, SMALL, Ledger
from slimgrad.report import Report
from slimgrad.report.memory import Peak
from slimgrad.report.table import WIDTH, nbytes, seconds, times

MIB = 1 << 20


def a_report(n_modules: int = 3, n_steps: int = 2, **more) -> Report:
    ledger = Ledger()
    for _ in range(n_steps):
        ledger.next_step()
        for number in range(n_modules):
            path = f"blocks.{number}.conv"
            ledger.record_pack(path, "conv input", "nested", (20 - number) * MIB, MIB, 0.004)
            ledger.record_unpack(path, "conv input", 0.002)
        ledger.record_error("blocks.0.conv", "conv input", 0.987)
        ledger.record_kept("", "weight", 5 * MIB, PARAMETER)
        for number in range(5):
            ledger.record_kept(f"norm{number}", "statistics", 2000 - number, SMALL)
    return Report(ledger.snapshot(), **more)


def line(text: str, start: str) -> list[str]:
    return next(row for row in text.splitlines() if row.startswith(start)).split()


def test_the_summary_comes_first() -> None:
    report = a_report(storage={"arena": 12 * MIB}, peak=Peak(900 * MIB, None, 300 * MIB, "cuda", "attach"))
    first, second = str(report).splitlines()[:2]
    assert first == (
        "slimgrad: saved activations 57.0 MiB -> 3.0 MiB (18.9x); coded tensors 19.0x; "
        "peak 900.0 MiB resident, 300.0 MiB on cuda"
    )
    assert second.strip() == "per step, mean of 2; encode 12.0 ms, decode 6.0 ms; arena 12.0 MiB"


def test_numbers_are_means_per_step() -> None:
    text = str(a_report(n_steps=7))
    assert line(text, "conv input")[2:9] == ["3", "57.0", "MiB", "3.0", "MiB", "19.0x", "12.0"]
    assert "0.987 of bound" in text
    assert line(text, "blocks.1.conv")[1:7] == ["1", "19.0", "MiB", "1.0", "MiB", "19.0x"]


def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    text = str(a_report())
    table = text.splitlines()[2:]
    assert max(map(len, table)) <= 80 and "encode" not in "".join(table)
    assert line(text, "blocks.1.conv")[1:] == ["1", "19.0", "MiB", "1.0", "MiB", "19.0x", "nested"]
    shown = Console(file=io.StringIO(), width=80)
    shown.print(a_report())
    assert line(shown.file.getvalue(), "blocks.1.conv")[1:] == line(text, "blocks.1.conv")[1:]


def test_only_the_largest_modules_are_listed() -> None:
    text = str(a_report(n_modules=15))
    assert "blocks.9.conv" in text
    assert "blocks.10.conv" not in text
    assert "... and 5 more" in text


def test_what_was_kept_is_listed_with_reason_and_place() -> None:
    text = str(a_report())
    assert line(text, "parameter")[1:4] == ["1", "5.0", "MiB"]
    assert line(text, "below min_bytes")[2:5] == ["5", "9.8", "KiB"]
    assert "norm0, norm1, norm2 and 2 more" in text


def test_the_last_step_is_mentioned_where_it_differs() -> None:
    ledger = Ledger()
    for size in (10, 5):
        ledger.record_pack("a", "conv input", "nested", 100, size, 0.0)
        ledger.next_step()
    assert "last step 20.0x" in str(Report(ledger.snapshot()))
    assert "last step" not in str(a_report())


def test_text_is_plain_and_narrow() -> None:
    ledger = Ledger()
    ledger.record_pack("a." * 80, "conv input", "nested", 100, 10, 0.0)
    ledger.record_pack("b", "conv input", "nested", 100, 10, 0.0)
    text = str(Report(ledger.snapshot(), remarks=["[bold]not markup[/bold]"]))
    assert "\x1b" not in text
    assert "[bold]not markup[/bold]" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_rich_console_can_print_it() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system="truecolor")
    console.print(a_report())
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.startswith("\x1b[1mslimgrad: saved activations")
    assert "by role" in printed


def test_nothing_recorded_is_said_in_one_line_and_a_note() -> None:
    text = str(Report(Ledger().snapshot()))
    assert text.splitlines()[0] == "slimgrad: nothing was recorded"
    assert "note: nothing was recorded: no attached module was called" in text
    assert "by role" not in text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (1330.5 * MIB, "1.3 GiB"), (800 * MIB, "800.0 MiB")],
)
def test_nbytes(size: float, text: str) -> None:
    assert nbytes(size) == text


@pytest.mark.parametrize(("duration", "text"), [(0, "0"), (1e-9, "<1 us"), (2e-5, "20.0 us"), (0.5, "500.0 ms")])
def test_seconds(duration: float, text: str) -> None:
    assert seconds(duration) == text


@pytest.mark.parametrize(("value", "text"), [(14.44, "14.4x"), (float("inf"), "nothing stored")])
def test_times(value: float, text: str) -> None:
    assert times(value) == text
