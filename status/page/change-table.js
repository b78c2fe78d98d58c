/** A table of changes of the kernel. */
import { clock, counted, duration, number } from './format.js';
import { html } from './html.js';
import { serviceLink } from './location.js';
import { Table } from './table.js';

/** @import { Change } from '../api/activity.ts' */

const KINDS = {
  sync: 'sync',
  repair: 'repair of external changes',
  failure: 'failed sync',
  external: 'external change',
};

/** Services named in one row. */
const MAX_NAMED = 3;

/** @type {import('./table.js').Column<Change>[]} */
const COLUMNS = [
  ['Time', ({ at }) => clock(at)],
  [
    'What',
    ({ kind, full, count }) =>
      html`<span class=${kind === 'sync' ? '' : 'bad-text'}>${KINDS[kind] ?? kind}</span>${full ? ', full' : ''}${count > 1 ? ` (${count} times)` : ''}`,
  ],
  ['Family', ({ family }) => family],
  ['Rules of', ({ rules }) => rules],
  ['Services', ({ services, serviceCount }) => named(services, serviceCount)],
  ['Written', ({ written }) => (written === 0 ? '' : number(written)), 'number'],
  ['Conntrack entries deleted', ({ deletedFlows }) => deletedFlows || '', 'number'],
  ['Sync took', ({ seconds }) => (seconds === null ? '' : duration(seconds)), 'number'],
  [
    'In the kernel after',
    ({ queuedSeconds }) => (queuedSeconds === null ? '' : duration(queuedSeconds)),
    'number',
  ],
  ['Details', detailsText],
];

/** @param {Change} change */
function detailsText({ kind, message, undoneAt }) {
  if (kind === 'repair') {
    return message === ''
      ? 'this full sync found objects that another program changed, and restored them'
      : `restored what another program changed: ${message}`;
  }
  if (kind !== 'external') return message;
  return `${message}; ${undoneAt === null ? 'not undone yet' : `undone at ${clock(undoneAt)}`}`;
}

/** @param {readonly string[]} services @param {number} count */
function named(services, count) {
  const first = services.slice(0, MAX_NAMED);
  const rest = count - first.length;
  return html`${first.map(
    (service, index) =>
      html`${index > 0 ? ', ' : ''}<a href=${serviceLink(service)}>${service}</a>`,
  )}${rest > 0 ? ` and ${counted(rest, 'other')}` : ''}`;
}

/** @param {{ changes: readonly Change[] }} props */
export function ChangeTable({ changes }) {
  return html`<${Table} label="Changes" rows=${changes} columns=${COLUMNS} empty="No change yet." />`;
}
