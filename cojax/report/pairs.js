// Evaluation tasks before training and after it: a list, and for the chosen task its two episodes side by side.
function pairSection({pairs, config}) {
  const kept = remembered("pairs", {place: 0}), listing = h("ul", {class: "list"}), detail = h("div");
  const verdict = (one) => h("span", {class: one.reward >= 1 ? "yes" : "no"}, one.reward >= 1 ? "solved" : `reward ${short(one.reward)}`);
  const column = (title, one) => h("div", {class: "card"}, h("h3", {}, title), transcript(one, one, "", {tasks: []}, [], null));
  function show(chosen) {
    kept.place = chosen;
    for (const row of listing.children) row.classList.toggle("chosen", Number(row.dataset.place) === chosen);
    replace(detail, h("div", {class: "grid"}, column("before training", pairs[chosen].before), column("after training", pairs[chosen].after)));
  }
  fill(listing, {}, pairs.map(({before, after}, place) => pickable(h("li", {class: place ? null : "chosen", "data-place": place},
    h("div", {class: "small"}, verdict(before), h("span", {class: "faint"}, " → "), verdict(after)), h("div", {}, before.query)), () => show(place))));
  if (pairs.length) show(Math.min(kept.place, pairs.length - 1));
  const temperature = config.config?.evaluation?.temperature;
  const lead = `Tasks of the evaluation, spread evenly over it and not chosen by their result, as the policy played them before training and after it${known(temperature) ? ` at temperature ${temperature}${temperature === 0 ? " (greedy)" : ""}` : ""}.`;
  return section("pairs", "Before and after", lead, pairs.length
    ? [h("div", {class: "card scroll", css: {padding: "0", "max-height": "260px", "margin-bottom": "16px"}}, listing), detail]
    : h("p", {class: "empty"}, "The run has not stored episodes of both evaluations."));
}
