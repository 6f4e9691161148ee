"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Theme: the system's until the button is pressed.
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const toggle = $("#theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => toggle.setAttribute("aria-pressed", String(isDark()));
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // The table of plans: sorting and filtering.
  const table = $("#plans-table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => $("button", head).textContent.trim());
  const rows = [...body.rows];
  const valueOf = (row, column, kind) => {
    const cell = row.cells[column];
    if (kind === "text") return cell.textContent.trim().toLowerCase();
    return parseFloat(cell.dataset.v ?? cell.textContent.replaceAll(",", "")); // "128 × 2" is 128, "–" is not a number
  };
  const sort = (column) => {
    const head = heads[column];
    const kind = head.dataset.sort;
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rows.map((row) => [valueOf(row, column, kind), row]);
    keyed.sort(([a], [b]) => {
      if (kind === "text") return (down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // no value: last
      return down ? b - a : a - b;
    });
    body.append(...keyed.map(([, row]) => row));
  };
  heads.forEach((head, column) => {
    const button = $("button", head);
    button.disabled = false;
    button.addEventListener("click", () => sort(column));
  });

  const controls = $(".controls");
  const text = $("#filter");
  const status = $("#status");
  const statusColumn = names.indexOf("Status");
  const statusOf = (row) => row.cells[statusColumn].dataset.s ?? row.cells[statusColumn].textContent;
  controls.hidden = false;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      const wanted = words.every((word) => texts[place].includes(word));
      const fits = !status.value || statusOf(row) === status.value;
      row.hidden = !(wanted && fits);
      shown += !row.hidden;
    });
    const all = `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "plan" : "plans"}`;
    $("#shown").value = shown === rows.length ? all : `${shown.toLocaleString("en")} of ${all}`;
  };
  text.addEventListener("input", filter);
  status.addEventListener("change", filter);

  // Points of charts: pointing at one, or moving to it with the arrow keys, shows its plan.
  const tip = $("#tip");
  let current = null;
  const aboutPlan = (rank) => {
    const row = document.getElementById(`p${rank}`);
    const cells = [...row.cells].map((cell) => cell.textContent.trim());
    const facts = names.map((name, place) => [name, cells[place]]);
    const plan = $(".plan", row).textContent.trim();
    const reason = $(".why", row)?.textContent.trim();
    if (reason) facts.push(["Reason", reason]);
    const role = $(".badge", row)?.textContent ?? plan;
    return { label: `micro batch ${cells[1]}: ${plan}${role === plan ? "" : ` (${role})`}`, facts: facts.slice(3).filter(([, value]) => value && value !== "–") };
  };
  const fillTip = (rank) => {
    const { label, facts } = aboutPlan(rank);
    const list = document.createElement("dl");
    for (const [name, value] of facts) {
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      list.append(dt, dd);
    }
    const strong = document.createElement("strong");
    strong.textContent = label;
    tip.replaceChildren(strong, list);
  };
  const hide = () => {
    tip.hidden = true;
    current = null;
    $$(".af-pt.on").forEach((point) => point.classList.remove("on"));
  };
  const show = (point) => {
    if (current === point) return;
    hide();
    current = point;
    fillTip(point.dataset.r);
    tip.hidden = false;
    $$(`.af-pt[data-r="${point.dataset.r}"]`).forEach((same) => same.classList.add("on"));
    const at = point.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const wide = root.clientWidth;
    const left = Math.min(Math.max(at.left + at.width / 2 - size.width / 2, 8), wide - size.width - 8);
    const above = at.top - size.height - 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above > 4 ? above : at.bottom + 12) + scrollY}px`;
  };
  const nearest = (points, event) => {
    let best = null;
    let least = event.pointerType === "mouse" ? 22 : 36;
    for (const point of points) {
      const box = point.getBoundingClientRect();
      const far = Math.hypot(box.left + box.width / 2 - event.clientX, box.top + box.height / 2 - event.clientY);
      if (far < least) [best, least] = [point, far];
    }
    return best;
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  for (const chart of $$("figure svg")) {
    const points = $$(".af-pt[data-r]", chart);
    if (!points.length) continue;
    const boxes = points.map((point) => [point, point.getBBox()]);
    const ordered = boxes.sort(([, a], [, b]) => a.x - b.x || b.y - a.y).map(([point]) => point);
    const name = chart.getAttribute("aria-label");
    chart.setAttribute("aria-label", `${name} Use the arrow keys to move from plan to plan.`);
    ordered.forEach((point, place) => {
      const { label, facts } = aboutPlan(point.dataset.r);
      point.setAttribute("role", "img");
      point.setAttribute("aria-label", [label, ...facts.slice(0, 5).map(([key, value]) => `${key} ${value}`)].join(", "));
      point.setAttribute("tabindex", place ? "-1" : "0");
    });
    const focus = (point) => {
      ordered.forEach((other) => other.setAttribute("tabindex", other === point ? "0" : "-1"));
      point.focus({ preventScroll: false });
    };
    chart.addEventListener("keydown", (event) => {
      const place = ordered.indexOf(document.activeElement);
      const ends = { Home: 0, End: ordered.length - 1 };
      const next = event.key in ends ? ends[event.key] : place + (steps[event.key] ?? 0);
      if (place < 0 || next === place || !ordered[next]) return;
      event.preventDefault();
      focus(ordered[next]);
    });
    chart.addEventListener("focusin", (event) => event.target.dataset.r && show(event.target));
    chart.addEventListener("focusout", hide);
    chart.addEventListener("pointermove", (event) => {
      const point = event.pointerType === "mouse" && nearest(points, event);
      if (point) show(point);
      else if (event.pointerType === "mouse" && current !== document.activeElement) hide();
    });
    chart.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !tip.contains(event.relatedTarget)) hide();
    });
    chart.addEventListener("click", (event) => {
      const point = nearest(points, event);
      if (point) focus(point);
      else hide();
    });
  }
  tip.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());

  // Copy buttons; without a clipboard the code is selected instead.
  for (const button of $$(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = $("code", button.closest(".code"));
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        said = document.execCommand("copy") ? "Copied" : "Selected";
      }
      button.textContent = said;
      setTimeout(() => (button.textContent = "Copy"), 1600);
    });
  }

  // A print shows every plan.
  addEventListener("beforeprint", () => {
    hide();
    rows.forEach((row) => (row.hidden = false));
  });
  addEventListener("afterprint", filter);
})();
