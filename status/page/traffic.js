/** Columns and texts of connections and rates. */
import { bytes, counted, number } from './format.js';

/** @import { TrafficRates } from '../api/traffic.ts' */

/** @param {readonly { readonly traffic?: TrafficRates }[]} rows */
export function hasTraffic(rows) {
  return rows.some(({ traffic }) => traffic !== undefined);
}

/** @param {number | null | undefined} value @param {(value: number) => string} [text] */
const orUnknown = (value, text = number) =>
  value === null || value === undefined ? '' : text(value);

/** @type {import('./table.js').Column<{ readonly traffic?: TrafficRates }>[]} */
export const TRAFFIC_COLUMNS = [
  ['Connections', ({ traffic }) => orUnknown(traffic?.connections), 'number'],
  ['New a second', ({ traffic }) => orUnknown(traffic?.connectionsPerSecond), 'number'],
  ['Packets a second', ({ traffic }) => orUnknown(traffic?.packetsPerSecond), 'number'],
  ['Bytes a second', ({ traffic }) => orUnknown(traffic?.bytesPerSecond, bytes), 'number'],
];

/** @param {TrafficRates | undefined} traffic @returns {readonly string[]} */
export function trafficLines(traffic) {
  if (traffic === undefined) return [];
  const { connections, connectionsPerSecond } = traffic;
  return [
    counted(connections, 'connection'),
    ...(connectionsPerSecond === null ? [] : [`${number(connectionsPerSecond)} new a second`]),
  ];
}
