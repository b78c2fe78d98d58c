/** The frame of each page: name of the node, links, and whether the agent answers. */
import { ChangesPage, changesNeeds } from './changes-page.js';
import { Boundary, Fault } from './fault.js';
import { FlowsPage } from './flows-page.js';
import { age, clock } from './format.js';
import { html } from './html.js';
import { link } from './location.js';
import { NodePage, nodeNeeds } from './node-page.js';
import { PolicyPage, policyNeeds } from './policy-page.js';
import { ServicePage, serviceNeeds } from './service-page.js';
import { ServicesPage, servicesNeeds } from './services-page.js';
import { State } from './state-label.js';
import { TopPage, topNeeds } from './top-page.js';
import { TracePage, traceNeeds } from './trace-page.js';

/** @import { State as PageState } from './store.js' */
/** @import { Need } from './poller.js' */

/**
 * @typedef {object} PageDefinition
 * @property {string} [title] Text of the link; pages without one have none.
 * @property {string} [resource] The page needs this resource of the API.
 * @property {any} component
 * @property {(state: PageState) => readonly Need[]} needs
 */

/** @type {Readonly<Record<string, PageDefinition>>} */
const PAGES = {
  node: { title: 'Node', component: NodePage, needs: nodeNeeds },
  services: { title: 'Services', component: ServicesPage, needs: servicesNeeds },
  service: { component: ServicePage, needs: serviceNeeds },
  top: { title: 'Traffic', resource: '/api/v1/top', component: TopPage, needs: topNeeds },
  flows: { title: 'Flows', resource: '/api/v1/flows', component: FlowsPage, needs: () => [] },
  trace: { title: 'Trace', resource: '/api/v1/trace', component: TracePage, needs: traceNeeds },
  policy: {
    title: 'Policies',
    resource: '/api/v1/policies',
    component: PolicyPage,
    needs: policyNeeds,
  },
  changes: { title: 'Changes', component: ChangesPage, needs: changesNeeds },
};

/** Seconds between two requests for the list of resources: it changes only with the version of the agent. */
const RESOURCES = { path: '/api/v1', interval: 60_000 };

/** What the agent must be asked for. @param {PageState} state @returns {readonly Need[]} */
export function needsOf(state) {
  const needs = PAGES[state.location.page]?.needs(state) ?? [];
  return [RESOURCES, { path: '/api/v1/status' }, ...needs];
}

/**
 * @typedef {object} AppProps
 * @property {PageState} state
 * @property {unknown} [error] `needsOf` threw it.
 * @property {(row: number) => void} onScroll
 * @property {(path: string) => void} onAgain Asks again for what is asked for once.
 * @property {() => void} onDismiss Hides the fault of the page.
 */

/** @param {AppProps} props */
export function App({ state, error, onScroll, onAgain, onDismiss }) {
  const { status, location, answers, lostSince } = state;
  const listed = answers.get(RESOURCES.path)?.value?.paths;
  /** @type {readonly string[]} */
  const paths = Array.isArray(listed) ? listed : [];
  const page = PAGES[location.page];
  const boundary = { attempt: answers, version: status?.version };
  document.title = `${status === undefined ? '' : `${status.nodeName} · `}Portwide`;
  return html`
    <header class="top">
      <a class="brand" href="#/node">Portwide</a>
      ${
        status &&
        html`<span class="node">${status.nodeName}</span> <${State} state=${lostSince === undefined ? status.state : 'unknown'} />`
      }
      <nav aria-label="Pages">
        ${Object.entries(PAGES).map(
          ([name, { title, resource }]) =>
            title !== undefined &&
            (resource === undefined || paths.includes(resource)) &&
            html`<a
              href=${link(name)}
              aria-current=${isCurrent(name, location.page) ? 'page' : undefined}
              >${title}</a
            >`,
        )}
      </nav>
    </header>
    <div role="status" class="notices"><${Connection} state=${state} /></div>
    ${
      state.fault !== undefined &&
      html`<${Fault}
        title="Something on this page does not work."
        message=${state.fault}
        version=${status?.version}
        action="Hide"
        onAction=${onDismiss}
      />`
    }
    <main>
      ${
        page === undefined
          ? html`<h1 tabindex="-1">No such page</h1>
              <p><a href="#/node">Show the node</a></p>`
          : html`<${Boundary}
              ...${boundary}
              key=${`${location.page}/${location.path.join('/')}`}
              title="The page cannot show this view."
              isView=${true}
              paths=${[...answers.keys()]}
            >
              <${View}
                component=${page.component}
                error=${error}
                state=${state}
                paths=${paths}
                onScroll=${onScroll}
                onAgain=${onAgain}
              />
            <//>`
      }
    </main>
    <${Boundary} ...${boundary} title="The page cannot show the mode of the agent.">
      ${status && html`<${Footer} status=${status} />`}
    <//>
  `;
}

/** A view. Throws inside its boundary. @param {{ component: any, error: unknown, state: PageState }} props */
function View({ component, error, ...props }) {
  if (error !== undefined) throw error;
  return html`<${component} ...${props} />`;
}

/** @param {{ status: import('../api/node-status.ts').NodeStatus }} props */
function Footer({ status: { version, mode, startedAt, now } }) {
  return html`<footer>
    Portwide ${version}, mode ${mode.name} (${mode.reason}), running for ${age(startedAt, now)}
  </footer>`;
}

/** @param {string} name @param {string} page */
function isCurrent(name, page) {
  return name === page || (name === 'services' && page === 'service');
}

/** @param {{ state: PageState }} props */
function Connection({ state: { lostSince, restartedAt, isOutdated, status } }) {
  if (lostSince !== undefined) {
    return html`<p class="notice bad">
      The agent has not answered since ${clock(lostSince)}. It may be restarting; rules stay in
      place. This page shows old values and asks again each second.
    </p>`;
  }
  if (isOutdated) {
    return html`<p class="notice">
      The agent now has version ${status?.version}. <a href="/">Load the page again</a>.
    </p>`;
  }
  if (restartedAt !== undefined) {
    return html`<p class="notice">The agent restarted at ${clock(status?.startedAt ?? 0)}.</p>`;
  }
  return undefined;
}
