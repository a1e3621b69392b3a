// Follow a search: ask the server from time to time whether there is something new.

const every = 1500; // milliseconds

function startLive(isBusy, saveView) {
  const bar = document.getElementById("live");
  if (!bar) return;
  const follow = document.getElementById("follow");
  const note = document.getElementById("live-note");
  const ask = async () => {
    let version = null;
    try {
      version = await (await fetch("version", { cache: "no-store" })).text();
      note.textContent = "";
    } catch {
      note.textContent = "The server has ended, so that this page no longer changes.";
    }
    const isNew = version !== null && version !== bar.dataset.version;
    if (isNew && follow.checked && !isBusy()) {
      saveView();
      location.reload();
      return;
    }
    if (isNew) note.textContent = "There are new trials.";
    setTimeout(ask, every);
  };
  setTimeout(ask, every);
}
