/** The endpoints of a Service, and why this node uses each or not. */
import { html } from './html.js';
import { Table } from './table.js';
import { hasTraffic, TRAFFIC_COLUMNS } from './traffic.js';

/** @import { EndpointStatus } from '../api/services.ts' */

/** @type {import('./table.js').Column<EndpointStatus>[]} */
const COLUMNS = [
  [
    'Address',
    ({ address, port }) =>
      port === null
        ? address
        : address.includes(':')
          ? `[${address}]:${port}`
          : `${address}:${port}`,
  ],
  ['Port name', ({ portName }) => portName],
  ['Used', ({ cluster, localPolicy }) => decisionText(cluster, localPolicy)],
  ['Node', ({ node, local }) => (local ? 'this node' : (node ?? 'unknown'))],
  ['Zone', ({ zone }) => zone ?? ''],
  ['Hints', ({ zoneHints, nodeHints }) => [...zoneHints, ...nodeHints].join(', ')],
  [
    'Conditions',
    ({ ready, serving, terminating }) =>
      [ready && 'ready', serving && 'serving', terminating && 'terminating']
        .filter((text) => text !== false)
        .join(', ') || 'none',
  ],
];

const UNUSED = 'traffic policy not in use';

/** @param {EndpointStatus['cluster']} cluster @param {EndpointStatus['localPolicy']} local */
function decisionText(cluster, local) {
  const decisions = [
    cluster.reason === UNUSED ? undefined : { ...cluster, policy: 'Cluster' },
    local.reason === UNUSED ? undefined : { ...local, policy: 'Local' },
  ].filter((decision) => decision !== undefined);
  return decisions.map(
    ({ used, reason, policy }) => html`<div>
      <span class="state ${used ? 'good' : 'bad'}">${used ? 'yes' : 'no'}</span> ${reason}${
        decisions.length > 1 ? ` (policy ${policy})` : ''
      }
    </div>`,
  );
}

/** Unused endpoints come first. @param {{ endpoints: readonly EndpointStatus[] }} props */
export function EndpointTable({ endpoints }) {
  const isUsed = (/** @type {EndpointStatus} */ { cluster, localPolicy }) =>
    cluster.used || localPolicy.used;
  const sorted = [...endpoints].sort((a, b) => Number(isUsed(a)) - Number(isUsed(b)));
  const columns = hasTraffic(endpoints) ? [...COLUMNS, ...TRAFFIC_COLUMNS] : COLUMNS;
  return html`<${Table}
    label="Endpoints"
    rows=${sorted}
    columns=${columns}
    empty="No endpoint: no EndpointSlice of the Service has an address."
  />`;
}
