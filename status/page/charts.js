/** The time series of the agent. */
import { Chart } from './chart.js';
import { html } from './html.js';

/** @import { SeriesList } from '../api/activity.ts' */

/** @param {{ list: SeriesList | undefined }} props */
export function Charts({ list }) {
  if (list === undefined) return html`<p>Waiting for the agent …</p>`;
  if (list.times.length < 2) {
    return html`<p class="dim-text">
      The agent has just started; it takes a value every ${list.intervalSeconds} seconds.
    </p>`;
  }
  return html`<div class="charts">
    ${list.series.map(
      (series) => html`<${Chart} key=${series.name} times=${list.times} series=${series} />`,
    )}
  </div>`;
}
