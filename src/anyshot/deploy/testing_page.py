"""What a test found, as a page that stands alone: the numbers, every class, and the mistakes with their pictures."""

from base64 import b64encode
from collections.abc import Mapping
from html import escape

from anyshot.deploy.testing import SHOWN, Result, head_lines

STYLE = """
:root { color-scheme: light; font: 16px/1.55 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } .large { font-size: 2.6rem; font-weight: 600; margin: 0; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.bar { background: linear-gradient(#0072B2, #0072B2) no-repeat left / var(--share) 100% #e8e8e8; width: 8rem;
  height: .7rem; display: inline-block; }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1rem; padding: 0; }
.mistakes li { list-style: none; font-size: .85rem; overflow-wrap: anywhere; }
.mistakes img { width: 100%; display: block; border-radius: 4px; }
"""


def as_html(result: Result, pictures: Mapping[int, bytes], title: str) -> str:
    """The page; `pictures` are small JPEGs of mistakes, by their place."""
    accuracy, low, high = result.accuracy
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="large">{accuracy:.1%} right</p>',
        f"<p>With 95 % confidence {low:.1%} to {high:.1%}, for examples of the same kind that come one by one.</p>",
        *(f"<p>{escape(line)}</p>" for line in head_lines(result)),
        "<h2>Class by class</h2>",
        "<table><thead><tr><th>class</th><th>right</th><th>recall</th><th>95 % interval</th><th>taken for</th></tr>",
        "</thead><tbody>",
    ]
    for one in sorted(result.classes, key=lambda one: (one.recall[0], one.name)):
        recall, low, high = one.recall
        wrong = ", ".join(f"{escape(name)} {times}" for name, times in one.taken_for[:3])
        lines.append(
            f"<tr><td>{escape(one.name)}</td><td>{one.right}/{one.examples}</td>"
            f'<td><span class="bar" style="--share:{recall:.1%}"></span> {recall:.1%}</td>'
            f"<td>{low:.1%} to {high:.1%}</td><td>{wrong}</td></tr>"
        )
    lines.append("</tbody></table>")
    if result.mistakes:
        more = f" ({SHOWN} of {len(result.mistakes)}; all are in test.json)" if len(result.mistakes) > SHOWN else ""
        lines += [f"<h2>Mistakes, the surest first{more}</h2>", '<ul class="mistakes">']
        for mistake in result.mistakes[:SHOWN]:
            picture = ""
            if mistake.place in pictures:
                data = b64encode(pictures[mistake.place]).decode("ascii")
                picture = f'<img alt="{escape(mistake.name)}" src="data:image/jpeg;base64,{data}">'
            none = "" if mistake.is_known else " (or none of these)"
            lines.append(
                f"<li>{picture}<b>{escape(mistake.label)}</b>, taken for <b>{escape(mistake.taken_for)}</b> "
                f"({mistake.probability:.0%}){none}<br>{escape(mistake.name)}</li>"
            )
        lines.append("</ul>")
    return "\n".join([*lines, "</body></html>"]) + "\n"
