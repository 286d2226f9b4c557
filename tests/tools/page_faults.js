// Returns the faults of the page as it is laid out now, a line each. `mayScroll` selects the elements whose content may be wider
// than they are. `smallest` is the least size of letters, in pixels.
(mayScroll, smallest) => {
  const faults = [];
  const nameOf = element => element.tagName.toLowerCase() + [...element.classList].map(name => "." + name).join("");
  const add = (fault, element, text = element.textContent) =>
    faults.push(`${fault}: ${nameOf(element)} "${text.trim().replace(/\s+/g, " ").slice(0, 60)}"`);
  const styleOf = element => getComputedStyle(element);
  const scrolls = element => ["auto", "scroll"].includes(styleOf(element).overflowX);
  const hides = element => /hidden|clip/.test(styleOf(element).overflowX + styleOf(element).overflowY);
  const isWithin = (inner, outer, slack = 1) => inner.left >= outer.left - slack && inner.right <= outer.right + slack;
  const elements = [...document.body.querySelectorAll("*")].filter(element => element.getClientRects().length);
  const blocks = elements.filter(element => !element.closest("svg *"));
  const scrollers = blocks.filter(scrolls);
  const view = {left: 0, right: innerWidth};

  // The box of a text, without the room that a line has above and below its letters.
  const letters = ({left, right, top, bottom, height}) => ({left, right, top: top + height * 0.15, bottom: bottom - height * 0.15});

  // Places in the middle of a text's line.
  const places = box => [0.1, 0.5, 0.9].map(part => [box.left + part * (box.right - box.left), (box.top + box.bottom) / 2]);

  // The texts of the page, a part for each line that they take.
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg title, style") || !element.getClientRects().length) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects())
      if (box.width > 0.5) texts.push({element, text: walker.currentNode.data, box: letters(box), svg: element.closest("svg")});
  }

  const checkBoxes = () => {
    for (const element of blocks) {
      const box = element.getBoundingClientRect();
      const isScrolled = scrollers.some(one => one !== element && one.contains(element));
      if (!isScrolled && !isWithin(box, view)) add("is out of the page", element);
      const parent = element.parentElement;
      if (parent !== document.body && !scrolls(parent) && !isWithin(box, parent.getBoundingClientRect()))
        add(`is wider than its ${nameOf(parent)}`, element);
      const isFull = element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1;
      if (element.tagName !== "svg" && hides(element) && isFull) add("is cut off", element);
    }
    for (const scroller of scrollers)
      if (scroller.scrollWidth > scroller.clientWidth + 1 && !(mayScroll && scroller.matches(mayScroll)))
        add(`has to be scrolled, ${scroller.scrollWidth} in ${scroller.clientWidth}`, scroller);
  };

  const checkTexts = () => {
    for (const {element, text, box, svg} of texts) {
      const holder = svg || element.closest("td, th, p, h1, h2, h3, li, pre, div, figure, section, footer, main");
      const room = holder.getBoundingClientRect();
      if (!isWithin(box, room) || (svg && (box.top < room.top - 1 || box.bottom > room.bottom + 1)))
        add(`is written out of its ${nameOf(holder)}`, element, text);
      const bar = element.matches(".on-bar") && element.previousElementSibling;
      if (bar && !isWithin(box, bar.getBoundingClientRect())) add("is wider than its bar", element, text);
      if (bar && places(box).some(([x, y]) => document.elementFromPoint(x, y) !== bar)) add("is covered", element, text);
      const scale = svg ? svg.getScreenCTM().a : 1;
      const size = parseFloat(styleOf(element).fontSize) * scale;
      if (size < smallest) add(`is of ${size.toFixed(1)} px`, element, text);
    }
    const sorted = texts.slice().sort((a, b) => a.box.top - b.box.top);
    sorted.forEach((a, i) => {
      for (let k = i + 1; k < sorted.length && sorted[k].box.top < a.box.bottom - 1; ++k) {
        const b = sorted[k];
        if (Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left) > 1)
          add(`overlaps "${b.text.trim().slice(0, 40)}"`, a.element, a.text);
      }
    });
  };

  const colorOf = text => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    return {rgb: [red, green, blue], alpha};
  };
  const over = (front, back) => back.map((value, i) => front.rgb[i] * front.alpha + value * (1 - front.alpha));
  const luminance = rgb => {
    const [red, green, blue] = rgb.map(value => value / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  // The color at a place, without the texts there.
  const ground = (x, y) => {
    let color = [255, 255, 255];
    for (const element of document.elementsFromPoint(x, y).reverse()) {
      const style = styleOf(element);
      const isShape = element.matches("svg rect, svg path, svg circle");
      if (isShape && style.fill === "none" || element.matches("svg text")) continue;
      const paint = colorOf(isShape ? style.fill : style.backgroundColor);
      if (isShape) paint.alpha *= parseFloat(style.fillOpacity);
      color = over(paint, color);
    }
    return color;
  };
  const checkContrast = () => {
    for (const {element, text, box, svg} of texts) {
      const scroller = scrollers.find(one => one.contains(element));
      if (scroller && !isWithin(box, scroller.getBoundingClientRect())) continue;
      const style = styleOf(element);
      const ink = colorOf(svg ? style.fill : style.color);
      const least = Math.min(...places(box).map(([x, y]) => {
        const back = ground(x, y);
        return contrast(over(ink, back), back);
      }));
      if (least < 4.5) add(`has a contrast of ${least.toFixed(2)}`, element, text);
    }
  };

  if (document.documentElement.scrollWidth > innerWidth) faults.push(`the page is ${document.documentElement.scrollWidth} wide`);
  checkBoxes();
  checkTexts();
  checkContrast();
  return [...new Set(faults)];
}
