"""Report: the numbers of a snapshot for programs; the same ones are in the text."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slimgrad.ledger import PARAMETER, UNKNOWN, Ledger
from slimgrad.report import Report
from slimgrad.report.memory import Peak

MIB = 1 << 20


@pytest.fixture
def report() -> Report:
    ledger = Ledger()
    for _ in range(2):
        ledger.next_step()
        ledger.record_pack("stem", "conv input", "nested", 64 * MIB, 4 * MIB, 0.002)
        ledger.record_pack("head", "linear input", "nested", 16 * MIB, 4 * MIB, 0.001)
        ledger.record_pack("stem", "max-pool input", "shape", 8 * MIB, 0, 0.0)
        ledger.record_unpack("stem", "conv input", 0.003)
        ledger.record_error("stem", "conv input", 0.875)
        ledger.record_repeat("stem", "conv input", 64 * MIB)
        ledger.record_kept("head", "weight", 2 * MIB, PARAMETER)
        ledger.record_kept("head", "", 8 * MIB, UNKNOWN, "foo")
    return Report(
        ledger.snapshot(), {"arena": 12 * MIB}, Peak(900 * MIB, 500 * MIB, None, None, "attach"), ["mind this"]
    )


def test_the_three_ratios_are_apart(report: Report) -> None:
    numbers = report.to_dict()
    assert report.coded_ratio == numbers["total"]["coded_ratio"] == 11.0
    assert report.saved_ratio == numbers["total"]["saved_ratio"] == 6.0
    assert numbers["peak"]["resident"] == 900 * MIB
    assert numbers["last_step"]["saved_in"] == 96 * MIB
    assert numbers["total"]["saved_in"] == 2 * 96 * MIB
    assert numbers["total"]["not_activations"] == 2 * 2 * MIB


def test_sums_by_role_and_module_the_largest_first(report: Report) -> None:
    numbers = report.to_dict()
    assert [row["role"] for row in numbers["roles"]] == ["conv input", "linear input", "max-pool input"]
    assert [row["module"] for row in numbers["modules"]] == ["stem", "head"]
    stem = numbers["modules"][0]
    assert (stem["n"], stem["nbytes_in"], stem["nbytes_out"], stem["ratio"]) == (4, 144 * MIB, 8 * MIB, 18.0)
    assert stem["codecs"] == ["nested", "shape"]
    assert stem["worst_error"] == 0.875


def test_what_was_kept_says_why(report: Report) -> None:
    kept = report.to_dict()["kept"]
    assert kept[0] == {
        "module": "head", "role": "", "reason": UNKNOWN, "detail": "foo", "n": 2, "nbytes": 16 * MIB,
    }  # fmt: skip
    assert kept[1]["reason"] == PARAMETER
    assert report.to_dict()["repeats"] == {"n": 2, "nbytes": 128 * MIB}


def test_json_is_the_dict_and_has_no_infinities(report: Report) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    again = json.loads(report.to_json(), parse_constant=refuse)
    assert again == json.loads(json.dumps(report.to_dict()))
    assert again["roles"][2]["ratio"] is None  # nothing had to be stored


def test_what_the_session_remarks_is_among_the_notes(report: Report) -> None:
    assert report.notes[-1] == report.to_dict()["notes"][-1] == "mind this"


def test_repr_is_one_line(report: Report) -> None:
    assert repr(report) == "<Report of 2 steps: 6.0x over all saved activations>"


def test_rich_is_imported_only_to_render() -> None:
    code = (
        "import sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from slimgrad.ledger import Ledger\n"
        "from slimgrad.report import Report\n"
        "report = Report(Ledger().snapshot())\n"
        "report.to_json()\n"
        "before = 'rich' in sys.modules\n"
        "str(report)\n"
        "print(before, 'rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False True\n"
