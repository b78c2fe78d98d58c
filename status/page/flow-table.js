/** Conntrack entries. */
import { bytes, number } from './format.js';
import { html } from './html.js';
import { Table } from './table.js';

/** @import { FlowEntry } from '../api/traffic.ts' */

/** @param {string} address @param {number} port */
function socketAddress(address, port) {
  return address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
}

/** A packet that was not translated has no endpoint: the API repeats its destination. @param {FlowEntry} flow */
function endpointOf({ destination, destinationPort, endpoint, endpointPort }) {
  const isTranslated = endpoint !== destination || endpointPort !== destinationPort;
  return isTranslated ? socketAddress(endpoint, endpointPort) : '';
}

/** @type {import('./table.js').Column<FlowEntry>[]} */
export const FLOW_COLUMNS = [
  ['Protocol', ({ protocol }) => protocol],
  ['Client', ({ source, sourcePort }) => socketAddress(source, sourcePort)],
  ['To', ({ destination, destinationPort }) => socketAddress(destination, destinationPort)],
  ['Endpoint', endpointOf],
  ['Masqueraded', ({ masqueraded }) => (masqueraded ? 'yes' : 'no')],
  [
    'State',
    ({ state, stale }) =>
      html`${state ?? ''}${stale && html` <span class="bad-text">stale: the endpoint no longer serves the Service</span>`}`,
  ],
  ['Packets', ({ packets }) => (packets === null ? '' : number(packets)), 'number'],
  ['Bytes', ({ bytes: count }) => (count === null ? '' : bytes(count)), 'number'],
];

/** @param {{ label: string, flows: readonly FlowEntry[] }} props */
export function FlowTable({ label, flows }) {
  return html`<${Table} label=${label} rows=${flows} columns=${FLOW_COLUMNS} empty="No connection." />`;
}
