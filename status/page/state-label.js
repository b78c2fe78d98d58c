/** The state of the node or of a Service, as a coloured word. */
import { html } from './html.js';

/** @type {Readonly<Record<string, readonly [text: string, tone: string]>>} */
const STATES = {
  healthy: ['healthy', 'good'],
  unknown: ['unknown', 'dim'],
  starting: ['starting', 'warn'],
  degraded: ['degraded', 'bad'],
  served: ['served', 'good'],
  noEndpoints: ['no endpoints', 'bad'],
  partial: ['partly no endpoints', 'warn'],
  partlyRefused: ['partly refused', 'bad'],
  refused: ['refused', 'bad'],
  ignored: ['ignored', 'dim'],
  allow: ['allowed', 'good'],
  deny: ['denied', 'bad'],
  ok: ['ok', 'good'],
  warn: ['warn', 'warn'],
  fail: ['fail', 'bad'],
  missing: ['missing', 'bad'],
  changed: ['changed', 'bad'],
  unexpected: ['unexpected', 'bad'],
  changing: ['changing', 'warn'],
};

/** @param {{ state: string }} props */
export function State({ state }) {
  const [text, tone] = STATES[state] ?? [state, 'dim'];
  return html`<span class="state ${tone}">${text}</span>`;
}
