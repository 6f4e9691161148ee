  // What if: the peak of a choice at a micro batch, and whether it fits into the memory of a device.
  const { laws, counts, lengths, budgets, size: usual, length: own } = JSON.parse($("#laws").textContent);
  const control = (name) => $(`#${name}`);
  const bytes = (count) => {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    const power = count < 1 ? 0 : Math.min(Math.floor(Math.log2(count) / 10), 4);
    return `${Number((count / 1024 ** power).toPrecision(4))} ${units[power]}`;
  };

  // A part between two sizes, and beyond the last one, is on a straight line.
  const at = (sizes, values, size) => {
    if (sizes.length === 1) return values[0];
    let place = sizes.findIndex((each) => each >= size);
    place = place === -1 ? sizes.length - 1 : Math.max(place, 1);
    const [from, to] = [place - 1, place];
    const slope = (values[to] - values[from]) / (sizes[to] - sizes[from]);
    return Math.max(values[from] + slope * (size - sizes[from]), 0);
  };
  const partsOf = (law, size) => Object.entries(law.parts).map(([name, values]) => [name, at(law.sizes, values, size)]);

  // A choice whose value of the traded knob is between the first and the last one is on a straight line too.
  const mixed = ([first, last], count) => {
    const share = last && last.count > first.count ? (count - first.count) / (last.count - first.count) : 0;
    const parts = (size) => {
      const sums = new Map(partsOf(first, size).map(([name, bytes]) => [name, bytes * (1 - share)]));
      for (const [name, bytes] of share ? partsOf(last, size) : []) {
        sums.set(name, (sums.get(name) ?? 0) + bytes * share);
      }
      return [...sums];
    };
    return { sizes: first.sizes, parts };
  };
  const peak = (law, size) => law.parts(size).reduce((sum, [, count]) => sum + count, 0);

  // The largest micro batch that fits, by bisection: the peak grows with it.
  const largest = (law, budget) => {
    let [fits, fails] = [0, law.sizes[law.sizes.length - 1] + 1];
    while (fails - fits > 1) {
      const middle = Math.floor((fits + fails) / 2);
      if (peak(law, middle) <= budget) fits = middle;
      else fails = middle;
    }
    return fits;
  };

  const show = () => {
    const choice = Number(control("choice").value);
    const count = control("count") ? Number(control("count").value) : counts[0];
    const budget = budgets[Number(control("card").value)];
    const length = control("length") ? Number(control("length").value) : own;
    const known = laws.filter((each) => each.choice === choice && each.length === length);
    if (control("length")) control("length-value").textContent = lengths[length];
    if (control("count")) control("count-value").textContent = count;
    if (!known.length || (known.length < 2 && count !== known[0].count)) {
      control("what-if").textContent = "These two cannot be combined.";
      control("stack").replaceChildren();
      control("parts").replaceChildren();
      return;
    }
    const law = mixed(known, count);
    control("size").min = law.sizes[0];
    control("size").max = law.sizes[law.sizes.length - 1];
    const size = Number(control("size").value);
    const total = peak(law, size);
    const most = largest(law, budget);
    control("size-value").textContent = size;
    const verdict = total <= budget ? "fits into" : "does not fit into";
    const rest = most === 0 ? "Not even a micro batch of 1 does" : `The largest that fits is ${most}`;
    control("what-if").textContent = `About ${bytes(total)} ${verdict} ${bytes(budget)}. ${rest}.`;
    const found = law.parts(size).filter(([, bytes]) => bytes > 0).sort((one, other) => other[1] - one[1]);
    const scale = 100 / Math.max(total, budget);
    control("stack").replaceChildren(
      ...found.map(([name, count], place) => {
        const bar = document.createElement("span");
        bar.className = `part-${place % 8}`;
        bar.style.width = `${count * scale}%`;
        bar.title = `${name}: ${bytes(count)}`;
        return bar;
      }),
    );
    control("stack").style.setProperty("--budget", `${budget * scale}%`);
    control("parts").replaceChildren(
      ...found.map(([name, count], place) => {
        const [entry, dt, dd] = ["div", "dt", "dd"].map((kind) => document.createElement(kind));
        dt.textContent = name;
        dt.className = `key part-${place % 8}`;
        dd.textContent = bytes(count);
        entry.append(dt, dd);
        return entry;
      }),
    );
  };
  if (laws.length) {
    control("controls").hidden = false;
    control("size").value = usual;
    if (control("length")) control("length").value = own;
    control("controls").addEventListener("input", show);
    control("controls").addEventListener("submit", (event) => event.preventDefault());
    show();
  }
