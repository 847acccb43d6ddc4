// A click on a picture opens it in full size. On a narrow page wide pictures scroll (extra.css).
document$.subscribe(({ body }) => {
  for (const picture of body.querySelectorAll("article p > img")) {
    const link = Object.assign(document.createElement("a"), { href: picture.src });
    picture.replaceWith(link);
    link.append(picture);
    const measure = () => picture.classList.toggle("wide", picture.naturalWidth > 2 * picture.naturalHeight);
    picture.complete ? measure() : picture.addEventListener("load", measure);
  }
});
