// What a reader may do on the page: weigh shots, choose grids, take tables and figures away. Vega-Lite draws; this
// script only chooses the numbers it draws. All text goes in as text, never as markup.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const at = (id) => document.getElementById(id);
  const all = (pattern) => [...document.querySelectorAll(pattern)];
  const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;
  // Two decimals, ties away from zero, as format_decimals in show/summaries.py.
  const two = (value) => (value === null || value === undefined ? "" : (value + 1e-9 * Math.sign(value)).toFixed(2));
  const signed = (value) => (value < 0 ? "\u2212" : "+") + two(Math.abs(value));
  const pictures = {...page.specs};
  const MEASURES = ["accuracy", "ci95", "ci95_classes"];

  // ---- drawing: the specification as it is, arranged for the room there is
  function fitted(spec, room) {
    const copy = structuredClone(spec);
    copy.config = {...copy.config, font: "system-ui, sans-serif"};
    if (copy.columns && copy.facet) {
      const inner = copy.spec.width ?? 200;
      copy.columns = Math.max(1, Math.min(copy.columns, Math.floor(room / (inner + 45))));
    }
    if (room < (copy.facet ? 700 : 480)) copy.config.legend = {...copy.config.legend, orient: "bottom", columns: room < 480 ? 2 : 4, labelLimit: 300};
    return copy;
  }
  const views = new Map();
  async function draw(place, spec) {
    views.get(place)?.finalize();
    const {view} = await vegaEmbed(place, fitted(spec, place.clientWidth), {actions: false, renderer: "svg"});
    views.set(place, view);
    place.querySelector("svg").setAttribute("aria-hidden", "true"); // the place has a label, and a table behind it
    return view;
  }

  // ---- the answer: expected accuracy under the reader's distribution of shots; report/answer.py has the words
  const sliders = all("#shots input[type=range]");
  function weights() {
    const given = Object.fromEntries(sliders.map((slider) => [slider.dataset.shot, Number(slider.value)]));
    const none = Object.values(given).every((weight) => weight === 0);
    return none ? Object.fromEntries(Object.keys(given).map((shot) => [shot, 1])) : given;
  }
  const words = (name, values) => page.words[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
  // The mean of values by shot; null where a shot that counts has no value.
  function weighted(values, given) {
    const counted = Object.entries(given).filter(([, weight]) => weight > 0);
    if (counted.some(([shot]) => (values[shot] ?? null) === null)) return null;
    const total = counted.reduce((sum, [, weight]) => sum + weight, 0);
    return counted.reduce((sum, [shot, weight]) => sum + values[shot] * weight, 0) / total;
  }
  function expected(choice, given) {
    const byShot = (name) => Object.fromEntries(Object.entries(choice.cells).map(([shot, cell]) => [shot, cell[name]]));
    return {...choice, ...Object.fromEntries(MEASURES.map((name) => [name, weighted(byShot(name), given)]))};
  }
  function halfWidth(one, other, given) {
    const pairs = page.paired[setting()] ?? {};
    return weighted(pairs[one]?.[other] ?? pairs[other]?.[one] ?? {}, given);
  }
  const setting = () => at("setting")?.value ?? page.setting;
  function ranked() {
    const offered = page.choices.filter((choice) => choice.setting === setting());
    const measured = offered.map((choice) => expected(choice, weights())).filter((one) => one.accuracy !== null);
    return {offered, measured: measured.sort((one, other) => other.accuracy - one.accuracy)};
  }
  function slots([best, ...others]) {
    const [robust, sensitivity] = page.robust[setting()];
    if (!best) return {robust, sensitivity, best: "No choice", accuracy: words("none"), margin: ""};
    let accuracy = words("accuracy", {at: "the shots you expect", value: two(best.accuracy)});
    for (const name of ["ci95", "ci95_classes"]) if (best[name] !== null) accuracy += words(name, {value: two(best[name])});
    const rival = others.find((other) => other.head !== best.head) ?? others[0];
    if (!rival) return {robust, sensitivity, best: best.label, accuracy, margin: ""};
    const gap = best.accuracy - rival.accuracy;
    const alone = best.ci95 === null || rival.ci95 === null ? null : Math.hypot(best.ci95, rival.ci95);
    const paired = halfWidth(best.label, rival.label, weights());
    const within = paired ?? alone;
    const points = two(gap) + (within === null ? "" : words("within", {value: two(within)}) + (paired === null ? words("unpaired") : ""));
    const close = within !== null && gap < within ? words("close") : "";
    const what = words(rival.head !== best.head ? "another" : "next");
    return {robust, sensitivity, best: best.label, accuracy, margin: words("margin", {points, rival: rival.label, what, close})};
  }
  let ranking = null;
  async function answer(redraw = false) {
    const given = weights();
    const total = Object.values(given).reduce((sum, weight) => sum + weight, 0);
    for (const slider of sliders) {
      const share = `${Math.round((100 * given[slider.dataset.shot]) / total)}%`;
      at(slider.dataset.share).textContent = share;
      slider.setAttribute("aria-valuetext", share);
    }
    for (const button of all("[data-preset]")) {
      const same = sliders.every((s) => given[s.dataset.shot] > 0 === inPreset(button.dataset.preset, s.dataset.shot));
      const equal = new Set(Object.values(given).filter(Boolean)).size === 1;
      button.setAttribute("aria-pressed", String(same && equal));
    }
    const {offered, measured} = ranked();
    for (const [name, text] of Object.entries(slots(measured))) document.querySelector(`[data-slot=${name}]`).textContent = text;
    at("unmeasured").hidden = offered.length === measured.length;
    at("unmeasured").textContent = `${offered.length - measured.length} of ${offered.length} choices were not measured at all of these shots and are left out.`;
    at("ranked").textContent = measured.length > page.top ? `the first ${page.top} of ${measured.length}; dots are expected accuracies, bars 95 % intervals` : "dots are expected accuracies, bars 95 % intervals";
    const rows = measured.map((one) => [one.label, two(one.accuracy), two(one.ci95), two(one.ci95_classes)]);
    at("ranking-table").tBodies[0].replaceChildren(...rows.map((cells) => line(cells)));
    const margin = (one) => one[chosen("interval") ?? "ci95"] ?? 0;
    const values = measured.slice(0, page.top).map(({label, name, accuracy, ...one}) => ({label, name, accuracy, low: accuracy - margin(one), high: accuracy + margin(one)}));
    at("ranking-chart").hidden = values.length === 0;
    if (values.length === 0) return;
    const spec = {...page.specs.ranking, datasets: {ranking: values}};
    pictures.ranking = {...spec, width: 420};
    if (redraw || !ranking) ranking = draw(at("ranking-chart"), spec);
    else (await ranking).data("ranking", values).resize().runAsync();
    await ranking;
  }
  function inPreset(preset, shot) {
    return {any: true, few: shot <= 4, many: shot >= 8}[preset] ?? String(shot) === preset;
  }
  function line(cells) {
    const row = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.className = "value";
      else cell.scope = "row";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  }

  // ---- two grids side by side
  let asked = 0;
  async function compare() {
    const mine = ++asked; // a reader may choose faster than figures are drawn: the last choice stands
    const view = chosen("view");
    const two_grids = ["a", "b"].map((side) => [side, page.grids[at(`grid-${side}`).value]]);
    const drawn = [];
    for (const [side, grid] of two_grids) {
      at(`about-${side}`).textContent = grid.about;
      const values = grid.views[view];
      if (values) {
        const chart = page.charts[`${view} ${grid.shots}`];
        const title = {...chart.title, text: grid.title, subtitle: `${view}, ${grid.score}`};
        const spec = {...chart, title, data: {values}};
        drawn.push(spec);
        await draw(at(`chart-${side}`), spec);
        if (mine !== asked) return;
      } else {
        at(`chart-${side}`).replaceChildren(Object.assign(document.createElement("p"), {textContent: `No ${view} here: ${grid.why}. The accuracies that were measured are under “accuracy”.`}));
      }
    }
    pictures.grids = drawn.length ? {hconcat: drawn.map(({config, ...spec}) => spec), spacing: 30, config: drawn[0].config, $schema: drawn[0].$schema} : null;
    const [[, a], [, b]] = two_grids;
    const shots = [...new Set([...Object.keys(a.means), ...Object.keys(b.means)])].sort((x, y) => x - y);
    const row = (name, one, other) => [name, two(one), two(other), one == null || other == null ? "" : signed(other - one)];
    const rows = [row("sensitivity", a.sensitivity, b.sensitivity), ...shots.map((shot) => row(`mean at ${isNaN(shot) ? shot : `${shot}-shot`}`, a.means[shot], b.means[shot]))];
    const head = line(["points of accuracy", `left: ${a.name}`, `right: ${b.name}`, "right minus left"]);
    at("comparison").tHead.replaceChildren(head);
    at("comparison").tBodies[0].replaceChildren(...rows.map((cells) => line(cells)));
    const copies = two_grids.map(([side, grid]) => {
      const copy = at(`table-${grid.id}`).parentElement.cloneNode(true);
      copy.querySelector("table").id = `copy-${side}`;
      copy.setAttribute("aria-label", `${side === "a" ? "Left" : "Right"}: ${copy.getAttribute("aria-label")}`);
      return copy;
    });
    at("tables-of-both").replaceChildren(...copies);
  }

  // ---- take away
  function save(name, address) {
    const link = Object.assign(document.createElement("a"), {href: address, download: name});
    document.body.append(link);
    link.click();
    link.remove();
  }
  function saveText(name, text) {
    const address = URL.createObjectURL(new Blob([text], {type: "text/plain;charset=utf-8"}));
    save(name, address);
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
  async function savePicture(name, format) {
    if (!pictures[name]) return;
    const place = Object.assign(document.createElement("div"), {className: "out"});
    document.body.append(place);
    try {
      const {view} = await vegaEmbed(place, pictures[name], {actions: false, renderer: "svg"});
      save(`${name}.${format}`, await view.toImageURL(format, format === "png" ? 2 : 1));
      view.finalize();
    } finally {
      place.remove();
    }
  }
  function quoted(cell) {
    return /[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
  }
  document.addEventListener("click", ({target}) => {
    const button = target.closest?.("button");
    if (!button) return;
    const {file, picture, format, preset} = button.dataset;
    if (file) saveText(file, page.files[file]);
    if (picture) savePicture(picture, format);
    if (preset) {
      for (const slider of sliders) slider.value = inPreset(preset, slider.dataset.shot) ? 5 : 0;
      answer();
    }
    if (button.id === "ranking-csv") {
      const rows = [...at("ranking-table").rows].map((row) => [...row.cells].map((cell) => quoted(cell.textContent)).join(","));
      saveText("ranking.csv", rows.join("\n") + "\n");
    }
  });

  // ---- print: open the tables behind the figures, and close them again
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details.behind:not([open])");
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((one) => (one.open = false)));

  // ---- start, and again when the width changes
  async function drawAll() {
    await answer(true);
    await compare();
    for (const place of all("[data-figure]")) await draw(place, page.specs[place.dataset.figure]);
  }
  at("shots").addEventListener("input", () => answer());
  at("shots").addEventListener("submit", (event) => event.preventDefault());
  at("setting")?.addEventListener("change", () => answer());
  at("grids").addEventListener("change", compare);
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (width !== innerWidth) drawAll();
      width = innerWidth;
    }, 200);
  });
  drawAll().then(() => (document.documentElement.dataset.drawn = "yes"));
})();
