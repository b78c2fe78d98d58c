/** Objects in the kernel, as they are and as they should be. Different ones come first. */
import { number } from './format.js';
import { html } from './html.js';
import { State } from './state-label.js';
import { Table } from './table.js';

/** @import { KernelObject } from '../api/kernel.ts' */

const ORDER = ['missing', 'changed', 'unexpected', 'changing', 'ok'];

/** @param {KernelObject} object */
function stateOf({ state, inProgress }) {
  return inProgress ? 'changing' : state;
}

/** @type {import('./table.js').Column<KernelObject>[]} */
const COLUMNS = [
  ['State', (object) => html`<${State} state=${stateOf(object)} />`],
  ['Type', ({ type }) => type],
  ['In', ({ in: container }) => html`<code>${container}</code>`],
  ['In the kernel', ({ actual }) => code(actual)],
  ['Should be', ({ desired, actual }) => (desired === actual ? 'the same' : code(desired))],
  ['Family', ({ family }) => family],
];

/** @param {string | null} text */
function code(text) {
  return text === null ? 'nothing' : html`<code>${text}</code>`;
}

/** @param {{ objects: readonly KernelObject[], total?: number, label?: string, empty?: string }} props */
export function KernelTable({ objects, total = objects.length, label, empty }) {
  const rank = (/** @type {KernelObject} */ object) => ORDER.indexOf(stateOf(object));
  const sorted = [...objects].sort((a, b) => rank(a) - rank(b));
  return html`${
    total > objects.length &&
    html`<p class="dim-text">The first ${number(objects.length)} of ${number(total)}.</p>`
  }
    <${Table}
      label=${label ?? 'Objects in the kernel'}
      rows=${sorted}
      columns=${COLUMNS}
      empty=${empty ?? 'The agent shows no object of this Service.'}
    />`;
}
