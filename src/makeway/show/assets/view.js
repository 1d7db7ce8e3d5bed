
// --- the live page --------------------------------------------------------------------------------

// The server computes and renders; this script asks, shows what comes back, and keeps the form's state.
const form = document.getElementById("form"), byId = (name) => document.getElementById(name);
const CLIENT = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const REST_MS = 400; // without a change, before the rest of the answer is asked for
const ORDER = ["time", "timeline", "ledger", "room", "policies", "conditions"];
const RANK = { quick: 1, settled: 2, whole: 3 };

async function ask(what, body, options = {}) {
  const answer = await fetch(what, body === undefined ? options : { method: "POST", body: JSON.stringify(body), ...options });
  const value = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(value.error), { code: answer.status });
  return value;
}

// --- the form and its question ----------------------------------------------------------------------

const field = (name) => form.elements[name];
let others = []; // controls that no field shows, as words
let ownBlock = false, limits = null;

const bytesText = (bytes) => bytes % 1024 ? `${bytes.toLocaleString("en")} B` : `${(bytes / 1024).toLocaleString("en")} KiB`;
const TEXTS = {
  pad: bytesText, smem: bytesText, jitter: (value) => `${value} %`, skew: (value) => `${value} us`,
  partition: (value) => `${value} SMs`, chunks: (value) => `${value} pieces`,
};
const usual = { jitter: null };

function atRest(input) {
  if (["threads", "registers", "smem"].includes(input.name)) return !ownBlock;
  return Number(input.value) === (usual[input.name] ?? Number(input.min));
}

function showValues() {
  for (const input of form.querySelectorAll("input[type=range]")) {
    const rest = atRest(input), text = (TEXTS[input.name] ?? String)(Number(input.value));
    const words = rest && input.dataset.rest ? input.dataset.rest : text;
    input.nextElementSibling.textContent = words;
    input.classList.toggle("set", !rest);
    input.setAttribute("aria-valuetext", words);
  }
}

function controlWords() {
  const words = [], number = (name) => Number(field(name).value);
  if (number("pad")) words.push(`pad=${number("pad") % 1024 ? number("pad") : `${number("pad") / 1024}KiB`}`);
  if (field("tile").value.trim()) words.push(`tile=${field("tile").value.trim()}`);
  if (field("priority").checked) words.push("priority");
  if (field("comm-first").checked) words.push("comm-first");
  if (number("comm-blocks")) words.push(`comm-blocks=${number("comm-blocks")}`);
  if (field("comm-threads").value) words.push(`comm-threads=${field("comm-threads").value}`);
  if (number("partition")) words.push(`partition=${number("partition")}`);
  const engine = field("copy-engine").value, ahead = field("prelaunch").checked;
  if (engine) words.push(engine === "parallel-copy" && !ahead ? "copy-engine" : `copy-engine=${engine}${ahead ? ",prelaunch" : ""}`);
  if (number("chunks") > 1) words.push(`chunks=${number("chunks")}`);
  if (field("compress").value) words.push(`compress=${field("compress").value}`);
  return [...words, ...others];
}

function question() {
  const asked = { workload: field("workload").value, device: field("device").value, controls: controlWords(), hbm: field("hbm").value };
  if (Number(field("ranks").value)) asked.ranks = Number(field("ranks").value);
  if (ownBlock) asked.block = `threads=${field("threads").value},registers=${field("registers").value},smem=${field("smem").value}`;
  if (field("dispatch").value) asked.dispatch = field("dispatch").value;
  if (!atRest(field("jitter"))) asked.jitter = Number(field("jitter").value) / 100;
  if (Number(field("skew").value)) asked.skew_us = Number(field("skew").value);
  return asked;
}

const READERS = [ // of control words; what none of them reads stays as a word of its own
  [/^pad=(\d+)(KiB)?$/, ([, size, unit]) => setNumber("pad", Number(size) * (unit ? 1024 : 1))],
  [/^tile=(\d+x\d+x\d+)$/, ([, tile]) => { field("tile").value = tile; return true; }],
  [/^(priority|comm-first)$/, ([name]) => { field(name).checked = true; return true; }],
  [/^(comm-blocks|partition|chunks)=(\d+)$/, ([, name, value]) => setNumber(name, Number(value))],
  [/^comm-threads=(\d+)$/, ([, value]) => choose("comm-threads", value)],
  [/^copy-engine(?:=([a-z-]+)(,prelaunch)?)?$/, ([, engine, ahead]) => {
    field("prelaunch").checked = Boolean(ahead);
    return choose("copy-engine", engine ?? "parallel-copy");
  }],
  [/^compress=([a-z0-9]+)$/, ([, method]) => choose("compress", method)],
];

function setNumber(name, value) {
  const input = field(name);
  if (value > Number(input.max)) input.max = value;
  input.value = value;
  return Number(input.value) === value;
}

function choose(name, value) {
  if (![...field(name).options].some((option) => option.value === value)) {
    if (name !== "comm-threads") return false;
    field(name).append(new Option(value, value));
  }
  field(name).value = value;
  return true;
}

function setControls(words) {
  for (const name of ["pad", "comm-blocks", "partition", "chunks"]) field(name).value = field(name).min;
  for (const name of ["priority", "comm-first", "prelaunch"]) field(name).checked = false;
  for (const name of ["comm-threads", "copy-engine", "compress", "tile"]) field(name).value = "";
  others = words.filter((word) => !READERS.some(([pattern, set]) => pattern.test(word) && set(word.match(pattern))));
}

function setQuestion(given) { // keys that are not given stay
  if (given.workload !== undefined) field("workload").value = given.workload;
  if (given.device !== undefined) choose("device", given.device);
  if (given.ranks !== undefined) setNumber("ranks", given.ranks ?? 0);
  if (given.controls !== undefined) setControls(given.controls);
  if (given.workload !== undefined || given.block !== undefined) ownBlock = Boolean(given.block);
  if (given.block) {
    const [, threads, registers, smem] = given.block.match(/threads=(\d+),registers=(\d+),smem=(\d+)/);
    for (const [name, value] of Object.entries({ threads, registers, smem })) setNumber(name, Number(value));
  }
  if (given.dispatch !== undefined) field("dispatch").value = given.dispatch ?? "";
  if (given.hbm !== undefined) field("hbm").value = given.hbm;
  if (given.jitter !== undefined) field("jitter").value = given.jitter === null ? usual.jitter : 100 * given.jitter;
  if (given.skew_us !== undefined) field("skew").value = given.skew_us;
  changed();
}

function takeLimits(given) { // what the device and the workload allow
  limits = given;
  const most = { pad: given.pad_bytes, smem: given.smem_bytes, registers: given.registers, threads: given.threads, partition: given.sms - 1 };
  for (const [name, value] of Object.entries(most)) field(name).max = Math.max(value, Number(field(name).value));
  field("pad").step = given.pad_unit_bytes;
  for (const name of ["threads", "registers", "smem"]) field(name).disabled = !given.own_block;
  field("ranks").disabled = !given.own_block;
  field("ranks").dataset.rest = `${given.ranks}, as ${given.own_block ? "the preset" : "recorded"}`;
  field("dispatch").options[0].textContent = field("dispatch").value ? "the vendor's" : `${given.dispatch}, the vendor's`;
  if (given.device !== field("device").value) choose("device", given.device); // a recording has its own
  field("device").disabled = given.recorded;
  const chosen = field("comm-threads").value, sizes = given.comm_threads.map(String);
  if (chosen && !sizes.includes(chosen)) sizes.push(chosen);
  field("comm-threads").replaceChildren(new Option("the library's", ""), ...sizes.map((size) => new Option(size, size)));
  field("comm-threads").value = chosen;
  if (!ownBlock && given.block) {
    const [, threads, registers, smem] = given.block.match(/threads=(\d+),registers=(\d+),smem=(\d+)/);
    Object.entries({ threads, registers, smem }).forEach(([name, value]) => { field(name).value = value; });
  }
  showValues();
}

// --- asking and showing -----------------------------------------------------------------------------

let asked = 0, drawn = { number: 0, rank: 0 }, resting = 0;
const lanes = { quick: { busy: false, done: 0 }, settled: { busy: false, done: 0 } };

function changed() {
  asked++;
  showValues();
  showOthers();
  clearTimeout(resting);
  pump("quick");
  pump("settled");
  setTimeout(() => byId("answer").classList.toggle("old", drawn.number < asked), 300);
}

async function pump(stage) { // one request of a kind at a time, always for the newest state of the form
  const lane = lanes[stage], number = asked;
  if (lane.busy || lane.done >= number) return;
  lane.busy = true;
  await answerTo(stage, number);
  lane.busy = false;
  lane.done = number;
  if (asked > number) pump(stage);
  else if (stage === "settled") resting = setTimeout(() => answerTo("whole", number), REST_MS);
}

async function answerTo(stage, number) {
  const began = performance.now();
  try {
    const answer = await ask("ask", { question: question(), stage, client: CLIENT });
    if (number === asked || stage !== "whole") show(answer, number, performance.now() - began);
    connected(true);
  } catch (error) {
    if (error.code === 409) return;
    if (error.code === undefined) connected(false);
    else if (number === asked && stage !== "quick") problem(error.message);
  }
}

function connected(yes) {
  byId("server").textContent = yes ? "connected" : "the server has ended: start `makeway view` again";
  if (!yes) problem("The server does not answer any more. What you see stays; nothing new is computed.");
}

function problem(text) {
  byId("problem").hidden = !text;
  byId("problem").textContent = text ?? "";
  if (text) byId("answer").classList.add("old");
}

const STAGES = {
  quick: (answer) => `first guess: ${answer.engine} engine, equal block times`,
  settled: (answer) => `settled: ${answer.engine} engine`,
};

function show(answer, number, tookMs) {
  const rank = RANK[answer.stage];
  if (number < drawn.number || (number === drawn.number && rank <= drawn.rank)) return;
  drawn = { number, rank };
  problem(null);
  byId("answer").classList.toggle("old", number < asked);
  const stage = answer.stage === "quick" ? "quick" : "settled";
  byId("stage").dataset.stage = stage;
  byId("stage").textContent = STAGES[stage](answer);
  byId("answer").dataset.number = number;
  byId("answer").dataset.stage = answer.stage;
  byId("took").textContent = answer.stage === "whole" ? "" : `answered in ${Math.round(tookMs)} ms`;
  byId("headline").innerHTML = answer.headline; // escaped by the server
  byId("lead").innerHTML = answer.lead;
  byId("figures").replaceChildren(...answer.figures.map(figure));
  byId("mini").textContent = answer.figures.slice(0, 2).map((one) => one.value).join(" · ");
  const sections = [...answer.sections].sort((one, other) => place(one.name) - place(other.name));
  showSections(byId("sections"), sections, answer.stage);
  byId("again").hidden = !answer.command || answer.stage === "quick";
  byId("command").textContent = answer.command;
  byId("again").document = answer.document;
  if (number === asked) takeLimits(answer.limits);
}

const place = (name) => ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length;

function figure({ name, value, beside }) {
  const box = document.createElement("div");
  box.append(element("span", name), element("strong", value), element("span", beside));
  box.lastChild.className = "soft";
  return box;
}

function showSections(where, sections, stage) {
  const kept = new Map([...where.children].map((section) => [section.dataset.name, section]));
  const shown = sections.map((part) => {
    const section = kept.get(part.name) ?? document.createElement("section");
    section.dataset.name = part.name;
    if (section.markup !== part.html) fill(section, part);
    section.markup = part.html;
    return section;
  });
  // The slow parts of an answer come last: until then the old ones stay, rather than jump.
  const late = stage === "whole" || !kept.has("policies") ? [] : [kept.get("policies")].filter((one) => !shown.includes(one));
  for (const section of late) section.remove();
  if ([...where.children].some((child, at) => child !== shown[at]) || where.children.length !== shown.length) where.replaceChildren(...shown);
}

function fill(section, part) {
  const fresh = document.createElement("template");
  fresh.innerHTML = part.html; // escaped by the server; scripts in it would not run
  const lines = fresh.content.querySelector("[data-timeline]");
  const ranks = lines?.querySelectorAll("details.rank").length;
  if (section.timeline && lines && section.timeline.ranks.length === ranks) {
    const data = fresh.content.getElementById(lines.dataset.timeline);
    section.querySelector(".legend").replaceWith(lines.querySelector(".legend"));
    const titles = lines.querySelectorAll("summary"), drawings = lines.querySelectorAll("canvas");
    section.querySelectorAll("summary").forEach((title, at) => { title.textContent = titles[at].textContent; });
    section.querySelectorAll("canvas").forEach((drawing, at) => drawing.setAttribute("aria-label", drawings[at].getAttribute("aria-label")));
    section.timeline.update(JSON.parse(data.textContent));
    return;
  }
  section.replaceChildren(element("h2", part.title), fresh.content);
  section.timeline = null;
  const drawnLines = section.querySelector("[data-timeline]");
  if (drawnLines) {
    const data = section.querySelector(`[id="${CSS.escape(drawnLines.dataset.timeline)}"]`);
    section.timeline = new Timeline(drawnLines, JSON.parse(data.textContent), byId("tip"));
  }
  for (const box of section.querySelectorAll("[data-room]")) {
    const data = JSON.parse(section.querySelector(`[id="${CSS.escape(box.dataset.room)}"]`).textContent);
    drawRoom(box, data, Number(box.querySelector("input").dataset.start));
  }
}

document.addEventListener("click", (event) => { // tables come and go
  const header = event.target.closest("#sections th, .watched th");
  if (header && event.target.closest("button")) sortBy(header.closest("table"), header.cellIndex, header);
});
document.addEventListener("input", (event) => {
  if (event.target.matches("#sections input[type=search], .watched input[type=search]")) {
    filterRows(byId(event.target.dataset.table), event.target.value, event.target.parentElement.querySelector("output"));
  }
});

// --- the form's own events --------------------------------------------------------------------------

function showOthers() {
  const box = byId("others");
  box.replaceChildren(...others.map((word) => {
    const button = element("button", `${word} ×`);
    button.type = "button";
    button.className = "plain";
    button.setAttribute("aria-label", `remove ${word}`);
    button.addEventListener("click", () => { others = others.filter((other) => other !== word); changed(); });
    return button;
  }));
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => {
  if (!event.target.name) return;
  if (["threads", "registers", "smem"].includes(event.target.name)) ownBlock = true;
  if (["workload", "device"].includes(event.target.name)) ownBlock = false;
  if (event.target.name === "workload" && event.target.value.startsWith("item:")) ownBlock = false;
  if (event.target.name === "workload") field("ranks").value = 0;
  changed();
});
byId("reset").addEventListener("click", () => {
  setQuestion({ controls: [], block: null, ranks: 0, dispatch: null, hbm: "proportional", jitter: null, skew_us: 0 });
});
byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("command").textContent));
byId("save").addEventListener("click", () => {
  const link = document.createElement("a"), text = `${JSON.stringify(byId("again").document, null, 2)}\n`;
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "makeway.json";
  link.click();
  URL.revokeObjectURL(link.href);
});

// --- what is opened ---------------------------------------------------------------------------------

let items = new Map(), selected = "explore";

function select(tab) {
  selected = tab;
  byId("explore").hidden = tab !== "explore";
  byId("opened").hidden = tab === "explore";
  for (const button of document.querySelectorAll("[role=tab]")) {
    button.setAttribute("aria-selected", String(button.id === `tab-${tab}`));
  }
  for (const panel of byId("opened").children) panel.hidden = panel.id !== `panel-${tab}`;
  if (tab === "explore") dispatchEvent(new Event("resize")); // drawings that were hidden
}

byId("tab-explore").addEventListener("click", () => select("explore"));

function addItem(item) {
  const tab = element("button", item.name), close = element("button", "×"), panel = document.createElement("div");
  Object.assign(tab, { type: "button", className: "plain", id: `tab-${item.number}`, title: item.name });
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", `panel-${item.number}`);
  tab.addEventListener("click", () => select(String(item.number)));
  Object.assign(close, { type: "button", className: "close plain" });
  close.setAttribute("aria-label", `close ${item.name}`);
  close.addEventListener("click", () => ask("close", { number: item.number }).then(poll, (error) => problem(error.message)));
  panel.id = `panel-${item.number}`;
  panel.setAttribute("role", "tabpanel");
  panel.setAttribute("aria-label", item.name);
  panel.append(element("p", ""));
  document.querySelector(".tabs").append(tab, close);
  byId("opened").append(panel);
  const entry = { item: {}, tab, close, panel };
  items.set(item.number, entry);
  select(String(item.number));
  return entry;
}

function showItem(entry, item) {
  const before = entry.item, { panel } = entry;
  entry.item = item;
  if (item.state === "working") panel.firstChild.textContent = `${item.name}: ${item.progress}`;
  if (before.state === item.state) return;
  if (item.state === "failed") {
    panel.replaceChildren(element("p", item.message));
    panel.firstChild.className = "problem";
    panel.firstChild.setAttribute("role", "alert");
  }
  if (item.state === "ready") showReady(entry, item);
}

function showReady(entry, item) {
  const tools = document.createElement("p");
  if (item.explore) {
    const button = element("button", item.kind === "plan" ? "explore with these controls" : "explore this");
    Object.assign(button, { type: "button", className: "plain" });
    if (item.explore.workload === `item:${item.number}`) field("workload").prepend(new Option(`opened: ${item.name}`, item.explore.workload));
    button.addEventListener("click", () => { select("explore"); setQuestion(item.explore); });
    tools.append(button);
    if (!item.report) { select("explore"); setQuestion(item.explore); }
  } else if (item.why_not) tools.append(element("span", `Nothing to explore: ${item.why_not}.`));
  if (item.kind === "tuning") return watch(entry, item);
  entry.panel.replaceChildren(tools);
  if (!item.report) return;
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts"); // names from files are escaped; if one were not, it could do nothing
  frame.title = item.name;
  frame.src = `/${item.report}`;
  entry.panel.append(frame);
}

function watch(entry, item) {
  const { panel } = entry, headline = element("h1", "…"), lead = document.createElement("div"), sections = document.createElement("div");
  const state = element("span", "");
  state.className = "stage";
  state.setAttribute("role", "status");
  panel.className = "watched";
  panel.replaceChildren(state, headline, lead, sections);
  const look = async () => {
    if (!items.has(item.number)) return;
    let again = 1000;
    try {
      const answer = await ask(`watch?number=${item.number}`);
      headline.innerHTML = answer.headline;
      lead.innerHTML = answer.lead;
      state.textContent = answer.running ? "running" : "not running";
      state.dataset.stage = answer.running ? "quick" : "settled";
      panel.dataset.steps = answer.document.steps;
      showSections(sections, answer.sections, "whole");
      if (!answer.running) again = 3000;
    } catch (error) {
      state.textContent = error.code === undefined ? "the server has ended" : error.message;
      again = 3000;
    }
    setTimeout(look, again);
  };
  look();
}

let polls = 0;

async function poll() {
  const mine = ++polls;
  let state;
  try { state = await ask("state"); } catch (error) { return; }
  if (mine !== polls) return; // a newer one is on its way, and knows more
  for (const item of state.items) showItem(items.get(item.number) ?? addItem(item), item);
  for (const [number, entry] of items) {
    if (state.items.some((item) => item.number === number)) continue;
    for (const part of [entry.tab, entry.close, entry.panel]) part.remove();
    [...field("workload").options].find((option) => option.value === `item:${number}`)?.remove();
    items.delete(number);
    if (selected === String(number)) select("explore");
  }
  if (byId("jobs").dataset.jobs !== state.jobs.join()) showJobs(state.jobs);
}

function showJobs(jobs) {
  byId("jobs").dataset.jobs = jobs.join();
  byId("jobs").replaceChildren(...jobs.map((job) => {
    const button = element("button", `watch ${job}, which is being tuned`);
    Object.assign(button, { type: "button", className: "plain" });
    button.addEventListener("click", () => ask("job", { job }).then(poll, (error) => problem(error.message)));
    return button;
  }));
}

(async () => { for (;;) { await poll(); await new Promise((done) => setTimeout(done, 1000)); } })();
byId("find").addEventListener("click", () => {
  ask("plan", { question: { ...question(), controls: [] } }).then(poll, (error) => problem(error.message));
});

// --- dropped files ----------------------------------------------------------------------------------

async function send(files) {
  const group = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const list = byId("sending");
  list.replaceChildren();
  try {
    for (const [number, file] of [...files].entries()) {
      const line = list.appendChild(element("li", `${file.name}: sending`));
      const where = `drop?group=${group}&number=${number}&name=${encodeURIComponent(file.name)}`;
      await ask(where, undefined, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
      line.remove();
    }
    await ask("open", { group });
    await poll();
  } catch (error) {
    list.replaceChildren(element("li", error.code === undefined ? "The server did not take the file: too large, or it has ended." : error.message));
  }
}

for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    byId("drop").classList.toggle("over-it", name === "dragenter" || name === "dragover");
    if (name === "drop") send(event.dataTransfer.files);
  });
}
byId("files").addEventListener("change", (event) => { if (event.target.files.length) send(event.target.files); });

if (innerWidth < 960) form.querySelectorAll("details").forEach((group, at) => { group.open = at === 1; }); // the controls
usual.jitter = Number(field("jitter").dataset.usual);
setQuestion(JSON.parse(byId("first").textContent));
