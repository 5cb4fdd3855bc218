// Replaces the sections of the page that change, and says how old its times are. Without this
// script, the page is complete; reloading shows the newest state.
"use strict";
(() => {
  const state = document.getElementById("stream");
  const page = state && state.dataset.page;
  let source = null;

  const age = (seconds) => {
    if (seconds < 90) return `${Math.max(Math.round(seconds), 0)} s ago`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
    if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
    return `${Math.round(seconds / 86400)} d ago`;
  };

  const showAges = () => {
    for (const time of document.querySelectorAll("time[data-age]")) {
      time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
      time.textContent = age((Date.now() - Date.parse(time.dateTime)) / 1000);
    }
  };

  // A section is replaced as a whole, so its focused element is found again by its address or name.
  const replace = (id, html) => {
    const section = document.getElementById(id);
    if (!section) return;
    const focused = section.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input, select, textarea")) return;
    const href = focused && focused.getAttribute("href");
    section.innerHTML = html;
    if (href) section.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
  };

  const open = () => {
    source = new EventSource(`/stream?page=${encodeURIComponent(page)}`);
    source.addEventListener("open", () => { state.textContent = "live"; });
    source.addEventListener("error", () => { state.textContent = "not connected; trying again"; });
    source.addEventListener("sections", (event) => {
      const sections = JSON.parse(event.data);
      for (const id of Object.keys(sections)) replace(id, sections[id]);
      showAges();
    });
    source.addEventListener("current", (event) => {
      const time = document.querySelector("#current time");
      if (time && event.data) time.dateTime = event.data;
      showAges();
    });
    for (const end of ["gone", "signed-out"]) {
      source.addEventListener(end, () => { source.close(); location.reload(); });
    }
  };

  showAges();
  setInterval(showAges, 5000);
  if (!page) return;
  open();
  // A hidden page needs no stream.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else if (source.readyState === EventSource.CLOSED) open();
  });
})();
