"""The page of a report: HTML that loads nothing and prints well."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

from actograph.report.figures import Figure

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 90%; }
th, td { border-bottom: 1px solid #bbb; padding: 0.25rem 0.75rem 0.25rem 0; text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; break-inside: avoid; }
figure img { max-width: 100%; }
figcaption { font-size: 90%; color: #444; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; padding: 0.75rem; font-size: 80%; }
@media print { body { margin: 0; max-width: none; } section { break-before: page; }
  section:first-of-type { break-before: avoid; } table { break-inside: avoid; } }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def page(title: str, sections: Sequence[str]) -> str:
    """Build the whole page."""
    body = "\n".join(f"<section>\n{section}\n</section>" for section in sections)
    return _PAGE.substitute(title=escape(title), body=body)


def heading(text: str, level: int = 2) -> str:
    """Build a heading."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """Build a paragraph."""
    return f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Build a block of code."""
    return f"<pre>{escape(text)}</pre>"


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Build a table; numbers get four significant digits, None becomes a dash."""
    head = "".join(f"<th>{escape(one)}</th>" for one in headers)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def picture(figure: Figure) -> str:
    """Embed a figure."""
    data = b64encode(figure.svg).decode("ascii")
    caption = escape(figure.title)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " to ".join(_shown(one) for one in value)
    return str(value)
