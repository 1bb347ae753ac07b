// Runs in the page: measures what would trouble a reader, and sends it to the page around this one.
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const shown = (element) => {
    const head = element.closest("thead"); // on narrow screens it is only read aloud
    return head ? head.checkVisibility() && getComputedStyle(head).clipPath === "none" : element.checkVisibility();
  };
  const number = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  // WCAG's relative luminance
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = number(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const lines = [], outside = [], pale = [], overlapping = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode()); ) {
    const element = node.parentElement, text = node.data.trim().slice(0, 60);
    if (!text || element.closest("script, style") || !shown(element)) continue;
    const colours = [number(getComputedStyle(element).color), behind(element)];
    const [front, back] = colours.map(light).sort((a, b) => b - a);
    if ((front + 0.05) / (back + 0.05) < 4.5) pale.push(text);
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const { left, right, top, bottom, width } of range.getClientRects()) {
      if (width < 1) continue;
      lines.push({ left, right, top, bottom, text });
      if ((left < -1 || right > wide + 1) && !element.closest(".wide")) outside.push(text);
    }
  }
  lines.sort((one, other) => one.top - other.top);
  lines.forEach((one, place) => {
    for (const other of lines.slice(place + 1)) {
      if (other.top >= one.bottom - 5) break; // lines of one paragraph touch
      const shared = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      if (shared > 2) overlapping.push([one.text, other.text]);
    }
  });
  const counts = [...document.querySelectorAll(".counts")];
  const images = [...document.images].filter((image) => image.checkVisibility());
  const fits = (image) => image.naturalWidth >= 100 && image.getBoundingClientRect().right <= wide + 1;
  const found = {
    name, outside, pale, overlapping,
    width: innerWidth,
    client: wide,
    scroll: document.documentElement.scrollWidth,
    texts: lines.length,
    pictures: images.length,
    broken: images.filter((image) => !image.complete || !fits(image)).length,
    clipped: counts.filter((box) => box.scrollWidth > box.clientWidth + 1).length,
  };
  parent.postMessage(found, "*");
});
