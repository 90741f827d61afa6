"""A page holds all that it needs, and nothing that users say becomes part of its code."""

import re

import pytest

from vbreg.web_page import web_page

TEMPLATE = "<head>\n<!-- head -->\n</head><body>\n<!-- tail -->\n</body>"


def page(**options: bool) -> str:
    data = {"scene": ("base64", "AAAA"), "words": ("json", "{}")}
    return web_page(TEMPLATE, "a <b> & c", "p {}", "run();", data, **options).decode()


def test_all_parts_are_within_and_the_title_is_text() -> None:
    text = page()
    assert "<title>a &lt;b&gt; &amp; c</title>" in text
    assert "<style>p {}</style>" in text
    assert '<script type="application/base64" id="scene">AAAA</script>' in text
    assert '<script type="application/json" id="words">{}</script>' in text
    assert text.index('id="words"') < text.index("<script>run();</script>")  # read by the script
    assert "<!--" not in text


@pytest.mark.parametrize("allowed", [False, True])
def test_the_policy_allows_one_script_and_one_style(allowed: bool) -> None:
    found = re.search(r'content="([^"]*)"', page(style_attributes=allowed))
    assert found is not None
    assert found[1].startswith("default-src 'none'; script-src 'sha256-")
    assert found[1].count("sha256-") == 2
    assert ("unsafe-inline" in found[1]) == allowed
