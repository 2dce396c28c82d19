"""What the documents say of our studies is what the published tables hold."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import findings  # noqa: E402


def test_findings_are_those_of_the_published_tables():
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == findings.main()


def test_the_headline_has_the_published_numbers():
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for study in ("cub32", "mini32"):
        for head in ("proto", "cosine-proto"):
            assert findings.Results(ROOT / "results" / study).sensitivity(head) in words
