"""Tables in Markdown."""

from vbreg.benchmark.markdown import markdown_table


def test_a_table_has_a_rule_below_its_header() -> None:
    rows = [["1", "2"], ["3", "4"]]
    assert markdown_table(["a", "b"], rows) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"
    assert "\n| ---: | ---: |\n" in markdown_table(["a", "b"], rows, "right")
