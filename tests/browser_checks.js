// What is wrong with a page as a browser shows it: each function gives a list of sentences.
// The page ends at `end` CSS pixels; 0 is the width of the window.
(end) => {
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  const box = (element) => element.getBoundingClientRect();
  const width = end || document.documentElement.clientWidth;
  const words = (text) => text.replace(/\s+/g, " ").trim().slice(0, 60);

  // Each piece of text that can be seen, with its element and the rectangles of its letters. What is
  // squeezed into a pixel is for those who listen.
  const texts = () => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const element = node.parentElement;
      if (!node.data.trim() || element.closest("script, style, noscript")) continue;
      if (!shown(element) || [element.closest("thead")].some((part) => part && box(part).width <= 1)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const letters = [...range.getClientRects()].filter((letter) => letter.width > 0);
      if (letters.length) found.push({ node, element, letters });
    }
    return found;
  };

  const ancestors = function* (element) {
    for (let one = element; one; one = one.parentElement) yield one;
  };

  const clipped = () => {
    const wrong = [];
    const whole = document.documentElement;
    if (whole.scrollWidth > whole.clientWidth + 1) {
      wrong.push(`the page is ${whole.scrollWidth} px wide in ${whole.clientWidth}`);
    }
    for (const { node, element, letters } of texts()) {
      const left = Math.min(...letters.map((letter) => letter.left));
      const right = Math.max(...letters.map((letter) => letter.right));
      const top = Math.min(...letters.map((letter) => letter.top));
      const bottom = Math.max(...letters.map((letter) => letter.bottom));
      const say = (where) => wrong.push(`"${words(node.data)}" ${where}`);
      if (left < -1 || right > width + 1) say("leaves the page");
      const drawing = element.closest("svg");
      if (drawing) {
        const frame = box(drawing);
        if (left < frame.left - 1 || right > frame.right + 1 || top < frame.top - 1 || bottom > frame.bottom + 1) {
          say("is cut by its drawing");
        }
        continue;
      }
      const holder = [...ancestors(element)].find((one) => getComputedStyle(one).display !== "inline");
      const frame = box(holder);
      if (left < frame.left - 1 || right > frame.right + 1) say("sticks out of its box");
      for (const one of ancestors(element)) {
        if (one === document.documentElement || one === document.body) break;
        const style = getComputedStyle(one);
        const cuts = (overflow) => overflow !== "visible";
        if (cuts(style.overflowX) && one.scrollWidth > one.clientWidth + 1) say(`is in a box that is cut: ${one.className || one.localName}`);
        if (cuts(style.overflowY) && one.scrollHeight > one.clientHeight + 1) say(`is in a box that is cut: ${one.className || one.localName}`);
      }
    }
    return wrong;
  };

  // Labels of one axis must not run into each other.
  const crowded = () => {
    const wrong = [];
    for (const [kind, from, to] of [["xtick", "left", "right"], ["ytick", "top", "bottom"]]) {
      for (const drawing of document.querySelectorAll(".plot .main-svg")) {
        const labels = [...drawing.querySelectorAll(`.${kind} text`)].filter(shown);
        const placed = labels.map((label) => [box(label), label]).sort(([a], [b]) => a[from] - b[from]);
        for (let place = 1; place < placed.length; place += 1) {
          const [[before, first], [after, second]] = [placed[place - 1], placed[place]];
          if (before[to] > after[from] + 1) wrong.push(`"${first.textContent}" runs into "${second.textContent}"`);
        }
      }
    }
    return wrong;
  };

  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => top.map((value, place) =>
    place < 3 ? value * top[3] + below[place] * (1 - top[3]) : 1);
  const luminance = (parts) => {
    const [red, green, blue] = parts.slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const background = (element) => {
    let below = [255, 255, 255, 1];
    for (const one of [...ancestors(element)].reverse()) {
      below = over(colour(getComputedStyle(one).backgroundColor), below);
    }
    return below;
  };
  // The names of points that are written in a colour of their own stand on the points.
  const behind = (element) => {
    const plot = element.closest(".plot");
    const trace = element.closest(".trace");
    if (plot && trace && element.closest(".textpoint")) {
      const drawn = trace.__data__[0].trace;
      if (drawn.textposition === "middle center") return colour(drawn.marker.color);
    }
    return background(plot ?? element);
  };

  const pale = () => {
    const wrong = [];
    for (const { node, element } of texts()) {
      const style = getComputedStyle(element);
      const ink = colour(element.closest("svg") ? style.fill : style.color);
      const below = behind(element);
      for (const one of ancestors(element)) ink[3] *= Number(getComputedStyle(one).opacity);
      const contrast = ratio(over(ink, below), below);
      if (contrast < 4.5) wrong.push(`"${words(node.data)}" has a contrast of ${contrast.toFixed(2)}`);
    }
    return wrong;
  };

  // Every cell of every row, and the name of every column, must be there.
  const lost = () => {
    const wrong = [];
    for (const table of document.querySelectorAll("table")) {
      const columns = table.querySelectorAll("th").length;
      for (const row of table.rows) {
        const cells = [...row.cells].filter((cell) => {
          const place = box(cell);
          return shown(cell) && place.width > 1 && place.height > 1 && place.left >= -1 && place.right <= width + 1;
        });
        if (cells.length !== columns) wrong.push(`${cells.length} of ${columns} columns: "${words(row.textContent)}"`);
      }
    }
    return wrong;
  };

  return { clipped: clipped(), crowded: crowded(), pale: pale(), lost: lost() };
}
