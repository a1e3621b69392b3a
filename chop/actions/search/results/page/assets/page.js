// The start of everything.

function startCopying() {
  for (const button of document.querySelectorAll(".copy[data-apply], .copy[data-whole]")) {
    const { apply } = button.dataset;
    button.addEventListener("click", () => copy(button, apply === undefined ? data.command : applyCommand(apply)));
  }
}

startScatter();
startTable();
startCurves();
startParallel();
startTrials();
startCopying();
startDesign();
if (byId("live")) restoreView();
startLive(isBusy, saveView);
document.documentElement.dataset.ready = "true";
