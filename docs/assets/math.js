// Mathematics, by the KaTeX that comes with these pages: on the first page and on every next one.
document$.subscribe(({ body }) => {
  for (const element of body.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), throwOnError: false });
  }
});

// The search has the source of formulas, in text that is its own to change: show what they say.
const said = (source) => {
  const element = document.createElement("p");
  katex.render(source, element, { output: "mathml", throwOnError: false });
  element.querySelector("annotation")?.remove();
  return element.textContent;
};
const watched = new WeakSet();
document.addEventListener("input", ({ target: { shadowRoot: results } }) => {
  if (!results || watched.has(results)) return;
  watched.add(results);
  new MutationObserver(() => {
    const texts = document.createTreeWalker(results, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const { data } = texts.currentNode;
      const plain = data.replace(/\\[([](.+?)\\[)\]]/gs, (_, source) => said(source));
      if (plain !== data) texts.currentNode.data = plain;
    }
  }).observe(results, { characterData: true, childList: true, subtree: true });
});
