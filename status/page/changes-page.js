/** The latest changes of the kernel. */
import { ChangeTable } from './change-table.js';
import { html } from './html.js';

/** @import { State as PageState } from './store.js' */

const PATH = '/api/v1/changes?limit=200';

/** @returns {readonly import('./poller.js').Need[]} */
export function changesNeeds() {
  return [{ path: PATH }];
}

/** @param {{ state: PageState }} props */
export function ChangesPage({ state: { answers } }) {
  const { value, error } = answers.get(PATH) ?? {};
  return html`
    <h1 tabindex="-1">Changes</h1>
    <p>
      What syncs wrote to the kernel, which Services it was for, and changes by other programs with
      the time when the agent undid them. The newest first.
    </p>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    ${value === undefined ? html`<p>Waiting for the agent …</p>` : html`<${ChangeTable} changes=${value.items} />`}
  `;
}
