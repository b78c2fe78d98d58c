/** A table of text. Wide ones scroll sideways in their own frame. */
import { html } from './html.js';

/**
 * @template Row
 * @typedef {readonly [title: string, cell: (row: Row) => any, kind?: string | undefined]} Column `kind` is a CSS class.
 */

/**
 * @template Row
 * @param {{ label: string, rows: readonly Row[], columns: readonly Column<Row>[], empty?: string }} props
 */
export function Table({ label, rows, columns, empty = 'none' }) {
  if (rows.length === 0) return html`<p class="dim-text">${empty}</p>`;
  return html`<div class="frame" tabindex="0" role="region" aria-label=${label}>
    <table aria-label=${label}>
      <thead>
        <tr>
          ${columns.map(([title, , kind]) => html`<th scope="col" class=${kind}>${title}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) =>
            html`<tr>
              ${columns.map(([, cell, kind]) => html`<td class=${kind}>${cell(row)}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
