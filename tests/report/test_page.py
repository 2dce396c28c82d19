"""The code that every reader of a report runs is the one that was looked at."""

from helpers import report_runs

from anyshot.report import page
from anyshot.report.page import write_report


def test_a_page_carries_its_policy_and_the_licence_of_vega(tmp_path):
    run = report_runs.write_run(tmp_path / "run", report_runs.rows())
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'http-equiv="Content-Security-Policy"' in text.partition("<script")[0]
    assert "Redistribution and use in source and binary forms" in text


def test_the_policy_names_the_scripts_of_the_page_and_nothing_else():
    policy = page.policy("one", "two")
    assert "script-src 'sha256-dpLDrTVAu4A8Ags67mbNiIcSMjTqDG5xQ8Ct1z/0Me0='" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
