import assert from 'node:assert/strict';
import type { Page } from 'playwright-core';
import { Unanswerable } from '../../../status/http/handler.ts';
import { waitFor } from '../../lab/wait.ts';
import { OWNED_DETAIL } from '../answers.ts';
import {
  accessibilityProblems,
  missedByTab,
  startBrowser,
  type TestBrowser,
  tabStops,
} from './browser.ts';
import {
  type Answers,
  type FakeAgent,
  fakeAnswers,
  fakeChanges,
  fakeDetail,
  fakeFlow,
  fakeFlows,
  fakeStatus,
  fakeSummary,
  startFakeAgent,
} from './fake-agent.ts';

const PAGES = [
  ['#/node', 'Node node-a', ['no watch of Services', 'nft failed', 'Series of bytes']],
  ['#/services', 'Services', ['default/media', '7, 1 terminating, 1 not ready']],
  [
    '#/services/default/media?step=choice',
    'default/media',
    [
      ...['10.96.0.11', '1 of 7, at random', 'and 2 more', 'not ready', 'stale', 'an Event'],
      ...['this node, 4 connections', '2.5 new a second'],
    ],
  ],
  ['#/top?by=port', 'Traffic', ['5060/UDP', '121 KiB', 'nf_conntrack_acct']],
  ['#/flows', 'Flows', ['NetworkPolicy default/deny', '10.96.0.11:5060', 'no UDP']],
  [
    '#/trace?from=node&to=default%2Fmedia&port=80',
    'Trace',
    ['the VIP is of default/media', 'denied', 'depends on the time'],
  ],
  ['#/policy', 'Network policies', ['default/deny', 'no rule', 'does not apply']],
  [
    '#/policy?pod=default%2Fweb&from=default%2Fweb&to=default%2Fdb&port=80',
    'Network policies',
    [
      ...['12 pods (IPv6): default/db, shop/db and 10 more', 'TCP 80, UDP 1000-2000 and 10 more'],
      'all other ports: isolated',
      ...['a pass passes it to the next tier', 'All other addresses', 'The node of the pod'],
      ...['Further peers, 200 groups', 'the last word (tier Baseline)', 'saw no DNS answer'],
    ],
  ],
  ['#/changes', 'Changes', ['external change', 'flush ruleset', 'and 20 others']],
] as const;

/** 320 pixels: WCAG 2.2, success criterion 1.4.10. */
const LOOKS = (['light', 'dark'] as const).flatMap((colorScheme) => [
  { colorScheme, viewport: { width: 1280, height: 900 } },
  { colorScheme, viewport: { width: 320, height: 640 } },
]);

describe('status page in Chromium', () => {
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
  });

  /** Opens the page of an agent with these answers. */
  const open = async (fragment: string, answers: Answers = {}, look = {}) => {
    const agent = await startFakeAgent({ ...fakeAnswers(), ...answers });
    const page = await browser.open(`${agent.url}${fragment}`, look);
    opened.push({ page, agent });
    return { page, agent };
  };
  const textOf = (page: Page) => page.locator('main').innerText();
  const shows = (page: Page, text: string) =>
    page.locator('main', { hasText: text }).waitFor({ state: 'visible' });

  for (const [fragment, heading, texts] of PAGES) {
    for (const look of LOOKS) {
      it(`${fragment} shows what the API says, ${look.colorScheme}, ${look.viewport.width} pixels wide`, async () => {
        const { page } = await open(fragment, {}, look);
        await page.locator('h1', { hasText: heading }).waitFor();
        for (const text of texts) await shows(page, text);
        const width = await page.evaluate('document.documentElement.scrollWidth');
        assert.ok(Number(width) <= look.viewport.width, `${width} pixels do not fit`);
        assert.deepEqual(await accessibilityProblems(page), []);
        assert.deepEqual(browser.faults, []);
      });
    }
  }

  for (const [fragment, heading, texts] of PAGES) {
    it(`${fragment} is usable with the keyboard: Tab reaches everything, and one sees where it is`, async () => {
      const { page } = await open(fragment, {}, LOOKS[1]);
      await page.locator('h1', { hasText: heading }).waitFor();
      for (const text of texts) await shows(page, text);
      const stops = await tabStops(page);
      assert.ok(stops.length >= 8, 'the links to pages at least');
      assert.deepEqual(await missedByTab(page), []);
      assert.deepEqual(
        stops.filter(({ isMarked }) => !isMarked).map(({ text }) => text),
        [],
        'without a visible focus',
      );
    });
  }

  it('opens each page with the keyboard, and moves the focus to its heading', async () => {
    const { page } = await open('#/node');
    await page.locator('nav a', { hasText: 'Policies' }).waitFor();
    for (const name of await page.locator('nav a').allInnerTexts()) {
      await page.locator('nav a', { hasText: name }).focus();
      await page.keyboard.press('Enter');
      await page.locator('nav a[aria-current=page]', { hasText: name }).waitFor();
      const isFocused = async () =>
        (await page.evaluate("document.activeElement.tagName === 'H1'")) === true;
      if (name !== 'Node') await waitFor(`the heading of ${name} has the focus`, isFocused);
    }
  });

  it('has links only to pages whose resource the API lists', async () => {
    const links = async (page: Page) => await page.locator('nav a').allInnerTexts();
    const { page } = await open('#/node');
    await page.locator('nav a', { hasText: 'Trace' }).waitFor();
    assert.deepEqual(await links(page), [
      ...['Node', 'Services', 'Traffic', 'Flows', 'Trace', 'Policies', 'Changes'],
    ]);
    const { page: other } = await open('#/node', {
      '/api/v1': () => ({ paths: ['/api/v1/status'] }),
    });
    await other.locator('h1', { hasText: 'node-a' }).waitFor();
    assert.deepEqual(await links(other), ['Node', 'Services', 'Changes']);
  });

  it('draws the path of a packet; a click on a step shows its objects in the kernel', async () => {
    const { page } = await open('#/services/default/media');
    const drawing = page.locator('svg[aria-label="Path of a packet to 10.96.0.11, ports all"]');
    await drawing.waitFor();
    assert.equal(await drawing.locator('a.step').count(), 5);
    assert.equal(await drawing.locator('.endpoint').count(), 6);
    const step = (title: string) => drawing.locator('a.step', { hasText: title });
    const objects = page.locator('section[aria-label="Objects of the step"] tbody tr');
    await step('cluster IP').click();
    assert.match(await objects.innerText(), /service-ips\s+10\.96\.0\.11 : goto/);
    await step('DNAT').focus();
    await page.keyboard.press('Enter');
    await page.locator('section h3', { hasText: 'DNAT' }).waitFor();
    assert.match(await objects.innerText(), /endpoint-ips/);
    await page.locator('.routes a', { hasText: 'loadbalancer IP 203.0.113.7' }).click();
    await page.locator('a.step', { hasText: '192.0.2.0/24' }).click();
    await page.locator('section h3', { hasText: 'Allowed sources' }).waitFor();
    assert.match(await objects.innerText(), /missing.*allowed-vip-sources/s);
  });

  it('draws where packets end without endpoint', async () => {
    const { page } = await open('#/services/default/media?route=2');
    const steps = page.locator('a.step');
    await steps.first().waitFor();
    assert.match((await steps.allTextContents()).join(' '), /no endpoint.*drop.*no answer/);
    assert.equal(await page.locator('svg .endpoint').count(), 0);
  });

  it('draws which ports of a VIP are served, of other Services, and in use', async () => {
    const { page } = await open('#/services/default/media');
    const rect = async (kind: string) => {
      const found = page.locator(`.ports svg .${kind}`);
      await found.waitFor({ state: 'attached' });
      return [Number(await found.getAttribute('x')), Number(await found.getAttribute('width'))];
    };
    // Packets to port 0 are dropped.
    assert.deepEqual(await rect('served'), [1000 / 65_536, (65_535 / 65_536) * 1000]);
    await shows(page, 'Served by this Service: 1–65535');
    assert.deepEqual(await rect('other'), [(80 / 65_536) * 1000, 3]);
    assert.deepEqual(await rect('used'), [(5060 / 65_536) * 1000, 3]);
    await shows(page, '80/TCP default/web');
    await shows(page, 'In use: 5060/UDP');
  });

  it('draws slices with and without owner, and lists endpoints that own nothing', async () => {
    const { ownedPorts } = OWNED_DETAIL;
    const detail = fakeDetail({
      summary: fakeSummary({ portKind: 'ranges', vips: ['10.96.0.20'] }),
      ownedPorts,
    });
    const { page } = await open('#/services/default/media', {
      '/api/v1/services/{namespace}/{name}': () => detail,
    });
    await page.locator('.ports svg .owned').first().waitFor({ state: 'attached' });
    assert.equal(await page.locator('.ports svg .owned').count(), 2);
    assert.equal(await page.locator('.ports svg .vacant').count(), 4);
    await shows(page, 'Owners speak as 10.96.0.20');
    await shows(page, 'has no ordinal in its name');
    const slices = page.locator('table[aria-label="Slices (IPv4)"] tbody tr');
    assert.match((await slices.allInnerTexts()).join('; '), /2–9.*none.*no owner: rejected/);
  });

  it('shows markup in names, annotations and messages as text', async () => {
    const attack = '<img src=x onerror=alert(1)>';
    const infect = (value: unknown): unknown => {
      if (Array.isArray(value)) return value.map(infect);
      if (value === null || typeof value !== 'object') return value;
      return Object.fromEntries(
        Object.entries(value).map(([key, each]) => [
          key,
          ['message', 'annotation', 'reason', 'name', 'actual', 'zone'].includes(key) &&
          typeof each === 'string'
            ? attack
            : infect(each),
        ]),
      );
    };
    const answers: Answers = {
      '/api/v1/status': () => infect(fakeStatus()) as object,
      '/api/v1/services': () => ({
        items: [infect(fakeSummary())],
        total: 1,
        continue: null,
      }),
      '/api/v1/services/{namespace}/{name}': () => infect(fakeDetail()) as object,
    };
    for (const fragment of ['#/node', '#/services', '#/services/default/media']) {
      const { page } = await open(fragment, answers);
      await shows(page, attack);
      assert.equal(await page.locator('img').count(), 0);
    }
    assert.deepEqual(browser.faults, []);
  });

  it('shows a rejected packet without an endpoint: its destination is the VIP', async () => {
    const rejected = {
      event: 'rejected',
      reason: 'no endpoint',
      flow: fakeFlow({ endpoint: '10.96.0.11', endpointPort: 5060 }),
    } as const;
    const { page } = await open('#/flows', { '/api/v1/flows': () => fakeFlows([rejected]) });
    await shows(page, 'no endpoint');
    const cells = async (event: string) => {
      const row = page.locator('table[aria-label=Flows] tr', { hasText: event });
      return (await row.locator('td').allInnerTexts()).slice(-2);
    };
    assert.deepEqual(await cells('rejected'), ['10.96.0.11:5060', '']);
    assert.deepEqual(await cells('opened'), ['10.96.0.11:5060', '10.244.0.5:5060']);
  });

  it('says until when the agent was stopped', async () => {
    const late = {
      at: '2026-03-01T12:00:00.000Z',
      event: 'late',
      lost: 0,
      notes: [],
      seconds: 12.3,
    } as const;
    const { page } = await open('#/flows', { '/api/v1/flows': () => fakeFlows([], [late]) });
    await shows(page, 'stopped or busy for 12.3 s until');
    await shows(page, 'no UDP');
  });

  it('asks only for what it shows', async () => {
    const { page, agent } = await open('#/changes');
    await shows(page, 'flush ruleset');
    assert.ok(!agent.requests.some((path) => /api.*(services|series|top|flows|trace)/.test(path)));
  });

  it('gives the details of a change more room than any other column', async () => {
    const message = 'rule of chain reject-packet deleted in table portwide';
    const items = fakeChanges().map((change) => ({ ...change, message, services: [] }));
    const answers = { '/api/v1/changes': () => ({ items, total: 2, continue: null }) };
    const { page } = await open('#/changes', answers, { viewport: { width: 1200, height: 480 } });
    await shows(page, message);
    const widths = (await page.evaluate(
      "[...document.querySelectorAll('th')].map((each) => [each.textContent, each.offsetWidth])",
    )) as [string, number][];
    const [widest] = widths.toSorted(([, a], [, b]) => b - a);
    assert.equal(widest?.[0], 'Details', JSON.stringify(widths));
  });

  it('says that the agent has another version than the page', async () => {
    let version = '1.2.3';
    const { page } = await open('#/node', { '/api/v1/status': () => fakeStatus({ version }) });
    await page.locator('footer', { hasText: '1.2.3' }).waitFor();
    version = '2.0.0';
    await page.locator('.notice', { hasText: 'now has version 2.0.0' }).waitFor();
  });

  it('shows the peers of the pod that is selected with the keyboard, and none before', async () => {
    const { page, agent } = await open('#/policy');
    await shows(page, 'Select a pod');
    assert.ok(!agent.requests.some((path) => /v1.(access|policies.explain)/.test(path)));
    const isAsked = (query: string) => () =>
      agent.requests.some((path) => path.startsWith(`/api/v1/access?${query}&limit`));
    const pods = page.locator('select').first();
    await pods.locator('option', { hasText: 'web' }).waitFor({ state: 'attached' });
    await pods.focus();
    await page.keyboard.type('web');
    await page
      .getByRole('heading', { name: 'Who may connect to default/web', exact: true })
      .waitFor();
    assert.equal(await page.locator('button', { hasText: 'Read again' }).count(), 0);
    await waitFor('the page asked for the pod', isAsked('pod=default%2Fweb'));
    await page.getByLabel('Direction').selectOption('egress');
    await waitFor('for a direction', isAsked('pod=default%2Fweb&direction=egress'));
    await page.locator('a', { hasText: 'Further peers' }).click();
    const next = 'pod=default%2Fweb&direction=egress&continue=o100';
    await waitFor('for the next page', isAsked(next));
    await pods.selectOption('namespace=default');
    const all = 'namespace=default&direction=egress';
    await waitFor('for a namespace', isAsked(all));
    await page
      .locator('h3', { hasText: 'Where default/web and 199 other pods may connect to' })
      .waitFor();
    const count = () => agent.requests.filter((path) => path.includes(`access?${all}`)).length;
    assert.equal(count(), 1);
    await page.locator('button', { hasText: 'Read again' }).click();
    await waitFor('for the namespace again', () => count() === 2);
    await page.locator('a', { hasText: 'Further pods of default' }).click();
    const further = 'namespace=default&firstPod=default%2Fx&direction=egress';
    await waitFor('for the next pods', isAsked(further));
  });

  it('searches with the keyboard', async () => {
    const { page, agent } = await open('#/services');
    await page.locator('td', { hasText: 'default/media' }).waitFor();
    await page.keyboard.press('/');
    await page.keyboard.type('web & co');
    const isAsked = () => agent.requests.some((path) => path.includes('search=web+%26+co'));
    await waitFor('the page searched', isAsked);
    assert.match(page.url(), /#\/services\?search=web/);
  });

  it('marks a trace that is uncertain, or if another program drops packets to one of the endpoints', async () => {
    const endpoint = { address: '10.244.0.5', port: 80, local: true, masqueraded: false };
    const path = {
      ...{ family: 'IPv4', source: '10.244.0.9', destination: '10.96.0.11', uncertain: [] },
      ...{ steps: [], verdict: 'translated' },
    };
    const pathWith = (foreignRules: string, outcome: string) => ({
      ...{ ...path, outcome },
      endpoints: [
        { ...endpoint, policy: null, foreignRules: 'pass' },
        { ...endpoint, port: 81, policy: null, foreignRules },
      ],
    });
    for (const [foreignRules, outcome, className, text] of [
      ['drop', 'partly', 'warn', 'some connections fail'],
      ['pass', 'reached', 'good', 'translated'],
      ['pass', 'uncertain', 'warn', 'uncertain'],
    ] as const) {
      const answer = { '/api/v1/trace': () => ({ paths: [pathWith(foreignRules, outcome)] }) };
      const { page } = await open('#/trace?from=node&to=default%2Fmedia&port=80', answer);
      await page.locator(`h2 .state.${className}`, { hasText: text }).waitFor();
      await page.locator('td', { hasText: foreignRules }).first().waitFor();
    }
  });

  it('marks a trace to a Service that is refused', async () => {
    const path = {
      ...{ family: 'IPv4', source: '10.244.0.9', destination: '10.96.0.99', uncertain: [] },
      ...{ steps: [], endpoints: [], verdict: 'untouched', outcome: 'failed' },
    };
    const answer = { '/api/v1/trace': () => ({ paths: [path] }) };
    const { page } = await open('#/trace?from=node&to=default%2Fmedia&port=80', answer);
    await page.locator('h2 .state.bad', { hasText: 'untouched' }).waitFor();
  });

  it('names the command that traces packets in the kernel, which a page cannot arm', async () => {
    const { page, agent } = await open('#/trace?from=node&to=default%2Fmedia&protocol=UDP&port=80');
    const command =
      'trace node default/media --proto=udp --port=80 --live --status-socket=/run/other.sock';
    await shows(page, `portwide ${command}`);
    await shows(page, `kubectl portwide --node node-a ${command}`);
    assert.ok(!agent.requests.some((path) => path.includes('/trace/live')));
  });

  it('checks the node when asked, the worst first', async () => {
    const { page, agent } = await open('#/node');
    const button = page.locator('button', { hasText: 'Check this node' });
    await button.waitFor();
    assert.ok(!agent.requests.includes('/api/v1/checks'));
    await button.click();
    const rows = page.locator('table[aria-label=Checks] tbody tr');
    await rows.first().waitFor();
    assert.match(
      await rows.first().innerText(),
      /fail\s+local pods\s+no pod CIDR\s+set --cluster-cidr/,
    );
    await shows(page, '2 checks not shown');
    assert.deepEqual(await accessibilityProblems(page), []);
  });

  it('says why the node could not be checked', async () => {
    const refuse = () => {
      throw new Unanswerable(501, 'the command is not there');
    };
    const { page } = await open('#/node', { '/api/v1/checks': refuse });
    await page.locator('button', { hasText: 'Check this node' }).click();
    await shows(page, 'the command is not there');
    await page.locator('button:enabled', { hasText: 'Check this node' }).waitFor();
  });

  it('is at most 150 KB in few requests, and only the style sheet blocks the first paint', async () => {
    const { page } = await open('#/node');
    await page.locator('canvas').first().waitFor();
    const files = (await page.evaluate(
      "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].filter(({ name }) => !name.includes('/api/')).map(({ name, transferSize, renderBlockingStatus }) => ({ path: new URL(name).pathname, size: transferSize, isBlocking: renderBlockingStatus === 'blocking' }))",
    )) as { path: string; size: number; isBlocking: boolean }[];
    const paths = files.map(({ path }) => path).sort();
    assert.deepEqual(
      paths.filter((path) => path !== '/page/icon.svg'),
      ['/', ...['page.css', 'page.js', 'uplot.css', 'uplot.js'].map((name) => `/page/${name}`)],
    );
    const total = files.reduce((sum, { size }) => sum + size, 0);
    assert.ok(total < 150_000, `${total} bytes`);
    // The style sheet of charts is loaded later, by a script.
    const blocking = files.filter(({ path, isBlocking }) => isBlocking && !path.includes('uplot'));
    assert.deepEqual(
      blocking.map(({ path }) => path),
      ['/page/page.css'],
    );
    const first = files.filter(({ path }) => path === '/' || path === '/page/page.css');
    const firstSize = first.reduce((sum, { size }) => sum + size, 0);
    // Fits into the first round trip of TCP (RFC 6928: ten segments).
    assert.ok(firstSize < 14_000, `${firstSize} bytes`);
    assert.match(await textOf(page), /Series of/);
  });

  const painted = async (page: Page) =>
    await waitFor('the page is painted', async () => {
      const paint = "performance.getEntriesByName('first-contentful-paint').length";
      return (await page.evaluate(paint)) === 1;
    });

  it('paints before its script is there', async () => {
    const { page } = await open('#/node');
    let isHeld = false;
    // Never answered.
    await page.route('**/page.js', () => {
      isHeld = true;
    });
    await page.reload({ waitUntil: 'commit' });
    await painted(page);
    assert.match(await page.locator('main').innerText(), /Loading/);
    await waitFor('the page asked for its script', () => isHeld);
  });

  it('paints before the agent answers, and asks only for what it shows', async () => {
    const never = () => new Promise<object>(() => {});
    const silent = Object.fromEntries(Object.keys(fakeAnswers()).map((path) => [path, never]));
    const { page, agent } = await open('#/node', { ...silent, '/api/v1': never });
    await page.locator('h1', { hasText: 'Node' }).waitFor();
    await painted(page);
    assert.match(await textOf(page), /Waiting for the agent/);
    const asked = agent.requests.filter((path) => path.startsWith('/api/'));
    assert.deepEqual(asked.sort(), ['/api/v1', '/api/v1/series', '/api/v1/status']);
  });
});
