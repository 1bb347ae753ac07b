// In the page: what a reader would stumble over, sent to the page around it.
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth;
  const shown = (element) => element.checkVisibility() && !element.closest("thead") || element.closest("thead")?.checkVisibility() && getComputedStyle(element.closest("thead")).clipPath === "none";
  const number = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = number(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const clipped = [...document.querySelectorAll(".counts")].filter((box) => box.scrollWidth > box.clientWidth + 1).length;
  const lines = [], outside = [], pale = [], overlapping = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode()); ) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style") || !shown(element)) continue;
    const [front, back] = [number(getComputedStyle(element).color), behind(element)].map(light).sort((a, b) => b - a);
    if ((front + 0.05) / (back + 0.05) < 4.5) pale.push(node.data.trim());
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1) continue;
      lines.push({ left: box.left, right: box.right, top: box.top, bottom: box.bottom, text: node.data.trim().slice(0, 60) });
      if ((box.left < -1 || box.right > wide + 1) && !element.closest(".wide")) outside.push(node.data.trim().slice(0, 60));
    }
  }
  lines.sort((one, other) => one.top - other.top);
  lines.forEach((one, place) => {
    for (const other of lines.slice(place + 1)) {
      if (other.top >= one.bottom - 5) break; // lines of one paragraph touch
      if (Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2) overlapping.push([one.text, other.text]);
    }
  });
  const pictures = [...document.images].filter((image) => image.checkVisibility());
  const broken = pictures.filter((image) => !image.complete || image.naturalWidth < 100 || image.getBoundingClientRect().right > wide + 1).length;
  parent.postMessage({ name, width: innerWidth, client: wide, scroll: document.documentElement.scrollWidth, texts: lines.length, pictures: pictures.length, outside, pale, overlapping, broken, clipped }, "*");
});
