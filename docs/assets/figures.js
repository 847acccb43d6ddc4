// A click on a picture opens it in full size. On a narrow page wide pictures scroll (extra.css).
document$.subscribe(({ body }) => {
  for (const picture of body.querySelectorAll("article p > img")) {
    const link = Object.assign(document.createElement("a"), { href: picture.src });
    picture.replaceWith(link);
    link.append(picture);
    const measure = () => {
      const { naturalWidth: width, naturalHeight: height } = picture;
      picture.classList.toggle("wide", (width > 2 * height && width > 560) || width > 1500);
    };
    picture.complete ? measure() : picture.addEventListener("load", measure);
  }
  // A number in a table stays on one line.
  for (const cell of body.querySelectorAll("article :is(th, td)")) {
    const text = cell.textContent.trim();
    const number = /^[-+\d.,%°±()e\s]+$/.test(text);
    cell.classList.toggle("short", text.length <= (number ? 16 : 8));
  }
  // A long call in a table may also break where its parts begin.
  for (const call of body.querySelectorAll("article td code")) {
    call.innerHTML = call.innerHTML.replace(/\S{30,}/g, (word) => word.replace(/[=(]/g, "$&<wbr>"));
  }
});
