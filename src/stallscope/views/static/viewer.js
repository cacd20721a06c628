// The viewer of a flamegraph: one function that needs nothing but its data, so that it works the
// same in a widget and in an exported page without a kernel. Names come from other people's code:
// they only ever become text and attributes, never markup.

const CELL = 20;
const ALL = "all";

function mountFlame(element, data) {
  const started = performance.now();
  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : (100 * share).toFixed(0) + "%");
  const percent1 = (share) => (100 * share).toFixed(1) + "%";

  const root = make("div", "stallscope-flame");
  root.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to the viewer
  root.append(make("h3", "", data.title));
  for (const note of data.notes) root.append(make("p", "", note));

  const bar = make("div", "stallscope-flame-bar");
  const chooser = (label, options) => {
    const select = make("select");
    options.forEach((option, place) => {
      const one = make("option", "", option);
      one.value = place === 0 ? ALL : String(place - 1);
      select.append(one);
    });
    const around = make("label", "", label);
    around.append(select);
    if (options.length > 2) bar.append(around);
    return select;
  };
  const worker = chooser("Worker", ["all, merged", ...data.workers]);
  const stage = chooser("Stage", ["all", ...data.stages]);
  const search = make("input");
  search.type = "search";
  search.placeholder = "function or file";
  const around = make("label", "", "Search");
  around.append(search);
  const reset = make("button", "", "Reset");
  reset.type = "button";
  bar.append(around, reset);
  const key = make("div", "stallscope-flame-key");
  for (const [name, colour] of data.key) {
    const entry = make("span");
    const square = make("i");
    square.style.background = colour;
    entry.append(square, name);
    key.append(entry);
  }
  const details = make("p", "stallscope-flame-details");
  details.setAttribute("role", "status");
  const box = make("div", "stallscope-flame-chart");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Flamegraph: arrows move, Enter zooms in, Escape zooms out");
  root.append(bar, key, details, box);
  element.replaceChildren(root);

  const isDifference = data.recordings.length > 1;
  let chart = null;
  let width = 0;
  let sums = [];
  const hint = "Click a frame to zoom in · by keyboard: Tab, arrows, Enter, and Escape to zoom out";
  let standing = hint;

  // Hits of every frame, of the chosen worker and stage, for each recording; summed upwards.
  function summed(recording) {
    const hits = new Float64Array(data.parents.length);
    const { places, groups, counts } = recording;
    for (let i = 0; i < places.length; i++) {
      const [ofWorker, ofStage] = data.groups[groups[i]];
      if (worker.value !== ALL && ofWorker !== Number(worker.value)) continue;
      if (stage.value !== ALL && ofStage !== Number(stage.value)) continue;
      hits[places[i]] += counts[i];
    }
    for (let i = hits.length - 1; i > 0; i--) hits[data.parents[i]] += hits[i];
    return hits;
  }

  // Width is the share; of a difference, the mean of both, so that what is gone is still seen.
  function tree() {
    sums = data.recordings.map(summed);
    const wholes = sums.map((hits) => hits[0] || 1);
    const nodes = data.parents.map((parent, place) => {
      const shares = sums.map((hits, number) => hits[place] / wholes[number]);
      const value = shares.reduce((one, other) => one + other, 0) / shares.length;
      const [name, file] = data.frames[data.frame[place]];
      return { name, file, place, parent, shares, value, children: [] };
    });
    for (const node of nodes) if (node.parent >= 0 && node.value > 0) nodes[node.parent].children.push(node);
    return nodes[0];
  }

  function colour(node) {
    if (node.highlight) return "#F0E442";
    if (!isDifference) return data.colours[data.kind[node.data.place]];
    const [after, before] = node.data.shares;
    const change = (after - before) / Math.max(after, before, 1e-9);
    // A change that is small against all of the time is no news, whatever it is against the frame
    const strength = Math.abs(change) * Math.min(1, Math.abs(after - before) / 0.02);
    const [full, none] = [change > 0 ? [213, 94, 0] : [0, 114, 178], [232, 232, 232]];
    return `rgb(${none.map((from, i) => Math.round(from + (full[i] - from) * strength)).join()})`;
  }

  function isDark(fill) {
    const found = fill.startsWith("#") ? fill.slice(1).match(/../g).map((two) => parseInt(two, 16)) : fill.match(/\d+/g).map(Number);
    return found[0] * 0.299 + found[1] * 0.587 + found[2] * 0.114 < 120;
  }

  function told(node) {
    const { name, file, shares, place } = node.data;
    const where = file ? ` (${file})` : "";
    if (isDifference) return `${name}${where}: ${percent1(shares[1])} before, ${percent1(shares[0])} after`;
    const kind = place ? `, ${data.kindNames[data.kind[place]]}` : "";
    return `${name}${where}: ${percent1(shares[0])}, ${sums[0][place].toLocaleString("en")} stacks${kind}`;
  }

  function settle() {
    // d3-flame-graph has drawn, and moves the frames to their places for a quarter of a second: they
    // go there at once instead. What it does not know is added to its frames.
    FlameGraphLibrary.select(box).selectAll("g.frame, g.frame *").interrupt();
    for (const frame of box.querySelectorAll("g.frame")) {
      const node = frame.__data__;
      frame.setAttribute("transform", `translate(${node.x0 * width},${node.depth * CELL})`);
      frame.querySelector("rect").setAttribute("width", (node.x1 - node.x0) * width);
      frame.querySelector("foreignObject div").textContent = node.data.name;
      frame.classList.toggle("dark", isDark(colour(node)));
      frame.setAttribute("tabindex", node.parent ? "-1" : "0");
      frame.setAttribute("role", "button");
      frame.setAttribute("aria-label", told(node));
    }
  }

  function say(text) {
    details.textContent = text || standing;
  }

  function find() {
    const term = search.value.trim();
    standing = hint;
    if (term) chart.search(term);
    else chart.clear();
    settle();
    say("");
  }

  function picked(node) {
    say(told(node));
  }

  function draw() {
    box.replaceChildren();
    const whole = tree();
    standing = whole.value > 0 ? hint : "No sample of this worker in this stage";
    width = Math.max(box.clientWidth || 940, 320);
    chart = FlameGraphLibrary.flamegraph()
      .width(width)
      .cellHeight(CELL)
      .minFrameSize(1)
      .inverted(true)
      .resetHeightOnZoom(true)
      .transitionDuration(0)
      .sort((one, other) => one.data.place - other.data.place)
      .setColorMapper(colour)
      .label(told)
      .setDetailsHandler(say)
      .setSearchMatch((node, term) => {
        const { name, file } = node.data;
        return `${name} ${file}`.toLowerCase().includes(term.toLowerCase());
      })
      .setSearchHandler((found, sum) => {
        standing = found.length ? `${found.length.toLocaleString("en")} frames found, in ${percent(sum)} of the stacks` : "Nothing found";
      })
      .onClick((node) => {
        settle();
        picked(node);
      });
    FlameGraphLibrary.select(box).datum(whole).call(chart);
    settle();
    if (search.value.trim()) find();
    else say("");
  }

  function move(frame, keyName) {
    const node = frame.__data__;
    const shown = (one) => [...box.querySelectorAll("g.frame")].find((g) => g.__data__ === one);
    const beside = (node.parent?.children ?? [node]).filter((one) => shown(one));
    const at = beside.indexOf(node);
    const widest = (many) => many.filter(shown).sort((one, other) => other.value - one.value)[0];
    const next = { ArrowUp: node.parent, ArrowDown: widest(node.children ?? []), ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1] }[keyName];
    const there = next && shown(next);
    if (there) there.focus();
  }

  root.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") {
      back();
      event.preventDefault();
      return;
    }
    const frame = event.target.closest?.("g.frame");
    if (!frame) return;
    if (event.key === "Enter" || event.key === " ") frame.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    else if (event.key.startsWith("Arrow")) move(frame, event.key);
    else return;
    event.preventDefault();
    box.querySelector("g.frame:focus") ?? box.querySelector("g.frame")?.focus();
  });
  box.addEventListener("focusin", (event) => {
    const frame = event.target.closest?.("g.frame");
    if (frame) say(told(frame.__data__));
  });

  function back() {
    const focused = box.contains(document.activeElement);
    search.value = "";
    standing = hint;
    chart.clear();
    chart.resetZoom();
    settle();
    if (focused) box.querySelector("g.frame")?.focus();
  }

  worker.addEventListener("change", draw);
  stage.addEventListener("change", draw);
  search.addEventListener("input", find);
  reset.addEventListener("click", back);
  draw();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    root.dataset.paintMs = String(Math.round(performance.now() - started));
  }));

  const watcher = new ResizeObserver(() => {
    // a widget is drawn before it has a width
    if (!box.clientWidth || Math.abs(box.clientWidth - width) < 2) return;
    width = Math.max(box.clientWidth, 320);
    chart.width(width).update();
    settle();
  });
  watcher.observe(box);
  return () => watcher.disconnect();
}
