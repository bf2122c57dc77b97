"""Reads a page of sluice report with an XML parser, for tests/cli/report.sh.

report.py cell PAGE TABLE ROW COLUMN   the text of a cell, by the names of its row and column
report.py exact PAGE TABLE ROW COLUMN  the same with more digits
report.py rows PAGE TABLE              the names of its rows
report.py head PAGE TABLE              the names of its columns
report.py loose PAGE                   the number of tables that widen a narrow window
report.py count PAGE ELEMENT           how many elements there are
report.py text PAGE ELEMENT            their texts, one per line
report.py curve PAGE TITLE RUN RESULTS KIND KEY [FACTOR]
    checks that the points of a curve are the values of a key, times the factor: those that the page
    shows under the pointer, and where they are by the numbers at the axes
report.py top PAGE TITLE RUN           the largest value that a curve or its band reaches
report.py pieces PAGE TITLE RUN        pieces of a curve, which gaps separate
report.py parts PAGE ROW               lengths of the parts of a bar, in ms, by the axis
"""
import json
import re
import sys
import xml.etree.ElementTree as tree

HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"


def text_of(element):
    return "".join(element.itertext())


def find_rows(page, table):
    return next(t for t in page.iter(HTML + "table") if t.get("id") == table).findall(HTML + "tr")


def find_cell(page, table, row, column):
    rows = find_rows(page, table)
    names = [text_of(cell) for cell in rows[0]]
    found = next(r for r in rows[1:] if text_of(r[0]) == row)
    return found[names.index(column)]


def find_figure(page, title):
    return next(f for f in page.iter(HTML + "figure") if text_of(f[0]) == title)


def find_group(figure, name):
    return next(g for g in figure.iter(SVG + "g") if text_of(g[0]) == name)


def number(label):
    factors = {"k": 1e3, "M": 1e6, "G": 1e9}
    return float(label.rstrip("kMG")) * factors.get(label[-1], 1)


def find_axes(figure):
    """For x and y: value at a place, as a function of the place. Both axes are linear."""
    svg = figure.find(SVG + "svg")
    ticks = {"x": [], "y": []}
    for line, label in zip(svg, list(svg)[1:]):
        if line.get("class") != "grid":
            continue
        at = re.fullmatch(r"M([-\d.]+) ([-\d.]+)([VH]).*", line.get("d"))
        axis, place = ("x", at[1]) if at[3] == "V" else ("y", at[2])
        ticks[axis].append((float(place), number(text_of(label))))
    for axis, found in ticks.items():
        assert len(found) in range(2, 12) or axis == "y" and not found, (axis, found)
        steps = [b[1] - a[1] for a, b in zip(found, found[1:])]
        assert all(abs(s - steps[0]) < 1e-6 * abs(s) + 1e-12 for s in steps), (axis, found)
    return ticks


def inverse(ticks):
    (p, a), (q, b) = ticks[0], ticks[-1]
    return lambda place: a + (place - p) * (b - a) / (q - p), abs((b - a) / (q - p))


def paths_of(group):
    return [p.get("d") for p in group.findall(SVG + "path") if p.get("class") != "dots"]


def points_of(group):
    """Values of a curve, and their places."""
    a, b, c, d, e, f = map(float, re.findall(r"[-+.e0-9]*[0-9]", group.get("transform")))
    assert (b, c) == (0, 0), group.get("transform")
    values = [(float(x), float(y)) for x, y in
              re.findall(r"[ML]([^ ]+) ([-+.e0-9]*[0-9])", paths_of(group)[-1])]
    return values, [(a * x + e, d * y + f) for x, y in values]


def check_curve(page, title, run, results, kind, key, factor=1):
    figure = find_figure(page, title)
    ticks = find_axes(figure)
    (x_at, x_unit), (y_at, y_unit) = inverse(ticks["x"]), inverse(ticks["y"])
    records = [json.loads(line) for line in open(results, encoding="utf-8")]
    data = [(r["step"], r[key] * float(factor))
            for r in records if r["kind"] == kind and r[key] is not None]
    values, points = points_of(find_group(figure, run))
    assert len(points) == len(data) > 1, (len(points), len(data))
    for (x, y), (step, value) in zip(values, data):
        assert x == step and abs(y - value) <= 1e-6 * abs(value), (x, y, step, value)
    for (x, y), (step, value) in zip(points, data):  # ticks have one digit after the point
        assert abs(x_at(x) - step) < 0.3 * x_unit, (x_at(x), step)
        assert abs(y_at(y) - value) < 0.3 * y_unit, (y_at(y), value)


def main(verb, path, *words):
    # The first line is the document type of HTML, which is no XML declaration.
    page = tree.fromstring(open(path, encoding="utf-8").read().split("\n", 1)[1])
    if verb == "cell":
        print(text_of(find_cell(page, *words)))
    elif verb == "exact":
        print(find_cell(page, *words).get("title"))
    elif verb == "rows":
        print("\n".join(text_of(row[0]) for row in find_rows(page, words[0])[1:]))
    elif verb == "head":
        print("\n".join(text_of(cell) for cell in find_rows(page, words[0])[0]))
    elif verb == "loose":
        boxes = [e for e in page.iter(HTML + "div") if e.get("class") == "wide"]
        print(len(list(page.iter(HTML + "table"))) - sum(len(box) for box in boxes))
    elif verb == "count":
        print(sum(element.tag.split("}")[1] == words[0] for element in page.iter()))
    elif verb == "text":
        print("\n".join(text_of(e) for e in page.iter() if e.tag.split("}")[1] == words[0]))
    elif verb == "curve":
        check_curve(page, *words)
    elif verb == "top":
        paths = " ".join(paths_of(find_group(find_figure(page, words[0]), words[1])))
        print("%.9g" % max(map(float, re.findall(r"(?:V|[ML][^ ]+ )([-+.e0-9]*[0-9])", paths))))
    elif verb == "pieces":
        print(paths_of(find_group(find_figure(page, words[0]), words[1]))[-1].count("M"))
    elif verb == "parts":
        figure = find_figure(page, "Mean step")
        unit = inverse(find_axes(figure)["x"])[1]
        bars = find_group(figure, words[0]).findall(SVG + "rect")
        print(" ".join("%s:%.0f" % (b.get("class"), float(b.get("width")) * unit) for b in bars))


main(*sys.argv[1:])
