// The chosen design: its numbers, its command, its choices, and the bits of its layers.

const applyCommand = (trial) => `${data.command} --apply ${trial}`;

function copyButton(text, label) {
  const button = element("button", { type: "button", class: "copy", "aria-label": label }, "Copy");
  button.addEventListener("click", () => copy(button, text));
  return button;
}
async function copy(button, text) {
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyBySelection(text) ? "Copied" : "Not allowed";
  }
  button.textContent = done;
  say(`${done}: ${text}`);
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
function copyBySelection(text) {
  const area = element("textarea", { class: "hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

function showDesign(i) {
  const body = byId("design-body");
  if (i === null) {
    body.replaceChildren(element("p", {}, "No design is chosen yet: there is none on the front."));
    return;
  }
  const trial = data.number[i];
  byId("design-number").value = trial;
  byId("design-note").textContent = kindText[kindOf(i)];
  byId("design").dataset.trial = trial;
  const command = element("div", { class: "snippet" }, element("pre", { tabindex: 0 }, element("code", {}, applyCommand(trial))),
    copyButton(applyCommand(trial), `Copy the command that makes trial ${trial}`));
  body.replaceChildren(designMetrics(i), element("h3", {}, "Make it"), command, ...designChoices(i));
}

function designMetrics(i) {
  const withBaseline = data.metrics.some(({ baselines }) => baselines[0] !== null);
  const rows = data.metrics.map((m) => {
    const cells = [m.name, right(measured(m, m.values[i]))];
    return withBaseline ? [...cells, right(number(m.baselines[0], m.decimals))] : cells;
  });
  const head = ["metric", rightHead("design"), ...(withBaseline ? [rightHead("baseline")] : [])];
  return tableOf(`Metrics of trial ${data.number[i]}`, head, rows);
}

function designChoices(i) {
  const own = ownChoices(i);
  const told = data.configs_of_all || onFront.has(i) || i === data.chosen;
  const rows = (pairs) => pairs.map(([name, value]) => [shortKey(name), right(plain(value))]);
  const first = tableOf("Choices of this design", ["what differs", rightHead("value")], rows(own));
  first.classList.add("long");
  const whole = config.map(({ name, values }) => [name, values[i]]).filter(([, value]) => value !== null);
  const all = tableOf("The whole config", ["key", rightHead("value")], rows(whole));
  all.classList.add("long");
  return [element("h3", {}, "Choices"), own.length ? first : element("p", {}, "Nothing differs between the designs."),
    told ? folded("The whole config", all) : element("p", { class: "quiet" }, "Its whole config is in search.json.")];
}

// layers

const layerNames = [...new Set(Object.keys(data.layers).map((key) => key.slice(0, key.lastIndexOf("/"))))];
const layerColumns = Object.fromEntries(Object.entries(data.layers).map(([key, number]) => [key, column(number)]));
const layerFact = (layer, fact, i) => layerColumns[`${layer}/${fact}`]?.[i] ?? null;

function showLayers(i) {
  const body = byId("layers-body");
  const layers = i === null ? [] : layerNames.filter((layer) =>
    layerFact(layer, "format", i) !== null || layerFact(layer, "weight_bits", i) !== null || layerFact(layer, "data_in_bits", i) !== null);
  if (!layers.length) {
    body.replaceChildren(element("p", {}, "The chosen design has no layers whose bits are known."));
    return;
  }
  const bits = layers.flatMap((layer) => ["data_in_bits", "weight_bits"].map((fact) => layerFact(layer, fact, i)));
  const most = Math.max(8, ...bits);
  const rows = layers.map((layer) => [layerHead(layer, i),
    bitCell(layerFact(layer, "data_in_bits", i), most, "second"), bitCell(layerFact(layer, "weight_bits", i), most, "first")]);
  const table = tableOf(`Bits of each layer of trial ${data.number[i]}`, ["layer", "data in, bits", "weights, bits"], rows, "bars widths");
  body.replaceChildren(element("p", { class: "quiet" }, `Trial ${data.number[i]}; bars are on a scale of ${number(most, 0)} bits.`), table);
}
function layerHead(layer, i) {
  const facts = ["op", "format"].map((fact) => layerFact(layer, fact, i)).filter((fact) => fact !== null);
  return element("th", { scope: "row" }, layer, element("span", { class: "quiet" }, facts.map(plain).join(", ")));
}
function bitCell(value, most, kind) {
  const bar = drawn("rect", { class: kind, width: `${((value ?? 0) / most) * 100}%`, height: "100%" });
  const text = value === null ? absent : number(value, Number.isInteger(value) ? 0 : 2);
  const picture = drawn("svg", { class: "bar", "aria-hidden": "true" }, bar);
  return element("td", {}, element("div", {}, picture, element("span", { class: "n" }, text)));
}

function startDesign() {
  listeners.push(showDesign, showLayers, (i) => say(`Chosen: trial ${data.number[i]}`));
  byId("design-number").addEventListener("change", (event) => {
    const i = data.number.indexOf(Number(event.target.value));
    if (event.target.value !== "" && i >= 0) choose(i);
    else byId("design-note").textContent = `there is no completed trial ${event.target.value}`;
  });
  showDesign(shown.design);
  showLayers(shown.design);
}
