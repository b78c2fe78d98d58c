import assert from 'node:assert/strict';
import type { Page } from 'playwright-core';
import { Unanswerable } from '../../../status/http/handler.ts';
import { waitFor } from '../../lab/wait.ts';
import { accessibilityProblems, startBrowser, type TestBrowser } from './browser.ts';
import {
  type Answers,
  type FakeAgent,
  fakeAnswers,
  fakeDetail,
  fakeStatus,
  fakeSummary,
  startFakeAgent,
} from './fake-agent.ts';

const NONE = { items: [], total: 0, continue: null };
const never = () => new Promise<object>(() => {});
const refuse = () => {
  throw new Unanswerable(501, 'the module nf_conntrack is not loaded');
};
const iptables = fakeStatus({
  mode: { name: 'iptables', reason: '--proxy-mode=iptables' },
  state: 'healthy',
  problems: [],
});

/** A state of the node, the address of the page, the answers, and what the page says. */
const STATES: readonly (readonly [string, string, Answers, readonly (string | RegExp)[]])[] = [
  ['no Service', '#/services', { '/api/v1/services': () => NONE }, ['0 Services found']],
  ['no change', '#/changes', { '/api/v1/changes': () => NONE }, ['No change yet.']],
  [
    'no policy',
    '#/policy',
    { '/api/v1/policies': () => NONE, '/api/v1/pods': () => NONE },
    ['All policies'],
  ],
  ['mode iptables', '#/node', { '/api/v1/status': () => iptables }, ['No problem.']],
  [
    'a Service without endpoints, conntrack and objects',
    '#/services/default/media',
    {
      '/api/v1/services/{namespace}/{name}': () =>
        fakeDetail({
          summary: fakeSummary({ state: 'noEndpoints' }),
          endpoints: [],
          routes: [],
          kernel: [],
          kernelTotal: 0,
          connections: null,
          healthCheck: null,
          events: [],
        }),
    },
    ['No endpoint', 'No VIP is served.', 'shows no object of this Service', 'No Event yet.'],
  ],
  [
    'an agent that has just started',
    '#/node',
    { '/api/v1/series': () => ({ intervalSeconds: 5, times: [], series: [] }) },
    ['takes a value every 5 seconds'],
  ],
  ['no counters', '#/top', {}, ['nf_conntrack_acct is 0']],
  [
    'no traffic',
    '#/top?by=port',
    { '/api/v1/top': () => ({ ...NONE, sample: null }) },
    ['No traffic.'],
  ],
  ['no conntrack', '#/top', { '/api/v1/top': refuse }, ['nf_conntrack is not loaded']],
  ['no flow', '#/flows', { '/api/v1/flows': never }, ['No flow yet.']],
  [
    'Flows that the agent refuses',
    '#/flows',
    { '/api/v1/flows': refuse },
    ['nf_conntrack is not loaded'],
  ],
  [
    'a trace that is not possible',
    '#/trace?from=a&to=b',
    { '/api/v1/trace': refuse },
    ['nf_conntrack'],
  ],
  ['Services that are refused', '#/services', { '/api/v1/services': refuse }, ['nf_conntrack']],
  ['an unknown address', '#/no/such/page', {}, ['No such page']],
];

describe('status page: states of a node', () => {
  let browser: TestBrowser;
  const opened: { page: Page; agent: FakeAgent }[] = [];

  before(async () => {
    browser = await startBrowser();
  });
  after(() => browser.close());
  afterEach(async () => {
    for (const { page, agent } of opened.splice(0)) {
      await page.context().close();
      agent.close();
    }
    browser.faults.length = 0;
  });

  const open = async (fragment: string, answers: Answers, look = {}) => {
    const agent = await startFakeAgent({ ...fakeAnswers(), ...answers });
    const page = await browser.open(`${agent.url}${fragment}`, look);
    opened.push({ page, agent });
    return { page, agent };
  };

  for (const [state, fragment, answers, texts] of STATES) {
    it(`${state}: ${fragment} says so, and is accessible on a dark phone`, async () => {
      const look = { colorScheme: 'dark', viewport: { width: 360, height: 700 } };
      const { page } = await open(fragment, answers, look);
      for (const text of texts) await page.locator('main', { hasText: text }).waitFor();
      await page.locator('footer').waitFor();
      assert.equal(await page.locator('.fault').count(), 0);
      assert.ok(!/undefined|NaN|Infinity|null/.test(await page.locator('#app').innerText()));
      assert.ok(Number(await page.evaluate('document.documentElement.scrollWidth')) <= 360);
      assert.deepEqual(await accessibilityProblems(page), []);
    });
  }

  it('10,000 Services: few rows at each scroll position, and answers without news change no row', async () => {
    const services = Array.from({ length: 10_000 }, (_, index) =>
      fakeSummary({ name: `many-${index}` }),
    );
    const { page, agent } = await open('#/services', {
      '/api/v1/services': (query) => {
        const offset = Number(query.get('offset') ?? 0);
        const items = services.slice(offset, offset + Number(query.get('limit')));
        return { items, total: services.length, continue: null };
      },
    });
    const rows = page.locator('.rows tbody tr');
    for (const row of [0, 2500, 5000, 9999]) {
      await page.evaluate(`document.querySelector('.rows').scrollTo(0, ${row * 34})`);
      await rows.locator('a', { hasText: new RegExp(`/many-${row}$`) }).waitFor();
      assert.ok((await rows.count()) < 60, `${await rows.count()} rows`);
    }
    await page.evaluate(`
      changes = [];
      new MutationObserver((records) => changes.push(...records.map(({ target, oldValue }) => [target.nodeName, oldValue, target.data].join())))
        .observe(document.querySelector('.rows'), { subtree: true, childList: true, characterData: true, characterDataOldValue: true, attributes: true });
    `);
    const count = () => agent.requests.filter((path) => path.includes('/services?')).length;
    const before = count();
    await waitFor('three further answers', () => count() > before + 3);
    assert.deepEqual(await page.evaluate('changes'), []);
  });
});
