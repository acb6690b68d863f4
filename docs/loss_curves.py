"""Draws the losses of several runs into one picture: loss_curves.py OUT.svg LABEL=metrics.jsonl ..."""
import json
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 860, 460, 60, 46, 46, 20
COLOURS = ["#9a9a9a", "#d1495b", "#00798c", "#edae49", "#5f4bb6", "#2e933c"]
DASHES = ["", "10 14", "10 14", "3 9", "3 9", "1 6"]
OFFSETS = [0, 0, 12, 0, 6, 0]


def losses(path):
    with open(path) as lines:
        return [(entry["step"], entry["loss"]) for entry in map(json.loads, lines)]


def main(out, *runs):
    curves = [(run.split("=", 1)[0], losses(run.split("=", 1)[1])) for run in runs]
    last = max(step for _, curve in curves for step, _ in curve)
    low = min(loss for _, curve in curves for _, loss in curve)
    high = max(loss for _, curve in curves for _, loss in curve)
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for tick in range(int(low) + 1, int(high) + 1):
        svg.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/><text x="{LEFT - 10}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for step in range(0, last + 1, 50):
        svg.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    svg.append(f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">loss, nats per token</text>')
    base = dict(curves[0][1])
    for i, (label, curve) in enumerate(curves):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        width = 7 if i == 0 else 2.5  # the first one broad below, the others dashed on top of it
        svg.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" stroke-width="{width}" stroke-dasharray="{DASHES[i]}" stroke-dashoffset="{OFFSETS[i]}"/>')
        off = max(abs(loss - base[step]) / base[step] for step, loss in curve)
        said = "" if i == 0 else ": the same bits" if off == 0 else f": within {off:.0e}"
        svg.append(f'<path d="M{WIDTH - 390} {TOP + 20 * i}h34" stroke="{COLOURS[i]}" stroke-width="{width}" stroke-dasharray="{DASHES[i]}"/>'
                   f'<text x="{WIDTH - 346}" y="{TOP + 4 + 20 * i}">{label}{said}</text>')
    svg.append("</svg>")
    with open(out, "w") as file:
        file.write("\n".join(svg) + "\n")


main(*sys.argv[1:])
