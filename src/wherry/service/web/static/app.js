// The page's own script: events that refresh what is shown, the token against requests of other sites, dialogs, nodes
// that are dragged, and the picture of a move's rounds. It makes no HTML of texts.
"use strict";
(() => {
  const REFRESH_MS = 100, BETWEEN_MS = 1000, NEAR_THE_END = 40;
  const meta = document.querySelector('meta[name="csrf"]');
  const dialog = document.getElementById("dialog");
  const body = document.body;

  // Every request of htmx sends what the session's forms send along; answers may bring a newer one.
  body.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["Wherry-CSRF"] = meta.content;
  });
  body.addEventListener("htmx:afterRequest", (event) => {
    const newer = event.detail.xhr && event.detail.xhr.getResponseHeader("Wherry-CSRF");
    if (newer) meta.content = newer;
  });

  // Errors go where they are seen: into the dialog while it is open, else above the content.
  body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status < 400) return;
    event.detail.target = document.getElementById(dialog.open ? "dialog-said" : "said");
    event.detail.swapOverride = "innerHTML";
    event.detail.shouldSwap = true;
  });
  let silent = false;
  body.addEventListener("htmx:sendError", () => {
    silent = true;
    document.getElementById("said").textContent = "The daemon does not answer; this page asks again.";
  });
  body.addEventListener("htmx:afterOnLoad", () => {
    if (silent) document.getElementById("said").textContent = "";
    silent = false;
  });

  // What changes by itself is not exchanged under somebody's hands, but when they leave it.
  let dragged = null, missed = false;
  const isBusy = () => {
    const live = document.getElementById("live");
    return dragged || live.querySelector("details[open]") || live.querySelector("input:focus, select:focus");
  };
  body.addEventListener("htmx:beforeRequest", (event) => {
    const what = event.detail.target.id;
    if (!["live", "strip", "links"].includes(what)) return;
    if (document.hidden) event.preventDefault(); // it is asked for when the page is seen again
    if (what !== "live" || !isBusy()) return;
    missed = true;
    event.preventDefault();
  });

  // A form that is on its way is not sent a second time; one that sends what is typed sends its newest.
  body.addEventListener("htmx:confirm", (event) => {
    if (event.detail.elt.matches("form.htmx-request:not([hx-trigger])")) event.preventDefault();
  });
  const left = () => setTimeout(() => {
    if (missed && !isBusy()) changed();
  }, REFRESH_MS);
  body.addEventListener("toggle", left, true);
  body.addEventListener("focusout", left);

  // What was said is seen, and a log stays at its end for who reads there.
  let follows = true;
  body.addEventListener("htmx:beforeSwap", () => {
    const log = document.getElementById("output");
    if (log) follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_THE_END;
  });
  body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "dialog-body") {
      document.getElementById("dialog-said").textContent = "";
      if (!dialog.open) dialog.showModal();
    }
    const said = document.getElementById("said");
    if (event.detail.target === said && said.getBoundingClientRect().top < 0) said.scrollIntoView({ block: "center" });
    const log = document.getElementById("output");
    if (log && follows) log.scrollTop = log.scrollHeight;
    draw();
  });
  body.addEventListener("wherry-close", () => {
    if (dialog.open) dialog.close();
    for (const open of document.querySelectorAll("#live details[open]")) open.open = false;
  });

  // A node that is dropped on a host opens the plan of its move.
  const over = (host) => {
    for (const one of document.querySelectorAll(".host.over")) one.classList.toggle("over", one === host);
    if (host) host.classList.add("over");
  };
  const hostAt = (event) => (event.target instanceof Element ? event.target.closest("[data-host]") : null);
  body.addEventListener("dragstart", (event) => {
    const node = event.target instanceof Element && event.target.closest("[data-node]");
    if (!node) return;
    dragged = node.dataset.node;
    event.dataTransfer.setData("text/plain", dragged);
    event.dataTransfer.effectAllowed = "move";
    body.classList.add("dragging");
  });
  body.addEventListener("dragend", () => {
    dragged = null;
    body.classList.remove("dragging");
    over(null);
    left();
  });
  body.addEventListener("dragover", (event) => {
    if (!dragged) return;
    over(hostAt(event));
    if (hostAt(event)) event.preventDefault();
  });
  body.addEventListener("drop", (event) => {
    const host = hostAt(event);
    if (!dragged || !host) return;
    event.preventDefault();
    const node = document.getElementById(`node-${dragged}`);
    if (node && host.contains(node)) return;
    const values = { node: dragged, host: host.dataset.host };
    htmx.ajax("POST", "/web/moves/plan", { target: "#dialog-body", swap: "innerHTML", values });
  });

  // Events: one stream while the page is visible. After a pause it goes on where it was. Many events ask once a second.
  let source = null, last = null, timer = null, asked = 0;
  const changed = () => {
    timer = null;
    asked = Date.now();
    missed = false;
    body.dispatchEvent(new CustomEvent("wherry-changed"));
  };
  const listen = () => {
    if (source || document.hidden || !("signedIn" in body.dataset)) return;
    source = new EventSource(`/v1/events/stream${last === null ? "" : `?after=${last}`}`);
    source.onmessage = (event) => {
      last = event.lastEventId;
      if (!timer) timer = setTimeout(changed, Math.max(REFRESH_MS, asked + BETWEEN_MS - Date.now()));
    };
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) { // refused: too many streams, or signed out
        source = null;
        setTimeout(listen, 15000);
      }
    };
  };
  const hangUp = () => {
    if (source) source.close();
    source = null;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      hangUp();
    } else {
      listen();
      changed();
    }
  });
  window.addEventListener("pagehide", hangUp);
  window.addEventListener("pageshow", listen);

  // A link that signs in once: its code is after "#", and leaves the address at once.
  const enter = document.querySelector("form[data-enter]");
  const enterByCode = () => {
    if (!enter || !/^#[0-9a-f]{64}$/.test(location.hash)) return;
    enter.elements.code.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    enter.requestSubmit();
  };
  enterByCode();
  window.addEventListener("hashchange", enterByCode); // another link, where one was tried before

  // Remaining bytes and dirty rate of each round; before the first, what that sent remained.
  function draw() {
    if (typeof uPlot === "undefined") return;
    for (const place of document.querySelectorAll("[data-rounds]")) {
      if (place.firstElementChild) continue;
      const rounds = JSON.parse(place.dataset.rounds);
      const style = getComputedStyle(body), of = (name) => style.getPropertyValue(name), MIB = 1048576;
      const axis = (label, more) => ({
        label, stroke: of("--quiet"), font: "12px sans-serif", labelFont: "12px sans-serif",
        grid: { stroke: of("--line"), width: 1 }, ticks: { stroke: of("--line"), width: 1 }, ...more,
      });
      const rate = (round) => (round.dirty === null || !round.seconds ? null : round.dirty / round.seconds / MIB);
      new uPlot({
        width: Math.max(260, place.clientWidth - 32), height: 260, legend: { live: false }, cursor: { show: false },
        scales: { x: { time: false } },
        axes: [
          axis("round", { incrs: [1, 2, 5, 10, 50] }), axis("MiB", { size: 60 }),
          axis("MiB/s", { scale: "rate", side: 1, size: 60, grid: { show: false } }),
        ],
        series: [
          { label: "round" },
          { label: "remaining", stroke: of("--mark"), fill: of("--mark-soft"), width: 2, points: { show: true } },
          { label: "dirty rate", stroke: of("--warm"), width: 2, scale: "rate", dash: [6, 4], points: { show: true } },
        ],
      }, [
        [0, ...rounds.map((round) => round.number)],
        [rounds[0].bytes / MIB, ...rounds.map((round) => (round.dirty === null ? null : round.dirty / MIB))],
        [null, ...rounds.map(rate)],
      ], place);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const place of document.querySelectorAll("[data-rounds]")) place.replaceChildren();
    draw();
  });

  listen();
  draw();
})();
