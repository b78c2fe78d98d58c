/** How to see what the kernel does with the packets: only root can arm a live trace, so a page cannot. */
import { html } from './html.js';
import { traceCommand } from './trace-command.js';

/** @param {{ status: any, parameters: URLSearchParams }} props `NodeStatus` of the API, and valid parameters of a trace. */
export function LiveTrace({ status, parameters }) {
  const command = traceCommand(parameters, status?.statusSocket);
  return html`<section aria-label="Live trace">
    <h2>In the kernel</h2>
    ${status?.statusSocket === null && html`<p class="notice">The agent has no socket for commands (--status-socket=none).</p>`}
    <p>To see which rules packets pass, run as root on the node, and connect:</p>
    <p><code>portwide ${command}</code></p>
    <p>Or from elsewhere:</p>
    <p><code>kubectl portwide --node ${status?.nodeName ?? 'NODE'} ${command}</code></p>
  </section>`;
}
