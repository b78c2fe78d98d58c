/** A list of problems, for the node or one Service. */
import { html } from './html.js';
import { serviceLink } from './location.js';

/** @import { Problem } from '../api/common.ts' */

/** @param {{ problems: readonly Problem[] }} props */
export function Problems({ problems }) {
  if (problems.length === 0) return html`<p class="good-text">No problem.</p>`;
  return html`<ul class="problems">
    ${problems.map(
      ({ reason, message, object, family }) => html`<li>
        <strong>${reason}</strong>${family === null ? '' : ` (${family})`}
        ${object !== null && html` <${ObjectLink} object=${object} />`}
        <div>${message}</div>
      </li>`,
    )}
  </ul>`;
}

/** @param {{ object: string }} props `Service ns/name` */
function ObjectLink({ object }) {
  const [kind, name = ''] = object.split(' ', 2);
  return kind === 'Service' ? html`<a href=${serviceLink(name)}>${name}</a>` : object;
}
