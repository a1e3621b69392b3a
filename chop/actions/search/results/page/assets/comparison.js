// The start of a page about two searches.

startScatter();
startTable();
startTrials();
listeners.push((i) => say(`Chosen: ${trialText(i)}`));
document.documentElement.dataset.ready = "true";
