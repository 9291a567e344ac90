"""Budgets: every form of the grammar, what limits apply, and errors that say the grammar."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from slimgrad.errors import ConfigError
from slimgrad.planner import budget_size
from slimgrad.planner.budget_size import Room, nbytes_of


@pytest.fixture
def _machine(monkeypatch):
    monkeypatch.setattr(budget_size, "_machine", lambda: (1000, 600))
    monkeypatch.setattr(budget_size, "_control_groups", list)
    monkeypatch.setattr(budget_size, "_address_space", lambda: (float("inf"), float("inf")))
    monkeypatch.setattr(budget_size, "resident_now", lambda: 50)


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (123, 123), (1.5e3, 1500), ("77", 77), ("4GiB", 4 << 30), ("4 gib", 4 << 30), ("4g", 4 << 30),
        ("512MB", 512_000_000), ("1.5KiB", 1536), (".5k", 512), ("2TB", 2 * 10**12), ("80%", 800), ("12.5 %", 125),
        ("100%", 1000), ("auto", 650),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("_machine")
def test_the_grammar(budget, nbytes):
    assert nbytes_of(budget) == nbytes


@pytest.mark.parametrize(
    "budget", ["", "4 apples", "GiB", "-1", "1e9x", "0", 0, -5, None, True, "nan", float("inf"), [1]]
)
def test_anything_else_is_an_error_that_says_the_grammar(budget):
    with pytest.raises(ConfigError, match=r"expected a memory budget.*'4GiB'.*'80%'.*'auto'"):
        nbytes_of(budget)


@pytest.mark.parametrize("budget", ["0%", "101%"])
def test_a_share_is_a_share(budget):
    with pytest.raises(ConfigError, match=r"expected a share above 0% and up to 100%"):
        nbytes_of(budget)


@pytest.mark.usefixtures("_machine")
def test_the_narrowest_limit_holds(monkeypatch):
    assert budget_size.room() == Room(1000, 600)
    monkeypatch.setattr(budget_size, "_control_groups", lambda: [(900, 850), (10_000, 0)])
    assert budget_size.room() == Room(900, 50)
    monkeypatch.setattr(budget_size, "_address_space", lambda: (700, 20))
    assert budget_size.room() == Room(700, 20)


def test_control_groups_of_both_versions_are_read(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:memory:/a/b\n3:cpu:/\n0::/c\n")
    files = {
        "memory/a/b/memory.limit_in_bytes": "500", "memory/a/b/memory.usage_in_bytes": "200",
        "memory/a/b/memory.stat": "cache 90\ntotal_inactive_file 80\n",
        "memory/a/memory.limit_in_bytes": "9223372036854771712",  # none
        "c/memory.max": "max", "c/memory.current": "7", "memory.max": "4000", "memory.current": "1000",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(budget_size._control_groups(tmp_path, own)) == [(500, 120), (4000, 1000)]


def test_a_limit_on_the_address_space_is_seen():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from slimgrad.planner.budget_size import room; print(*room())"
    )
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    assert limit == resource.RLIM_INFINITY or limit > 3 << 30
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    total, left = (int(word) for word in done.stdout.split())
    assert total <= 3 << 30
    assert 0 < left < total


def test_this_machine_has_memory():
    total, left = budget_size.room()
    assert 0 < left <= total
    assert nbytes_of("auto") > left
