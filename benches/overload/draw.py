"""Draws what `load.py` has written for several proxies: the requests answered in each second, and
the 99th percentile of their times. Arguments: the SVG to write, and `NAME=FILE` for each proxy.
"""

import json
import sys

COLORS = ["#0969da", "#bf8700", "#1a7f37", "#cf222e", "#8250df", "#57606a"]
WIDTH, HEIGHT, LEFT, GAP, TOP = 760, 170, 56, 54, 34
SECONDS = 27


def seconds(answers, of):
    """What `of` makes of the answers of each second."""
    each = [[] for _ in range(SECONDS)]
    for at, took, _, _ in answers:
        if 0 <= at < SECONDS:
            each[int(at)].append(took * 1e3)
    return [of(sorted(times)) for times in each]


def panel(top, title, most, lines):
    """One chart, with its lines in the order of the colours."""
    x = lambda second: LEFT + (second + 0.5) * (WIDTH - LEFT - 12) / SECONDS
    y = lambda value: top + HEIGHT - min(value, most) * HEIGHT / most
    out = [f'<text x="{LEFT}" y="{top - 10}" class="title">{title}</text>']
    for step in range(5):
        value = most * step / 4
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(value)}" y2="{y(value)}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" class="at">{value:.0f}</text>')
    for second in range(0, SECONDS, 5):
        out.append(f'<text x="{x(second)}" y="{top + HEIGHT + 16}" class="below">{second} s</text>')
    for values, color in zip(lines, COLORS):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values))
        out.append(f'<polyline points="{points}" stroke="{color}"/>')
    return out


def main():
    names, all_answers = [], []
    for argument in sys.argv[2:]:
        name, path = argument.rsplit("=", 1)
        names.append(name)
        with open(path, encoding="utf-8") as file:
            all_answers.append(json.load(file))
    p99 = lambda times: times[int(len(times) * 0.99)] if times else 0
    goodput = [seconds(answers, len) for answers in all_answers]
    latency = [seconds(answers, p99) for answers in all_answers]
    height = TOP + 2 * (HEIGHT + GAP) + 20
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#57606a}.title{font-weight:bold}.at{text-anchor:end}"
        ".below{text-anchor:middle}line{stroke:#8c959f;stroke-opacity:.3}"
        "polyline{fill:none;stroke-width:2}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    svg += panel(TOP, "Answered a second (80 sent, from 6 s to 21 s 640)", 200, goodput)
    svg += panel(TOP + HEIGHT + GAP, "99th percentile of those answered, ms", 800, latency)
    for at, (name, color) in enumerate(zip(names, COLORS)):
        left = LEFT + at * 140
        svg.append(f'<rect x="{left}" y="{height - 20}" width="14" height="4" fill="{color}"/>')
        svg.append(f'<text x="{left + 20}" y="{height - 14}">{name}</text>')
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(svg + ["</svg>"]) + "\n")


main()
