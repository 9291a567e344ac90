"""Report.to_html."""

from pathlib import Path

import torch
from page_reader import PageReader
from torch import nn

import slimgrad


def test_the_page_of_a_session_has_the_numbers_of_its_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 4))
    with slimgrad.attach(model, bound=slimgrad.Relative(0.25)) as session:
        for _ in range(2):
            model(torch.randn(4, 3, 16, 16)).sum().backward()
    report = session.report()
    report.to_html(tmp_path / "page.html")
    read = PageReader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert read.figures["total"]["saved_ratio"] == report.saved_ratio
    roles = {row[0]: row for row in read.tables["roles"][1:]}
    assert set(roles) == set(report.by_role())
    largest, coded = next(iter(report.by_role().items()))
    assert roles[largest][4] == f"{coded.nbytes_in / coded.nbytes_out:,.1f}x"
    assert f"({report.saved_ratio:,.1f}x)" in read.text
    assert read.links == []


def test_an_empty_session_has_a_page_too(tmp_path: Path) -> None:
    with slimgrad.attach(nn.Linear(2, 2)) as session:
        session.report().to_html(str(tmp_path / "page.html"))
    assert "nothing was recorded" in PageReader((tmp_path / "page.html").read_text(encoding="utf-8")).text
