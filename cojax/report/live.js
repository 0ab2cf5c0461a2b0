// A live page asks its own server for what is new. The server answers when there is something, so that both rest until then.
async function watch(version) {
  const status = (text, lost) => { const node = document.getElementById("live"); if (node) { node.textContent = text; node.className = lost ? "live lost" : "live"; } };
  for (;;) {
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, {once: true}));
    try {
      const reply = await fetch(`data.json?after=${version}`);
      if (reply.status === 200) {
        const fresh = JSON.parse(await reply.text());
        version = fresh.live;
        redraw(fresh);
      } else if (reply.status !== 204) throw new Error(await reply.text());
      else status("live");
    } catch (error) {
      status(error instanceof TypeError ? "no longer live: the command has ended" : `not drawn anew: ${error.message}`, true);
      await new Promise((resolve) => setTimeout(resolve, 5_000));
    }
  }
}

// Draws everything anew and keeps what the reader sees: place, choice, what is open, the field being typed in.
function redraw(data) {
  const [place, open] = [scrollY, [...document.querySelectorAll("details")].map((node) => node.open)];
  const active = document.activeElement, field = active && active.type === "search" ? [active.placeholder, active.selectionStart] : null;
  const chosen = chosenByAddress();
  const lists = [...document.querySelectorAll(".scroll")].map((node) => node.scrollTop);
  LOADING.clear();
  draw(data);
  if (rooms[chosen[0]] && chosen[1]) rooms[chosen[0]].show(chosen[1]);
  const details = [...document.querySelectorAll("details")];
  if (details.length === open.length) details.forEach((node, index) => { node.open = open[index]; });
  document.querySelectorAll(".scroll").forEach((node, index) => { node.scrollTop = lists[index] || 0; });
  const again = field && [...document.querySelectorAll("input[type=search]")].find((node) => node.placeholder === field[0]);
  if (again) { again.focus({preventScroll: true}); again.setSelectionRange(field[1], field[1]); }
  scrollTo({top: place, behavior: "instant"});
}
