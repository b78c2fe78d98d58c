/** Fields of forms that ask about a connection. */
import { html } from './html.js';

const PROTOCOLS = ['TCP', 'UDP', 'SCTP'];

/**
 * A field for one line of text.
 * @param {{ name: string, label: string, hint: string, value?: string | null, required?: boolean }} props
 */
export function Field({ name, label, hint, value, required = true }) {
  return html`<label>
    ${label}
    <input name=${name} placeholder=${hint} size=${Math.max(hint.length, 8)} defaultValue=${value ?? ''} required=${required} maxlength="300" />
  </label>`;
}

/** @param {{ value: string | null }} props */
export function ProtocolField({ value }) {
  return html`<label>
    Protocol
    <select name="protocol">
      ${PROTOCOLS.map((name) => html`<option selected=${name === value}>${name}</option>`)}
    </select>
  </label>`;
}
