/** Starts the page. */
import { App, needsOf } from './app.js';
import { watchFaults } from './fault.js';
import { html } from './html.js';
import { parseLocation } from './location.js';
import { Poller } from './poller.js';
import { render } from './preact.js';
import { Store } from './store.js';

const root = /** @type {HTMLElement} */ (document.getElementById('app'));
const store = new Store();
const poller = new Poller({
  answered: (path, value) => store.answered(path, value, Date.now()),
  unchanged: (path, value) => store.unchanged(path, value, Date.now()),
  refused: (path, error) => store.refused(path, error),
  busy: () => store.busy(),
  lost: () => store.lost(Date.now()),
  isVisible: () => document.visibilityState === 'visible',
});

let isScheduled = false;

function update() {
  isScheduled = false;
  let error;
  try {
    poller.show(needsOf(store.state));
  } catch (thrown) {
    // An answer has another form than expected. The view says so; the poller goes on asking.
    error = thrown;
  }
  const props = { state: store.state, error, onScroll, onDismiss, onAgain };
  render(html`<${App} ...${props} />`, root);
}

function onDismiss() {
  store.update({ fault: undefined });
}

/** @param {string} path */
function onAgain(path) {
  poller.again(path);
}

/** @param {number} scroll */
function onScroll(scroll) {
  if (scroll !== store.state.scroll) store.update({ scroll });
}

function navigate() {
  store.navigate(parseLocation(location.hash));
}

store.onChange(() => {
  if (isScheduled) return;
  isScheduled = true;
  // Answers that arrive together are drawn once. A hidden page gets no animation frames.
  queueMicrotask(update);
});
window.addEventListener('hashchange', () => {
  const before = store.state.location;
  navigate();
  // A new page begins at its top, and screen readers read its heading.
  if (before.page !== store.state.location.page) {
    queueMicrotask(() => {
      window.scrollTo(0, 0);
      document.querySelector('h1')?.focus();
    });
  }
});
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') poller.resume();
});
document.addEventListener('keydown', (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key !== '/' || target.matches('input, select, textarea')) return;
  const search = document.querySelector('input[type=search]');
  if (search === null) return;
  event.preventDefault();
  /** @type {HTMLElement} */ (search).focus();
});
watchFaults((message) => store.failed(message));
root.replaceChildren();
navigate();
