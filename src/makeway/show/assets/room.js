
// --- the room on one SM ---------------------------------------------------------------------------

// The rules of makeway.model.residency, on the numbers in the page; a browser test holds the two together.
const ceilTo = (amount, unit) => Math.ceil(amount / unit) * unit;

function blockNeed(sm, kernel, pad) {
  const warps = Math.ceil(kernel.threads / sm.warp_threads);
  const spared = sm.barriers === null || (sm.barriers_spare_one_warp_blocks && warps === 1);
  return {
    warps,
    registers: ceilTo(kernel.registers_per_thread * sm.warp_threads, sm.register_unit), // per warp
    scalars: sm.scalar_registers ? kernel.scalar_registers ?? 0 : 0, // per warp
    smem: ceilTo(kernel.smem_bytes + pad + sm.smem_reserved_bytes, sm.smem_unit_bytes),
    barriers: spared ? 0 : kernel.barriers,
  };
}

function residentBlocks(sm, kernel, pad) {
  const one = blockNeed(sm, kernel, pad);
  const limits = {
    registers: kernel.registers_per_thread > sm.max_registers_per_thread ? 0
      : Math.floor(Math.floor(Math.floor(sm.registers / sm.partitions) / one.registers) * sm.partitions / one.warps),
    warps: Math.floor(sm.max_warps / one.warps),
    slots: sm.max_blocks,
  };
  if (one.smem) limits.smem = kernel.smem_bytes + pad <= sm.smem_block_bytes ? Math.floor(sm.smem_bytes / one.smem) : 0;
  if (one.barriers) limits.barriers = Math.floor(sm.barriers / one.barriers);
  if (one.scalars) limits.scalar_registers = Math.floor(Math.floor(sm.scalar_registers / one.scalars) * sm.partitions / one.warps);
  if (kernel.cluster > sm.max_cluster) limits.cluster = 0;
  const blocks = Math.min(...Object.values(limits));
  return { blocks, binds: Object.keys(limits).filter((name) => limits[name] === blocks) };
}

function roomLeft(sm, one, count) { // beside `count` blocks, their warps spread evenly over the partitions
  const each = Math.floor(count * one.warps / sm.partitions), more = count * one.warps % sm.partitions;
  const parts = Array.from({ length: sm.partitions }, (_, place) => each + (place < more ? 1 : 0));
  return {
    registers: parts.map((warps) => Math.floor(sm.registers / sm.partitions) - warps * one.registers),
    scalars: sm.scalar_registers ? parts.map((warps) => sm.scalar_registers - warps * one.scalars) : null,
    smem: sm.smem_bytes - count * one.smem,
    warps: sm.max_warps - count * one.warps,
    slots: sm.max_blocks - count,
    barriers: sm.barriers === null ? null : sm.barriers - count * one.barriers,
  };
}

function blocksIn(room, one) {
  const fit = (free, per) => free.reduce((sum, left) => sum + Math.floor(left / per), 0);
  let warps = Math.min(room.warps, fit(room.registers, one.registers));
  if (room.scalars && one.scalars) warps = Math.min(warps, fit(room.scalars, one.scalars));
  let blocks = Math.min(room.slots, Math.floor(warps / one.warps));
  if (one.smem) blocks = Math.min(blocks, Math.floor(room.smem / one.smem));
  if (room.barriers !== null && one.barriers) blocks = Math.min(blocks, Math.floor(room.barriers / one.barriers));
  return Math.max(blocks, 0);
}

function roomAnswer(data, pad) {
  const { sm } = data, alone = residentBlocks(sm, data.compute, pad), one = blockNeed(sm, data.compute, pad);
  const comm = data.comm && blockNeed(sm, data.comm, 0);
  const beside = comm ? blocksIn(roomLeft(sm, one, alone.blocks), comm) : 0;
  const besideOne = comm && alone.blocks > 1 ? blocksIn(roomLeft(sm, one, alone.blocks - 1), comm) : 0;
  return { ...alone, one, comm, beside, besideOne };
}

const ROOM_NAMES = { registers: "registers", smem: "shared memory", warps: "warps", slots: "block slots" };
const BIND_NAMES = { ...ROOM_NAMES, slots: "block slots", barriers: "barriers", scalar_registers: "scalar registers", cluster: "cluster size" };

function drawRoom(box, data, pad) {
  const answer = roomAnswer(data, pad), { sm } = data;
  const totals = { registers: sm.registers, smem: sm.smem_bytes, warps: sm.max_warps, slots: sm.max_blocks };
  const takes = (one) => ({ registers: one.warps * one.registers, smem: one.smem, warps: one.warps, slots: 1 });
  const own = takes(answer.one), other = answer.comm ? takes(answer.comm) : null;
  const rows = Object.entries(totals).map(([name, total]) => {
    const row = document.createElement("div"), bar = document.createElement("div");
    row.className = "room-row";
    bar.className = "room-bar";
    bar.setAttribute("role", "img");
    const part = (amount, kind, text) => {
      const made = element("span", text);
      made.className = kind;
      made.style.width = `${100 * amount / total}%`;
      bar.append(made);
    };
    for (let at = 1; at <= answer.blocks; at++) part(own[name], "compute", at);
    const left = total - answer.blocks * own[name], wanted = other ? other[name] : 0;
    if (other) part(Math.min(wanted, left), wanted > left ? "short" : "comm", "C");
    const told = wanted > left ? `, ${(wanted - left).toLocaleString("en")} short` : "";
    bar.setAttribute("aria-label", `${ROOM_NAMES[name]}: ${answer.blocks} blocks take ${(answer.blocks * own[name]).toLocaleString("en")} of ${total.toLocaleString("en")}${told}`);
    row.append(element("span", ROOM_NAMES[name]), bar, element("span", `${(answer.blocks * own[name]).toLocaleString("en")} of ${total.toLocaleString("en")}${told}`));
    return row;
  });
  box.querySelector(".room-bars").replaceChildren(...rows);
  const compute = `${answer.blocks} compute block${answer.blocks === 1 ? "" : "s"} (bound by ${answer.binds.map((name) => BIND_NAMES[name]).join(", ")})`;
  let words = `With a pad of ${pad.toLocaleString("en")} B: ${compute}`;
  if (answer.comm) {
    words += answer.beside ? `; ${answer.beside} block${answer.beside === 1 ? "" : "s"} of the collective fit${answer.beside === 1 ? "s" : ""} beside them.`
      : answer.besideOne ? "; the collective's block fits in the place of one of them."
        : answer.blocks === 1 ? "; the collective's block waits until the SM is empty." : "; the collective's block does not fit, nor in the place of one of them.";
  }
  const output = box.querySelector("output");
  output.textContent = words;
  box.dataset.blocks = answer.blocks;
  box.dataset.beside = answer.beside;
  box.dataset.besideOne = answer.besideOne;
  box.dataset.binds = answer.binds.join(" ");
  box.querySelector("input").setAttribute("aria-valuetext", words);
}

for (const box of document.querySelectorAll("[data-room]")) {
  const data = JSON.parse(document.getElementById(box.dataset.room).textContent);
  const slider = box.querySelector("input");
  slider.addEventListener("input", () => drawRoom(box, data, Number(slider.value)));
  for (const button of box.querySelectorAll("[data-pad]")) {
    button.addEventListener("click", () => {
      slider.value = button.dataset.pad;
      drawRoom(box, data, Number(button.dataset.pad));
    });
  }
  drawRoom(box, data, Number(slider.dataset.start)); // exact, where the slider's steps are not
}
