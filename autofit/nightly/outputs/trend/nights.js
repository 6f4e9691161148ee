  // Nights: the points of a chart are the rows of the table of its job, which has the newest night first.
  const rowOf = new Map();
  followPoints({
    pointsOf: (chart) => {
      const points = $$(".tr-nights > *", chart);
      const rows = points.length ? [...$("tbody", chart.closest("section").querySelector(".nights")).rows].reverse() : [];
      points.forEach((point, place) => rowOf.set(point, rows[place]));
      return points;
    },
    alike: (point) => {
      const rule = $(".tr-rule", point.ownerSVGElement);
      const box = point.getBBox();
      rule.setAttribute("transform", `translate(${box.x + box.width / 2})`);
      return [point, rule];
    },
    about: (point) => {
      const row = rowOf.get(point);
      const names = [...row.closest("table").tHead.rows[0].cells].map((cell) => cell.textContent);
      const [night, ...values] = [...row.cells].map((cell) => cell.textContent);
      const facts = values.map((value, place) => [names[place + 1], value]);
      return { label: night, facts: facts.filter(([, value]) => value) };
    },
    distance: Math.abs,
    reach: { mouse: Infinity, touch: Infinity },
    first: (points) => points.at(-1),
    thing: "night",
  });
  addEventListener("beforeprint", hide);
