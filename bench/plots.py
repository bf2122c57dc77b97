"""Plots as SVG, for the scripts that make tables. The same numbers give the same bytes."""

import html
import math

COLORS = ["#2f6db3", "#d98032", "#4b9a56", "#8a63b0", "#b9474a", "#7a7a7a"]
WIDTH, LEFT, TOP, BAR, FONT = 720, 190, 44, 17, "font-family='sans-serif' font-size"


def color_of(i):
    return COLORS[i % len(COLORS)]


def words(x, y, text, size=12, anchor="start", color="#222"):
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' {FONT}='{size}' text-anchor='{anchor}'"
        f" fill='{color}'>{html.escape(text)}</text>"
    )


def page(height, title, parts):
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}'"
        f" width='{WIDTH}' height='{height}' role='img'>\n<title>{html.escape(title)}</title>\n"
        f"<rect width='100%' height='100%' fill='#fff'/>\n"
    )
    return head + words(10, 20, title, 15) + "\n" + "\n".join(parts) + "\n</svg>\n"


def legend(names, y):
    parts, x = [], LEFT
    for i, name in enumerate(names):
        parts += [
            f"<rect x='{x:.0f}' y='{y - 10}' width='12' height='12' fill='{color_of(i)}'/>",
            words(x + 17, y, name),
        ]
        x += 30 + 6.5 * len(name)
    return parts


def nice(top):
    """A round number that is at least top."""
    unit = 10.0 ** (len(str(int(max(top, 1)))) - 1)
    while unit * 10 <= top:
        unit *= 10
    return next(m * unit for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * unit >= top * 0.98)


def scale(top, y, height, form):
    parts = []
    for i in range(6):
        x = LEFT + i * (WIDTH - LEFT - 70) / 5
        parts += [
            f"<line x1='{x:.0f}' x2='{x:.0f}' y1='{y}' y2='{y + height}' stroke='#ddd'/>",
            words(x, y + height + 15, form(top * i / 5), 11, "middle", "#555"),
        ]
    return parts


def bars(title, names, groups, form, stacked=False):
    """Horizontal bars: groups are (label, [value or None, or a text that stands in its place])."""
    lines = sum(1 if stacked else len(values) for _, values in groups)
    height = lines * BAR + 10 * len(groups)
    number = lambda value: value if isinstance(value, (int, float)) else 0
    top = nice(
        max(
            sum(map(number, values)) if stacked else max(map(number, values))
            for _, values in groups
        )
    )
    width, y = WIDTH - LEFT - 70, TOP + 6
    parts = legend(names, TOP - 4) + scale(top, TOP + 4, height, form)
    for label, values in groups:
        rows = 1 if stacked else len(values)
        parts.append(words(LEFT - 8, y + rows * BAR / 2 + 4, label, 12, "end"))
        x = LEFT
        for i, value in enumerate(values):
            if isinstance(value, (int, float)):
                w = value / top * width
                parts.append(
                    f"<rect x='{x:.1f}' y='{y}' width='{w:.1f}' height='{BAR - 2}'"
                    f" fill='{color_of(i)}'/>"
                )
                if not stacked:
                    parts.append(words(x + w + 5, y + 12, form(value), 11))
                x += w if stacked else 0
            elif value:
                parts.append(words(LEFT + 5, y + 12, value, 11, "start", "#777"))
            y += 0 if stacked else BAR
        y += (BAR if stacked else 0) + 10
    return page(TOP + height + 30, title, parts)


def scatter(title, x_name, y_name, points, inside, ticks):
    """Points (x, y, series) on equal logarithmic axes, with the line y = x.

    A point is hollow if inside(x, y) does not hold."""
    size, left, low = 420, 70, 44
    first, last = math.log(ticks[0]), math.log(ticks[-1])
    place = lambda value: (math.log(value) - first) / (last - first) * size
    at = lambda x, y: (left + place(x), low + size - place(y))
    names = list(dict.fromkeys(series for _, _, series in points))
    parts = []
    for tick in ticks:
        x, y = at(tick, tick)
        parts += [
            f"<line x1='{left}' x2='{left + size}' y1='{y:.0f}' y2='{y:.0f}' stroke='#e4e4e4'/>",
            words(left - 6, y + 4, f"{tick:g}", 11, "end", "#555"),
            f"<line x1='{x:.0f}' x2='{x:.0f}' y1='{low}' y2='{low + size}' stroke='#e4e4e4'/>",
            words(x, low + size + 16, f"{tick:g}", 11, "middle", "#555"),
        ]
    (x0, y0), (x1, y1) = at(ticks[0], ticks[0]), at(ticks[-1], ticks[-1])
    parts.append(
        f"<line x1='{x0:.0f}' y1='{y0:.0f}' x2='{x1:.0f}' y2='{y1:.0f}' stroke='#2f6db3'/>"
    )
    for x, y, series in points:
        px, py = at(x, y)
        stroke = color_of(names.index(series))
        fill = stroke if inside(x, y) else "#fff"
        parts.append(f"<circle cx='{px:.1f}' cy='{py:.1f}' r='4' stroke='{stroke}' fill='{fill}'/>")
    for i, name in enumerate(names):
        parts += [
            f"<circle cx='{left + size + 20}' cy='{low + 20 + 20 * i}' r='4'"
            f" fill='{color_of(i)}'/>",
            words(left + size + 30, low + 24 + 20 * i, name),
        ]
    parts += [words(left + size / 2, low + size + 36, x_name, 12, "middle"), words(10, 38, y_name)]
    return page(low + size + 50, title, parts)


def lines(title, x_name, series):
    """Lines of (name, [(x, y)...]), on linear axes that start at 0."""
    left, low, wide, high = 60, TOP + 14, WIDTH - 90, 280
    right, top = (nice(max(point[axis] for _, points in series for point in points))
                  for axis in (0, 1))
    at = lambda x, y: (left + x / right * wide, low + high - y / top * high)
    parts = legend([name for name, _ in series], TOP - 4)
    for i in range(6):
        x, y = at(right * i / 5, top * i / 5)
        parts += [
            f"<line x1='{left}' x2='{left + wide}' y1='{y:.0f}' y2='{y:.0f}' stroke='#e4e4e4'/>",
            words(left - 6, y + 4, f"{top * i / 5:g}", 11, "end", "#555"),
            words(x, low + high + 16, f"{right * i / 5:g}", 11, "middle", "#555"),
        ]
    for i, (_, points) in enumerate(series):
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points)
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='{color_of(i)}' stroke-width='1.5'/>"
        )
    parts.append(words(left + wide / 2, low + high + 34, x_name, 12, "middle"))
    return page(low + high + 46, title, parts)
