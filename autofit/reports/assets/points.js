  // Points of charts: pointing at one, or moving to it with the arrow keys, shows what it stands for.
  const tip = $("#tip");
  let current = null;
  const marked = [];
  const hide = () => {
    tip.hidden = true;
    current = null;
    marked.splice(0).forEach((point) => point.classList.remove("on"));
  };
  const fillTip = ({ label, facts }) => {
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
  const placeTip = (point) => {
    const at = point.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const wide = root.clientWidth;
    const left = Math.min(Math.max(at.left + at.width / 2 - size.width / 2, 8), wide - size.width - 8);
    const above = at.top - size.height - 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above > 4 ? above : at.bottom + 12) + scrollY}px`;
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  // Follows the points of each chart.
  //   pointsOf(chart): its points.
  //   alike(point): the points that are marked when it is shown, itself among them.
  //   about(point): what is shown of it: {label, facts: [[name, value]]}.
  //   distance(dx, dy): of the pointer from a point, in pixels; `reach[event.pointerType]` is the largest one.
  //   first(points): the point that the tabulator reaches first; the others follow by the arrow keys.
  //   thing: what a point stands for.
  const followPoints = ({ pointsOf, alike, about, distance, reach, first, thing }) => {
    const show = (point) => {
      if (current === point) return;
      hide();
      current = point;
      fillTip(about(point));
      tip.hidden = false;
      marked.push(...alike(point));
      marked.forEach((same) => same.classList.add("on"));
      placeTip(point);
    };
    const nearest = (points, event) => {
      let best = null;
      let least = reach[event.pointerType] ?? reach.touch;
      for (const point of points) {
        const box = point.getBoundingClientRect();
        const far = distance(box.left + box.width / 2 - event.clientX, box.top + box.height / 2 - event.clientY);
        if (far < least) [best, least] = [point, far];
      }
      return best;
    };
    for (const chart of $$("figure svg")) {
      const points = pointsOf(chart);
      if (!points.length) continue;
      const boxes = points.map((point) => [point, point.getBBox()]);
      const ordered = boxes.sort(([, a], [, b]) => a.x - b.x || b.y - a.y).map(([point]) => point);
      const name = chart.getAttribute("aria-label");
      chart.setAttribute("aria-label", `${name} Use the arrow keys to move from ${thing} to ${thing}.`);
      const start = first(ordered);
      ordered.forEach((point) => {
        const { label, facts } = about(point);
        point.setAttribute("role", "img");
        point.setAttribute("aria-label", [label, ...facts.slice(0, 5).map(([key, value]) => `${key} ${value}`)].join(", "));
        point.setAttribute("tabindex", point === start ? "0" : "-1");
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
      chart.addEventListener("focusin", (event) => ordered.includes(event.target) && show(event.target));
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
  };
  tip.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
