"""The table of attacks names tests that exist."""

import re

from scripts.tryout.places import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_the_tests_of_the_table_exist() -> None:
    named = NAMED.findall((ROOT / "docs/security.md").read_text())

    assert len(named) > 20
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path} has no {test}"
