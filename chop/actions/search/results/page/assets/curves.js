// The best so far over trials: staircases, each with its steps as a table.

function drawCurve(box, curve, decimals) {
  const { width, height, svg } = stage(box, 230);
  const area = { left: 0, right: width - 10, top: 24, bottom: height - 46 };
  const values = curve.points.map(([, value]) => value);
  const y = axis(values, area.bottom, area.top, { guests: [curve.baseline] });
  area.left = labelRoom(ticks(y, { upright: true }));
  const x = { low: 0, high: Math.max(1, data.trials - 1), length: area.right - area.left };
  x.place = (value) => area.left + (value / x.high) * x.length;
  axes(svg, x, y, area, { x: "trial", y: "" }, { x: true });
  if (y.sees(curve.baseline)) {
    const at = y.place(curve.baseline);
    svg.append(drawn("line", { class: "baseline", x1: area.left, x2: area.right, y1: at, y2: at }));
    const above = y.place(values[values.length - 1]) >= at; // the line ends below it
    svg.append(haloed({ x: area.right, y: above ? at - 6 : at + 15, "text-anchor": "end" },
      `baseline ${number(curve.baseline, decimals)}`));
  }
  const path = curve.points.map(([trial, value], k) =>
    k ? `H${x.place(trial)}V${y.place(value)}` : `M${x.place(trial)},${y.place(value)}`);
  svg.insertBefore(drawn("path", { class: "line", d: `${path.join("")}H${area.right}` }), svg.querySelector(".baseline"));
}

function curvePanel(curve) {
  const decimals = metricNamed(curve.title)?.decimals ?? 4;
  const last = curve.points[curve.points.length - 1];
  const box = element("div", { class: "chart", role: "img", "aria-label": `${curve.title} over trials: ` +
    `${number(curve.points[0][1], decimals)} at first, ${number(last[1], decimals)} from trial ${last[0]} on` });
  const beside = curve.baseline === null ? "" : `; baseline ${number(curve.baseline, decimals)}`;
  const rows = curve.points.map(([trial, value]) => [String(trial), right(number(value, decimals))]);
  const steps = tableOf(`Steps of ${curve.title}`, ["trial", rightHead(curve.title)], rows);
  steps.classList.add("long");
  const panel = element("div", {}, element("h3", {}, curve.title), element("p", { class: "quiet" },
    `${curve.about}; ${number(last[1], decimals)} since trial ${last[0]}${beside}`), box, folded("As a table", steps));
  keepDrawn(box, () => drawCurve(box, curve, decimals));
  return panel;
}

function startCurves() {
  const drawable = data.curves.filter(({ points }) => points.length);
  byId("curves").replaceChildren(...drawable.map(curvePanel));
  if (!drawable.length) byId("curves").append(element("p", {}, "No trial has been completed within the constraints."));
}
