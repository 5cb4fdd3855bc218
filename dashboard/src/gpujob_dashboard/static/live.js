// Brings the sections of the page that change up to date, and shows how old its times are. Without
// this script, the page is complete; reloading shows the newest state.
"use strict";
(() => {
  const RETRY_MILLISECONDS = 5000;
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

  // Makes an element like another one. Equal parts stay, and with them focus, selection, scrolling
  // and entered text.
  const update = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) { old.nodeValue = fresh.nodeValue; return; }
    for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const name of fresh.getAttributeNames()) old.setAttribute(name, fresh.getAttribute(name));
    updateChildren(old, fresh);
  };

  const updateChildren = (old, fresh) => {
    const wanted = [...fresh.childNodes];
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
    wanted.forEach((child, number) => {
      if (number < old.childNodes.length) update(old.childNodes[number], child);
      else old.append(child);
    });
  };

  // Rows move, so a focused link is found again by its address.
  const replace = (id, html) => {
    const section = document.getElementById(id);
    if (!section) return;
    const focused = section.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    updateChildren(section, fresh.content);
    if (href && document.activeElement.getAttribute("href") !== href) {
      section.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
    }
  };

  const open = () => {
    if (document.hidden) return;
    source = new EventSource(`/stream?page=${encodeURIComponent(page)}`);
    source.addEventListener("open", () => { state.textContent = "live"; });
    source.addEventListener("error", () => {
      state.textContent = "not connected; trying again";
      // The browser itself tries again after a cut, but not after a refusal, such as a proxy's.
      if (source.readyState === EventSource.CLOSED) setTimeout(reopen, RETRY_MILLISECONDS);
    });
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

  const reopen = () => { if (source?.readyState !== EventSource.OPEN) { source?.close(); open(); } };

  showAges();
  setInterval(showAges, 5000);
  if (!page) return;
  // A hidden page needs no stream.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) reopen();
    else source?.close();
  });
  open();
})();
