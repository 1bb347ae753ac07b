"""What the pages of docs/rivals/ show is what the records say."""

import pytest

from rivals import report


def test_the_pages_have_the_tables_of_the_records():
    """Else: python -m rivals.report."""
    for file, text in report.pages().items():
        assert file.read_text() == text, file


def test_a_table_without_a_place_is_an_error():
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    assert report.filled(page, {"one": "| new |"}) == "before\n<!-- table one -->\n| new |\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="two"):
        report.filled(page, {"one": "", "two": ""})
