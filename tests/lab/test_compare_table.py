"""The table in a terminal."""

import io
import math

from made_results import result
from rich.console import Console

from slimgrad.lab import compare_table
from slimgrad.lab.compare import exp, perplexity_change, rows_of
from slimgrad.lab.spread import Difference


def shown(results: list) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(compare_table.table(rows_of(results), "resnet18 on cifar10"))
    return console.file.getvalue()


def test_it_shows_what_arms_take_and_learn_and_what_comet_published() -> None:
    results = [result("plain", s, 0.5 + 0.1 * s) for s in range(3)]
    results += [result("noise:0.05", s, 0.49 + 0.1 * s) for s in range(3)]
    text = shown(results)
    lines = [line.split() for line in text.splitlines() if line.startswith("noise:0.05")]
    assert lines[0] == ["noise:0.05", "3", "2.0", "MiB", "4.00x", "9.0", "MiB", "13.30x", "0.120", "s", "1.20x", "67"]
    assert "-1.00 pt [-1.00, -1.00]" in text
    assert "0.0300" in text
    assert "13.5x" in text and "ImageNet" in text and "were not measured side by side" in " ".join(text.split())
    assert "running statistics" not in text


def test_text_is_compared_by_perplexity() -> None:
    results = [result("plain", unit="tokens", test_loss=1.0), result("noise:0.05", unit="tokens", test_loss=1.01)]
    text = shown([*results, result("checkpoint", unit="tokens")])
    assert "perplexity" in text
    assert "2.7183" in text
    assert "+1.01 %" in text
    assert "running statistics" in " ".join(text.split())


def test_a_loss_beyond_what_perplexity_can_be_is_infinite() -> None:
    assert exp(1e4) == math.inf
    assert perplexity_change(Difference(1e4, None, None, 1)).mean == math.inf


def test_it_says_whether_processes_had_huge_pages() -> None:
    with_pages, without = result("plain"), result("noise:0.05")
    with_pages["machine"]["huge pages"] = "asked for"
    told = [compare_table.notes(rows_of(some)) for some in ([with_pages], [without], [with_pages, without])]
    assert ["THP_MEM_ALLOC_ENABLE=1" in " ".join(notes) for notes in told] == [True, False, False]
    assert "are not comparable" in " ".join(told[2])


def test_the_published_row_fits_the_costs() -> None:
    assert len(compare_table.published()) == len(compare_table.COSTS)
