"""The code that every reader of a report runs is the one that was looked at."""

import hashlib

import pytest
import report_runs

from anyshot.report import page, write_report


def test_vega_from_the_cache_is_taken_only_where_it_is_what_was_bundled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(page.vl_convert, "javascript_bundle", lambda words: "the bundle")
    sha256 = hashlib.sha256(b"the bundle").hexdigest()
    monkeypatch.setattr(page, "VEGA_SHA256", {page.version("vl-convert-python"): sha256})
    assert page.vega_code() == "the bundle"
    (cached,) = tmp_path.rglob("vega-*.js")
    for spoiled in (b"alert(1)", b"\xff", b""):
        cached.write_bytes(spoiled)
        assert page.vega_code() == "the bundle"
        assert cached.read_text() == "the bundle"
    monkeypatch.setattr(page, "VEGA_SHA256", {})  # a release that nobody has looked at
    cached.write_text("alert(1)")
    assert page.vega_code() == "the bundle"


def test_the_bundled_vega_is_the_one_that_was_looked_at():
    release = page.version("vl-convert-python")
    if release not in page.VEGA_SHA256:
        pytest.skip(f"vl-convert {release} has not been looked at")
    code = page.vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    assert hashlib.sha256(code.encode()).hexdigest() == page.VEGA_SHA256[release]


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
