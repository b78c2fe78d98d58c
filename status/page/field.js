/** A field of a form for one line of text. */
import { html } from './html.js';

/** @param {{ name: string, label: string, hint: string, value?: string | null, required?: boolean }} props */
export function Field({ name, label, hint, value, required = true }) {
  return html`<label>
    ${label}
    <input name=${name} placeholder=${hint} size=${Math.max(hint.length, 8)} defaultValue=${value ?? ''} required=${required} maxlength="300" />
  </label>`;
}
