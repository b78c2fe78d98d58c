/** Ports owned by pods: which pod owns which ports, and endpoints that own none. */
import { html } from './html.js';
import { Table } from './table.js';

/** @import { OwnedPortsStatus } from '../api/services.ts' */

const STATES = {
  served: 'served',
  notServing: 'owner does not serve: rejected',
  vacant: 'no owner: rejected',
  refused: 'the VIP is refused',
};

/** @type {import('./table.js').Column<OwnedPortsStatus['slices'][number]>[]} */
const SLICE_COLUMNS = [
  [
    'Ordinal',
    ({ firstOrdinal, lastOrdinal }) =>
      firstOrdinal === lastOrdinal ? `${firstOrdinal}` : `${firstOrdinal}–${lastOrdinal}`,
    'number',
  ],
  ['Ports', ({ ports }) => ports.replaceAll(',', ', ')],
  ['Owner', ({ owner }) => owner ?? 'none'],
  ['State', ({ state }) => STATES[state]],
];

/** @type {import('./table.js').Column<OwnedPortsStatus['withoutSlice'][number]>[]} */
const WITHOUT_SLICE_COLUMNS = [
  ['Endpoint', ({ address }) => address],
  ['Ordinal', ({ ordinal }) => ordinal ?? 'none'],
  ['Reason', ({ reason }) => reason],
];

/** @param {{ owned: OwnedPortsStatus }} props */
export function OwnedPorts({ owned }) {
  const { family, ports, portsPerPod, udpVip, slices, omittedSlices, withoutSlice } = owned;
  const hasUdp = ports.some((range) => range.endsWith('/UDP'));
  return html`<h2>Owned ports (${family})</h2>
    <p>
      ${ports.join(', ')}: ${portsPerPod} for each pod.
      ${hasUdp ? ` Owners speak as ${udpVip ?? 'no VIP, because it is refused'}.` : ''}
    </p>
    ${owned.portsOfOtherServices.map(
      ({ vip, ports: others }) => html`<p>Other Services list on ${vip}: ${others.join(', ')}</p>`,
    )}
    ${owned.refusedVips.map(
      ({ vip, service }) =>
        html`<p>
          Not served on ${vip}:
          ${service === null ? ' it is an address of this node' : ` the pods of Service ${service} answer there`}
        </p>`,
    )}
    <${Table} label=${`Slices (${family})`} rows=${slices} columns=${SLICE_COLUMNS} empty="No slice." />
    ${omittedSlices > 0 && html`<p>and ${omittedSlices} more</p>`}
    ${
      withoutSlice.length > 0 &&
      html`<h3>Endpoints without owned ports</h3>
        <${Table} label=${`Endpoints without owned ports (${family})`} rows=${withoutSlice} columns=${WITHOUT_SLICE_COLUMNS} empty="" />`
    }`;
}
