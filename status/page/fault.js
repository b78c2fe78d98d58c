/** Faults of the page itself: a view that throws while it is drawn, and errors outside of views. */
import { html } from './html.js';
import { Component } from './preact.js';

/** Browsers report it when observers need another frame. It is no fault. */
const HARMLESS = 'ResizeObserver loop';

/** Characters of a message to show. */
const MAX_MESSAGE = 300;

/** The message of anything that was thrown. @param {unknown} error */
function messageOf(error) {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return text.length > MAX_MESSAGE ? `${text.slice(0, MAX_MESSAGE)} …` : text;
}

/** Calls back with the message of each error that no code caught. @param {(message: string) => void} onFault */
export function watchFaults(onFault) {
  window.addEventListener('error', ({ error, message }) => {
    if (!message.startsWith(HARMLESS)) onFault(messageOf(error ?? message));
  });
  window.addEventListener('unhandledrejection', ({ reason }) => onFault(messageOf(reason)));
}

/**
 * @typedef {object} FaultProps
 * @property {string} title What is faulty.
 * @property {boolean} [isView] A view is faulty, so the title is the heading of the page.
 * @property {string} message
 * @property {string | undefined} version of the agent.
 * @property {readonly string[]} [paths] Answers that the view draws.
 * @property {string} action Text of the button.
 * @property {() => void} onAction
 */

/** Says that the page is at fault, and gives what a report needs. @param {FaultProps} props */
export function Fault({
  title,
  isView = false,
  message,
  version = 'unknown',
  paths = [],
  action,
  onAction,
}) {
  const report = [
    `Portwide ${version}, status page, view ${location.hash || '#/node'}`,
    message,
    navigator.userAgent,
  ].join('\n');
  return html`<div class="notice bad fault">
    <div role="alert">
      ${isView ? html`<h1 tabindex="-1">${title}</h1>` : html`<p><strong>${title}</strong></p>`}
      <p>
        This is a fault of the page, not of the node: the agent serves Services as before. Commands,
        such as <code>portwide status</code>, show the same in a terminal.
      </p>
      <p><code>${message}</code></p>
    </div>
    <p>
      <button class="action" type="button" onClick=${onAction}>${action}</button>
    </p>
    <details>
      <summary>Report this fault</summary>
      <p>Send this text to the developers of Portwide${paths.length > 0 && ', with the answers of the agent that this view draws'}:</p>
      <pre tabindex="0" role="region" aria-label="Text of the report">${report}</pre>
      ${
        paths.length > 0 &&
        html`<ul>
          ${paths.map((path) => html`<li><a href=${path} target="_blank"><code>${path}</code></a></li>`)}
        </ul>`
      }
    </details>
  </div>`;
}

/**
 * @typedef {object} BoundaryProps
 * @property {string} title Says what is missing while the children throw.
 * @property {boolean} [isView]
 * @property {unknown} attempt The children are drawn again when it changes.
 * @property {string | undefined} version
 * @property {readonly string[]} [paths]
 * @property {any} [children]
 */

/**
 * Draws its children, or a message if they throw. The message stays in the document while the next attempt runs, so
 * that a button in it keeps the focus.
 * @extends {Component<BoundaryProps, { message: string | undefined, failed: unknown }>}
 */
export class Boundary extends Component {
  /** @override */
  state = {
    message: /** @type {string | undefined} */ (undefined),
    failed: /** @type {unknown} */ (NEVER),
  };
  /** Whether the children threw since `render`. */
  hasThrown = false;

  /** @override @param {unknown} error */
  componentDidCatch(error) {
    this.hasThrown = true;
    const message = messageOf(error);
    // With the stack, once.
    if (message !== this.state.message) console.error(error);
    this.setState({ message, failed: this.props.attempt });
  }

  /** @override */
  componentDidUpdate() {
    const { message, failed } = this.state;
    const isDrawn = failed !== this.props.attempt && !this.hasThrown;
    if (isDrawn && message !== undefined) this.setState({ message: undefined, failed: NEVER });
  }

  again = () => this.setState({ failed: NEVER });

  /** @override */
  render() {
    this.hasThrown = false;
    const { message, failed } = this.state;
    const { children, attempt, title, isView, version, paths } = this.props;
    return html`${
      message !== undefined &&
      html`<${Fault}
        key="fault"
        title=${title}
        isView=${isView}
        message=${message}
        version=${version}
        paths=${paths}
        action="Try again"
        onAction=${this.again}
      />`
    }${failed !== attempt && html`<${Children} key="children">${children}<//>`}`;
  }
}

/** No attempt failed. */
const NEVER = Symbol('never');

/** @param {{ children?: any }} props */
function Children({ children }) {
  return children;
}
