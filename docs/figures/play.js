// The picture that can be played with: the energy of each layer at a moment of inference.
// Its data, window.spreading, are made by learn.py.
(() => {
  const place = document.getElementById("play");
  if (!place || !window.spreading) return;
  const { times, energies } = window.spreading;
  const names = energies.map((_, i) => (i + 1 < energies.length ? `layer ${i + 1}` : "output"));
  const most = Math.max(...energies.flat());
  const style = `
    #play { border: 1px solid #8888; border-radius: 6px; padding: 1em; max-width: 34em; margin: 1em 0 }
    .play-bars { display: flex; gap: 1em } .play-column { flex: 1; text-align: center }
    .play-frame { height: 9em; display: flex; align-items: flex-end; border-bottom: 1px solid #888 }
    .play-fill { width: 100%; background: #4c72b0; border-radius: 3px 3px 0 0 }
    .play-column:last-child .play-fill { background: #c44e52 } .play-name { font-size: 0.8em }
    .play-row { display: flex; gap: 0.8em; align-items: center; margin-top: 0.8em; flex-wrap: wrap }
    .play-row input { flex: 1; min-width: 8em } .play-row button { padding: 0.2em 0.9em;
      border: 1px solid #888; border-radius: 4px; cursor: pointer; color: inherit }
    .play-row output { font-size: 0.8em; font-variant-numeric: tabular-nums }`;
  const make = (tag, values, parent) => Object.assign(parent.appendChild(document.createElement(tag)), values);
  make("style", { textContent: style }, place);
  const bars = make("div", { className: "play-bars" }, place);
  const fills = names.map((name) => {
    const column = make("div", { className: "play-column" }, bars);
    const frame = make("div", { className: "play-frame" }, column);
    make("div", { className: "play-name", textContent: name }, column);
    return make("div", { className: "play-fill" }, frame);
  });
  const row = make("div", { className: "play-row" }, place);
  const button = make("button", { type: "button", textContent: "Play" }, row);
  const slider = make("input", { type: "range", min: 0, max: times.length - 1, value: 0 }, row);
  slider.setAttribute("aria-label", "time of inference");
  const said = make("output", {}, row);
  const show = (moment) => {
    fills.forEach((fill, i) => { fill.style.height = `${(100 * energies[i][moment]) / most}%`; });
    const total = energies.reduce((sum, layer) => sum + layer[moment], 0);
    said.textContent = `t = ${times[moment].toFixed(1)}, energy ${total.toFixed(3)}`;
  };
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  button.onclick = () => {
    if (timer) return stop();
    if (+slider.value === times.length - 1) slider.value = 0;
    button.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = +slider.value + 1;
      show(+slider.value);
      if (+slider.value === times.length - 1) stop();
    }, 80);
  };
  slider.oninput = () => { stop(); show(+slider.value); };
  show(0);
})();
