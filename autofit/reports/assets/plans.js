  // The table of plans: sorting and filtering.
  const table = $("#plans-table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => $("button", head).textContent.trim());
  const rows = [...body.rows];
  const valueOf = (row, column, kind) => {
    const cell = row.cells[column];
    if (kind === "text") return cell.textContent.trim().toLowerCase();
    return parseFloat(cell.dataset.v ?? cell.textContent.replace(/[,<]/g, "")); // "128 × 2" is 128, "–" is not a number
  };
  const sort = (column) => {
    const head = heads[column];
    const kind = head.dataset.sort;
    const current = head.getAttribute("aria-sort");
    const down = current ? current === "ascending" : head.dataset.first === "descending";
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

  // Points of charts: each stands for a plan, in every chart in which the plan is.
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
  followPoints({
    pointsOf: (chart) => $$(".af-pt[data-r]", chart),
    alike: (point) => $$(`.af-pt[data-r="${point.dataset.r}"]`),
    about: (point) => aboutPlan(point.dataset.r),
    distance: Math.hypot,
    reach: { mouse: 22, touch: 36 },
    first: (points) => points[0],
    thing: "plan",
  });

  // A print shows every plan, and what is folded.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    hide();
    rows.forEach((row) => (row.hidden = false));
    unfolded = $$("details.more:not([open])");
    unfolded.forEach((details) => (details.open = true));
  });
  addEventListener("afterprint", () => {
    filter();
    unfolded.forEach((details) => (details.open = false));
  });
