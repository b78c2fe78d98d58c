/** How to see what the kernel does with the packets: only root can arm a live trace, so a page cannot. */
import { html } from './html.js';

/** @param {{ node: string | undefined, parameters: URLSearchParams }} props valid parameters of a trace. */
export function LiveTrace({ node, parameters }) {
  /** @param {string} flag @param {string} name */
  const option = (flag, name) => {
    const value = parameters.get(name);
    return value === null ? [] : [`${flag}=${value.toLowerCase()}`];
  };
  const options = [...option('--proto', 'protocol'), ...option('--port', 'port')];
  const ends = [parameters.get('from'), parameters.get('to')];
  const command = ['trace', ...ends, ...options, '--live'].join(' ');
  return html`<section aria-label="Live trace">
    <h2>In the kernel</h2>
    <p>To see which rules packets pass, run as root on the node, and connect:</p>
    <p><code>portwide ${command}</code></p>
    <p>Or from elsewhere:</p>
    <p><code>kubectl portwide --node ${node ?? 'NODE'} ${command}</code></p>
  </section>`;
}
