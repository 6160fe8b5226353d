// What the pages do in a browser: draw charts when they come into view, fill their tables, filter lists, compare runs.
// Data comes by script tags that call mtpbench.put: pages opened from a file may not fetch.
const mtpbench = (() => {
  "use strict";
  const kept = new Map(), asked = new Map();
  const root = document.documentElement.dataset.root || "";
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function put(key, value) { kept.set(key, value); }

  // Only file names that the site itself wrote are passed here, never text of the address.
  function load(key, file) {
    if (!asked.has(file)) {
      asked.set(file, new Promise((done, failed) => {
        const script = document.createElement("script");
        script.src = root + file.split("/").map(encodeURIComponent).join("/");
        script.onload = done;
        script.onerror = () => failed(new Error(`${file} is missing: publish the site again`));
        document.head.append(script);
      }));
    }
    return asked.get(file).then(() => kept.get(key));
  }

  function element(tag, content = "", attributes = {}) {
    const made = document.createElement(tag);
    if (content !== "") made.textContent = content;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  const number = (value, digits = 4) => value == null ? "–" : String(Number(value.toPrecision(digits)));
  const percent = (ratio) => `${ratio >= 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)} %`;
  const DAY = 86400e3, stamp = (day) => Date.parse(day + "T00:00:00Z");

  // ---- charts: data and what the page asks for → datasets of a specification, and the same as a table

  const builders = {
    async nights(asks) {
      const [site, data] = await Promise.all([
        load("nights:" + asks.scenario, `data/scenario/${asks.scenario}/nights.js`),
        load(`nights:${asks.scenario}:${asks.metric}`, `data/scenario/${asks.scenario}/${asks.metric}.js`),
      ]);
      const days = site.days.length, last = stamp(site.days.at(-1)), span = Number(document.querySelector("#span")?.value || 0);
      const first = Math.max(stamp(site.days[0]), span ? last - (span - 1) * DAY : 0);
      const relative = days > 2 && document.querySelector("#scale")?.value === "relative", say = (value) => `${number(value)} ${data.unit}`;
      const series = data.series.filter((s) => s.tp === Number(asks.tp) && s.level === asks.level);
      const nights = [], bands = [], marks = [], odd = [], cells = new Map();
      let part = 0;
      for (const one of series) {
        let before = null;
        const put = scaled(relative, one.values.filter((v, n) => v != null && stamp(site.days[one.first + n]) >= first));
        one.values.forEach((value, n) => {
          const day = site.days[one.first + n], t = stamp(day);
          if (value == null || t < first) return;
          if (before !== null && t - before > site.gap * DAY) part++;
          before = t;
          nights.push({ t, day, value: put(value), shown: say(value), arm: one.arm, colour: one.colour, part: `${part}`, host: one.host });
          cells.set(day, { ...cells.get(day), [one.arm]: value });
        });
        for (const [from, to, low, high] of one.bands) {
          if (stamp(to) < first) continue;
          for (const t of [Math.max(first, stamp(from)), stamp(to)]) {
            bands.push({ t, low: put(low), high: put(high), colour: one.colour, part: `${part} ${from}` });
          }
        }
        for (const change of one.changes) {
          if (stamp(change.day) >= first) {
            marks.push({ ...change, value: put(change.value), shown: say(change.value), t: stamp(change.day), arm: one.arm, colour: one.colour });
          }
        }
        part++;
      }
      for (const one of data.quarantined) {
        if (one.tp === Number(asks.tp) && one.level === asks.level && stamp(one.day) >= first) {
          odd.push({ ...one, shown: say(one.value), t: stamp(one.day) });
        }
      }
      // A night in quarantine must not squeeze the others: it stands at the edge.
      const [low, high] = nights.reduce(([a, b], { value }) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
      for (const one of odd) one.value = relative ? high : Math.min(high, Math.max(low, one.value));
      const events = site.events.filter((e) => stamp(e.day) >= first).map((e) => ({ ...e, t: stamp(e.day) }));
      const arms = [...new Set(series.map((s) => s.arm))];
      const rows = [...cells].sort((a, b) => (a[0] < b[0] ? 1 : -1))
        .map(([day, of]) => [day, ...arms.map((arm) => number(of[arm]))]);
      return {
        datasets: { nights, bands, marks, odd, events },
        change: days < 3 ? fewNights(site.days.map(stamp)) : undefined,
        tokens: { __FROM__: first - (days < 3) * DAY, __TO__: last + (days < 3) * DAY, __UNIT__: relative ? "% off its median" : data.unit },
        table: { head: ["night", ...arms.map((arm) => `${arm}, ${data.unit}`)], rows },
        name: `${asks.scenario}-${asks.metric}-tp${asks.tp}-${asks.level}`,
      };
    },

    async load(asks) { return overLoad(await points(asks), asks); },

    async given(asks) {
      const { spec, head, rows } = await load(asks.key, asks.file);
      return { spec, datasets: {}, tokens: {}, table: { head, rows }, name: asks.key.replace(/[^\w.-]+/g, "-") };
    },

    async frontier(asks) {
      const rows = await points(asks);
      const [x, y] = ["interactivity", asks.metric], title = meta(y);
      const both = rows.filter((r) => r.values[x] && r.values[y]);
      const shown = both.map((r) => ({
        series: r.series, colour: r.colour, load: r.load, label: r.label, x: r.values[x][0], xlow: r.values[x][1],
        xhigh: r.values[x][2], y: r.values[y][0], ylow: r.values[y][1], yhigh: r.values[y][2],
      }));
      return {
        datasets: { points: shown },
        tokens: { __UNIT__: `${title.label}, ${title.unit}` },
        table: {
          head: ["arm", "load", "tokens/s for one user", "lowest", "highest", title.unit, "lowest", "highest"],
          rows: shown.map((r) => [r.series, r.label, ...[r.x, r.xlow, r.xhigh, r.y, r.ylow, r.yhigh].map((v) => number(v))]),
        },
        name: `${asks.key.replace(/[^\w.-]+/g, "-")}-frontier`,
      };
    },
  };

  // One night or two make no line: dots to be seen, and each day named once.
  const fewNights = (days) => (spec) => {
    for (const layer of spec.layer) {
      layer.encoding.x.axis = { ...layer.encoding.x.axis, values: days };
      if (layer.mark.type === "circle") layer.mark.size = 60;
    }
  };

  // As it is, or in percent off the median of the nights shown: small changes of unlike arms side by side.
  function scaled(relative, values) {
    const middle = [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
    return relative && middle ? (value) => 100 * (value / middle - 1) : (value) => value;
  }

  const meta = (metric) => kept.get("metrics")[metric];

  async function points(asks) {
    await load("specs", "assets/specs.js");
    const run = await load(asks.key, asks.file);
    return run.lines.filter((l) => asks.tp === undefined || l.tp === Number(asks.tp))
      .filter((l) => !l.factor)
      .filter((l) => asks.input === undefined || l.input === Number(asks.input))
      .map((l) => ({ ...l, series: run.several ? `${l.arm}, TP${l.tp}` : l.arm, values: named(run, l) }));
  }

  const named = (run, line) => Object.fromEntries(run.metrics.map((name, n) => [name, line.values[n]]));

  function overLoad(rows, asks) {
    const { label, unit } = meta(asks.metric);
    const shown = rows.filter((r) => r.values[asks.metric]).map((r) => {
      const [value, low, high] = r.values[asks.metric];
      return { series: r.series, colour: r.colour, dash: r.dash || "a", load: r.load, label: r.label, value, low, high };
    });
    const open = rows.some((r) => r.open), levels = [...new Set(shown.map((r) => r.load))].sort((a, b) => a - b);
    return {
      datasets: { points: shown },
      tokens: { __UNIT__: unit, __LEVELS__: levels },
      kind: open ? "load_open" : "load",
      table: {
        head: ["arm", "load", `${label}, ${unit}`, "lowest launch", "highest launch"],
        rows: shown.map((r) => [r.series, r.label, number(r.value), number(r.low), number(r.high)]),
      },
      name: `${(asks.key || asks.metric).replace(/[^\w.-]+/g, "-")}-${asks.metric}`,
    };
  }

  function fill(spec, made, description) {
    let json = JSON.stringify(spec);
    for (const [token, value] of Object.entries(made.tokens)) {
      const put = JSON.stringify(value);
      json = json.replaceAll(JSON.stringify(token), () => (Array.isArray(value) ? put.slice(1, -1) : put));
    }
    const filled = JSON.parse(json);
    filled.datasets = { ...filled.datasets, ...made.datasets };
    if (made.change) made.change(filled);
    if (!made.spec) filled.layer = filled.layer.filter((layer) => made.datasets[(layer.data || filled.data).name].length);
    filled.description = description;
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
    filled.config = { background: "transparent", view: { stroke: null }, font: "system-ui, sans-serif",
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: 500 },
      legend: { labelColor: ink, titleColor: ink }, header: { labelColor: ink, titleColor: ink }, text: { color: ink } };
    return filled;
  }

  async function draw(figure) {
    const asks = figure.dataset, place = figure.querySelector(".drawing");
    try {
      const specs = await load("specs", "assets/specs.js");
      const made = await (figure.builder || builders[asks.spec])(asks);
      figure.made = made;
      if (!made.spec && !Object.values(made.datasets).some((set) => set.length)) {
        place.replaceChildren(element("p", "No values in these nights.", { class: "soft" }));
      } else {
        await load("vega", "assets/vega.js");
        const caption = figure.querySelector("figcaption").textContent;
        const result = await vegaEmbed(place, fill(made.spec || specs[made.kind || asks.spec], made, caption), { renderer: "svg", actions: false });
        figure.view = result.view;
      }
      figure.dataset.drawn = "yes";
      const open = figure.querySelector("details[open]");
      if (open) showTable(figure, open);
    } catch (error) {
      place.replaceChildren(element("p", `This chart can't be drawn: ${error.message}`, { class: "soft" }));
      console.error(error);
    }
  }

  async function showTable(figure, details) {
    if (!figure.made) await draw(figure);
    if (!figure.made) return;
    const { head, rows } = figure.made.table;
    details.querySelector(".holder")?.remove();
    const holder = element("div", "", { class: "holder" });
    const csv = element("button", "Download CSV", { type: "button" });
    csv.onclick = () => save(`${figure.made.name}.csv`, "text/csv", [head, ...rows].map((r) => r.map(quoted).join(",")).join("\n"));
    holder.append(csv);
    if (figure.view) {
      const svg = element("button", "Download SVG", { type: "button" });
      svg.onclick = async () => save(`${figure.made.name}.svg`, "image/svg+xml", await figure.view.toSVG());
      holder.append(" ", svg);
    }
    holder.append(tableOf(head, rows, figure.querySelector("figcaption").firstChild.textContent));
    details.append(holder);
  }

  function tableOf(head, rows, caption, cell = (value) => String(value)) {
    const table = element("table"), top = element("tr");
    table.append(element("caption", caption));
    head.forEach((title, n) => top.append(element("th", title, { scope: "col", ...(n > 1 ? { class: "right" } : {}) })));
    const thead = element("thead"), body = element("tbody");
    thead.append(top);
    for (const row of rows) {
      const line = element("tr");
      row.forEach((value, n) => {
        const made = element(n ? "td" : "th", cell(value), n ? (n > 1 ? { class: "right" } : {}) : { scope: "row" });
        line.append(made);
      });
      body.append(line);
    }
    table.append(thead, body);
    const scroll = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
    scroll.append(table);
    return scroll;
  }

  // A cell that a spreadsheet would run as a formula is prefixed.
  const quoted = (value) => {
    const safe = /^[=+@\t\r]|^-(?![\d.]+$)/.test(String(value)) ? `'${value}` : String(value);
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  function save(name, type, content) {
    const link = element("a", "", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
    }
  }, { rootMargin: "200px" });

  function watch(scope) {
    for (const figure of scope.querySelectorAll("figure[data-spec]")) {
      seen.observe(figure);
      for (const details of figure.querySelectorAll("details.data")) {
        details.addEventListener("toggle", () => { if (details.open) showTable(figure, details); });
      }
    }
  }

  const redraw = () => document.querySelectorAll("figure[data-drawn]").forEach(draw);

  // ---- lists with search and filters

  const matches = (value, wanted) => (wanted.startsWith("!") ? value !== wanted.slice(1) : value === wanted);

  function filters(form) {
    const rows = [...document.querySelectorAll(`#${form.dataset.rows} > tr`)], told = form.querySelector("[role=status]");
    const apply = () => {
      const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const picked = [...form.querySelectorAll("select")].filter((s) => s.value);
      let count = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !(words.every((w) => text.includes(w)) && picked.every((s) => matches(row.dataset[s.name], s.value)));
        count += !row.hidden;
      }
      told.textContent = `${count} of ${rows.length} shown`;
      const query = new URLSearchParams(new FormData(form));
      for (const [name, value] of [...query]) if (!value) query.delete(name);
      try { history.replaceState(null, "", query.size ? `?${query}` : location.pathname); } catch { /* some files */ }
    };
    const query = new URLSearchParams(location.search);
    for (const field of form.elements) if (field.name && query.has(field.name)) field.value = query.get(field.name);
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    apply();
  }

  // ---- two runs

  async function compare(place) {
    const [runs] = await Promise.all([load("runs", "data/runs.js"), load("specs", "assets/specs.js")]);
    const query = new URLSearchParams(location.search), form = place.querySelector("form");
    const chosen = ["a", "b"].map((side) => runs.find((r) => [r.id, r.file].includes(query.get(side))));
    ["a", "b"].forEach((side, n) => {
      for (const run of runs) {
        const option = element("option", `${run.created.slice(0, 10)} ${run.scenario}, ${run.host} (${run.id})`, { value: run.file });
        option.selected = run === chosen[n];
        form.elements[side].append(option);
      }
    });
    const result = place.querySelector("#result");
    const asked = ["a", "b"].filter((side, n) => query.get(side) && !chosen[n]);
    if (asked.length) {
      result.append(element("p", `There is no run ${asked.map((s) => query.get(s)).join(" and no run ")} here. Choose two above.`, { class: "banner bad" }));
      return;
    }
    if (!chosen[0] || !chosen[1]) return;
    const [a, b] = await Promise.all(chosen.map((r) => load("run:" + r.file, `data/run/${r.file}.js`)));
    for (const [side, run] of [["A", a], ["B", b]]) {
      const line = element("p"), link = element("a", run.id, { href: `run/${encodeURIComponent(run.file)}.html` });
      line.append(element("strong", `${side}: `), link, ` ${run.headline}`);
      if (run.quarantine) line.append(element("strong", ` Quarantined: ${run.quarantine}`));
      result.append(line);
    }
    result.append(differences(a, b));
    const metrics = a.metrics.filter((name) => b.metrics.includes(name));
    const label = element("label", "Metric "), select = element("select", "", { id: "metric" });
    metrics.forEach((name) => select.append(element("option", meta(name).label_long, { value: name })));
    label.append(select);
    const bar = element("div", "", { class: "filters" }), holder = element("div");
    bar.append(label);
    result.append(element("h2", "Side by side"), bar, holder);
    const show = () => side(a, b, select.value, holder);
    select.addEventListener("change", show);
    show();
  }

  function differences(a, b) {
    const rows = [];
    for (const fact of [...new Set([...Object.keys(a.facts), ...Object.keys(b.facts)])].sort()) {
      const [x, y] = [a.facts[fact], b.facts[fact]];
      if (x?.[0] !== y?.[0]) rows.push([fact, x?.[0] ?? "not recorded", y?.[0] ?? "not recorded", (x || y)[1]]);
    }
    rows.sort((x, y) => (x[3] > y[3]) - (x[3] < y[3]));
    const against = rows.filter((row) => row[3] === "matters").length;
    const box = element("section");
    box.append(element("h2", "What differs besides the numbers"));
    box.append(against
      ? element("p", `INCOMPARABLE: ${against} facts that decide about numbers differ. Take no change below for an effect of one of them.`, { class: "banner bad" })
      : element("p", rows.length ? "Only what a comparison is there to test differs." : "No recorded fact differs.", { class: "soft" }));
    if (rows.length) {
      box.append(tableOf(["fact", "A", "B", "role"], rows.map((r) => r.map(String)), "Recorded facts that differ"));
      box.querySelectorAll(".right").forEach((cell) => cell.classList.remove("right"));
    }
    return box;
  }

  function side(a, b, metric, holder) {
    const { label, unit, higher } = meta(metric), tie = kept.get("tie");
    const key = (l) => `${l.tp} ${l.label} ${l.arm}`, other = new Map(b.lines.map((l) => [key(l), l]));
    const mine = new Set(a.lines.map(key));
    const lines = [...a.lines, ...b.lines.filter((l) => !mine.has(key(l)))];
    const byKey = new Map(a.lines.map((l) => [key(l), l]));
    const rows = lines.map((l) => {
      const [x, y] = [byKey.get(key(l)), other.get(key(l))].map((line, n) => line && named(n ? b : a, line)[metric]);
      const ratio = x && y && x[0] ? y[0] / x[0] : null;
      const word = ratio === null ? (x ? "missing in B" : y ? "missing in A" : "in neither")
        : Math.abs(ratio - 1) < tie ? "about equal" : (ratio > 1) === higher ? "B is better" : "B is worse";
      const range = (v) => v ? number(v[0]) + (v[4] > 1 ? ` [${number(v[1])}–${number(v[2])}]` : "") : "–";
      return [`${l.arm}`, `TP${l.tp}, ${l.label}`, range(x), range(y), ratio === null ? "–" : percent(ratio), word];
    }).filter((row) => row[5] !== "in neither");
    holder.replaceChildren(tableOf(["arm", "load", `A, ${unit}`, `B, ${unit}`, "change", "in words"], rows,
      `${label}, B against A; in brackets the lowest and highest launch; less than ${100 * tie} % apart is about equal`));
    const grid = element("div", "", { class: "charts" });
    const arms = [...new Set(lines.map((l) => `${l.tp}|${l.arm}`))];
    for (const place of arms) {
      const [tp, arm] = [Number(place.split("|")[0]), place.slice(place.indexOf("|") + 1)];
      const of = (run, series, colour, dash) => run.lines.filter((l) => l.tp === tp && l.arm === arm)
        .map((l) => ({ ...l, series, colour, dash, values: named(run, l) }));
      const figure = element("figure", "", { "data-spec": "load" });
      figure.append(element("figcaption", `${label}: ${arm}, TP${tp}. A solid, B dashed`), element("div", "", { class: "drawing" }));
      figure.builder = async () => overLoad([...of(a, "A", "#0072B2", "a"), ...of(b, "B", "#D55E00", "b")], { metric });
      const details = element("details", "", { class: "data" });
      details.append(element("summary", "Table and download"));
      figure.append(details);
      grid.append(figure);
    }
    holder.append(grid);
    watch(grid);
  }

  // A link to a part that is folded away unfolds it.
  function unfold() {
    const target = document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  }

  // ---- a page that nobody built anew

  function age(built) {
    const days = Math.floor((Date.now() - Date.parse(built.dateTime)) / DAY);
    if (days < 2) return;
    const said = element("p", `This page was built ${days} days ago: what happened since is not in it. Is the nightly job running?`, { class: "banner bad", role: "alert" });
    document.querySelector("main").prepend(said);
  }

  // For `mtpbench selftest dashboard`: milliseconds from the navigation to the first frame after everything ran.
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
    document.documentElement.dataset.ready = Math.round(performance.now());
  })));

  document.addEventListener("DOMContentLoaded", () => {
    watch(document);
    unfold();
    addEventListener("hashchange", unfold);
    document.querySelectorAll("form[data-rows]").forEach(filters);
    document.querySelectorAll("#compare").forEach((place) => compare(place).catch(console.error));
    document.querySelectorAll("time[data-age]").forEach(age);
    for (const name of ["#span", "#scale"]) document.querySelector(name)?.addEventListener("change", redraw);
    dark.addEventListener("change", redraw);
  });
  return { put };
})();
