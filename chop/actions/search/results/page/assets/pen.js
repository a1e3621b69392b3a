// Charts as pictures: a canvas for thousands of marks under an SVG for the rest, and their download.

// A canvas that remembers its marks, so that they can be saved as an SVG.
class Pen {
  constructor(canvas, ratio) {
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.marks = [];
    this.paths = new Map();
  }

  // `paint`: fill, stroke, width, alpha and dash
  mark(d, [left, top], paint) {
    this.marks.push({ d, left, top, paint });
    const pen = this.context;
    let path = this.paths.get(d);
    if (!path) this.paths.set(d, (path = new Path2D(d)));
    pen.globalAlpha = paint.alpha ?? 1;
    pen.translate(left, top);
    if (paint.fill) {
      pen.fillStyle = paint.fill;
      pen.fill(path);
    }
    if (paint.stroke) {
      pen.strokeStyle = paint.stroke;
      pen.lineWidth = paint.width ?? 1;
      pen.setLineDash(paint.dash ?? []);
      pen.stroke(path);
    }
    pen.translate(-left, -top);
  }

  elements() {
    return this.marks.map(({ d, left, top, paint }) => drawn("path", {
      d, fill: paint.fill ?? "none", opacity: +(paint.alpha ?? 1).toFixed(3),
      ...(left || top ? { transform: `translate(${left.toFixed(1)} ${top.toFixed(1)})` } : {}),
      ...(paint.stroke ? { stroke: paint.stroke, "stroke-width": paint.width ?? 1 } : {}),
      ...(paint.dash?.length ? { "stroke-dasharray": paint.dash.join(" ") } : {}),
    }));
  }
}

function stage(box, height) {
  const width = Math.max(box.clientWidth, 200);
  const ratio = window.devicePixelRatio || 1;
  const canvas = element("canvas", { width: width * ratio, height: height * ratio, "aria-hidden": "true" });
  canvas.style.width = `${width}px`;
  canvas.style.height = box.style.height = `${height}px`;
  const svg = drawn("svg", { width, height });
  box.replaceChildren(canvas, svg);
  const pen = new Pen(canvas, ratio);
  pictures.set(box, { pen, svg, width, height });
  return { width, height, pen, svg };
}
const pictures = new Map();

// downloads

const fileName = (what) => `${document.title.replace(/[^\p{L}\p{N}]+/gu, "_").replace(/^_+|_+$/g, "").slice(0, 60)}_${what}`;
function download(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say(`Saved ${name}`);
}

const copiedStyles = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "opacity", "paint-order"];
function styledCopy(svg) {
  const copy = svg.cloneNode(true);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((each, k) => {
    const style = getComputedStyle(originals[k]);
    for (const name of copiedStyles) each.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role", "aria-pressed", "style"]) each.removeAttribute(name);
  });
  return copy;
}
function svgOf(box) {
  const { pen, svg, width, height } = pictures.get(box);
  const margin = 16;
  const inner = drawn("g", { transform: `translate(${margin} ${margin})` }, ...pen.elements(), ...styledCopy(svg).childNodes);
  const whole = drawn("svg", { width: width + 2 * margin, height: height + 2 * margin,
    "font-family": "system-ui, sans-serif", viewBox: `0 0 ${width + 2 * margin} ${height + 2 * margin}` },
  drawn("title", {}, box.getAttribute("aria-label") ?? document.title),
  drawn("rect", { width: "100%", height: "100%", fill: colour("paper") }), inner);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(whole)}\n`;
}
const saveSvg = (box, what) => download(fileName(`${what}.svg`), "image/svg+xml", svgOf(box));

// Text that a spreadsheet would run as a formula starts with an apostrophe.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
const csvText = (rows) => rows.map((row) => row.map(csvCell).join(",") + "\r\n").join("");
