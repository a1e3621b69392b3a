"""Reports of vendors' tools are read, or refused in one sentence."""

from pathlib import Path

import pytest

from chop.hardware.synthesis.vendors import (
    read_quartus_report,
    read_report,
    read_vivado_report,
)

REPORTS = Path(__file__).parent / "reports"


def test_vivado_tells_area():
    report = read_vivado_report(REPORTS / "vivado_utilization.rpt")
    assert (report.tool, report.device) == ("Vivado 2022.2", "xcvu9p-flga2104-2-e")
    assert (report.luts, report.lut_kind, report.ffs, report.carries) == (1232, "LUT6", 877, 96)
    assert (report.dsps, report.brams, report.clock_mhz) == (3, 1.5, None)


def test_vivado_tells_area_by_module():
    report = read_vivado_report(REPORTS / "vivado_hierarchy.rpt")
    assert (report.luts, report.ffs, report.dsps) == (718, 396, 0)
    assert report.modules == {"fc1": 530, "fc2": 187}


def test_vivado_tells_timing():
    report = read_vivado_report(REPORTS / "vivado_timing.rpt")
    assert (report.clock_mhz, report.depth, report.luts) == (250.0, 7, None)


def test_quartus_tells_area_and_the_slowest_clock():
    area = read_quartus_report(REPORTS / "quartus.fit.rpt")
    assert (area.tool, area.device) == ("Quartus 21.1.0", "5CSEMA5F31C6")
    assert (area.luts, area.lut_kind, area.ffs, area.brams) == (1012, "ALM", 877, 1)
    timing = read_quartus_report(REPORTS / "quartus.sta.rpt")
    assert (timing.clock_mhz, timing.luts) == (210.04, None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("vivado_utilization.rpt", "vivado_timing.rpt"),
        ("vivado_timing.rpt", "vivado_utilization.rpt"),
        ("quartus.fit.rpt", "quartus.sta.rpt"),
        ("quartus.sta.rpt", "quartus.fit.rpt"),
    ],
)
def test_two_reports_of_one_run_are_one(first, second):
    both = read_report(REPORTS / first).with_more(read_report(REPORTS / second))
    assert both.luts
    assert both.lut_kind
    assert both.clock_mhz


def test_a_design_without_a_clock_has_no_rate(tmp_path):
    text = (REPORTS / "vivado_timing.rpt").read_text().replace("      1.000   ", "         NA   ")
    (tmp_path / "timing.rpt").write_text(text + (REPORTS / "vivado_utilization.rpt").read_text())
    assert read_vivado_report(tmp_path / "timing.rpt").clock_mhz is None


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("vivado_utilization.rpt", "| 1232 |", "|  ??? |", "'\\?\\?\\?' should be a number; let V"),
        ("vivado_timing.rpt", "      1.000   ", "      9.000   ", "a slack of 9.000 ns is more"),
        ("quartus.fit.rpt", "; 877 ", "; none", "'none' should be a number; let Quartus write it"),
    ],
)
def test_a_damaged_report_is_refused(tmp_path, name, old, new, sentence):
    text = (REPORTS / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=f"is damaged: .*{sentence}") as error:
        read_report(tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"| a |\n", b"hello\n"])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / "report.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not a report of Vivado or Quartus"):
        read_report(file)
    with pytest.raises(ValueError, match="has no table of Vivado's"):
        read_vivado_report(file)
    with pytest.raises(ValueError, match="has no Fitter Summary"):
        read_quartus_report(file)


def test_a_missing_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none\.rpt: No such file"):
        read_report(tmp_path / "none.rpt")


@pytest.mark.parametrize("name", sorted(path.name for path in REPORTS.iterdir()))
def test_a_report_that_is_cut_off_never_fails_in_another_way(tmp_path, name):
    text = (REPORTS / name).read_text()
    refused = []
    for end in range(0, len(text), 97):
        (tmp_path / name).write_text(text[:end])
        try:
            assert not read_report(tmp_path / name).is_empty
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert not [sentence for sentence in refused if "\n" in sentence]
