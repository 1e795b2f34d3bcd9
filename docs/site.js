// What the theme's script adds is made usable without a pointer: tables that scroll take the keyboard's focus, and each
// group of buttons at a block of code has a name of its own.
const WRAPPED = ".md-typeset__scrollwrap:not([tabindex])";
const BUTTONS = "nav.md-code__nav:not([aria-label])";

function mend() {
  for (const box of document.querySelectorAll(WRAPPED)) {
    box.tabIndex = 0;
    box.role = "region";
    box.ariaLabel = `Table ${[...document.querySelectorAll(".md-typeset__scrollwrap")].indexOf(box) + 1}`;
  }
  document.querySelectorAll("nav.md-code__nav").forEach((nav, place) => {
    if (nav.matches(BUTTONS)) nav.ariaLabel = `Code ${place + 1}`;
  });
}

new MutationObserver(mend).observe(document.documentElement, { childList: true, subtree: true });
mend();
