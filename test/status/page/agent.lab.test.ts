import assert from 'node:assert/strict';
import type { Page } from 'playwright-core';
import type { NodeStatus } from '../../../status/api/node-status.ts';
import { Agent, PAGE_ADDRESS, PAGE_FLAGS } from '../../e2e/agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../../lab/lab.ts';
import { isUnexpected, startBrowser, type TestBrowser } from './browser.ts';

const VIP = '10.96.7.1';
const MANY = 10_000;

describe('status page of a running agent', () => {
  let lab: Lab;
  let agent: Agent;
  let browser: TestBrowser;
  const pages: Page[] = [];

  before(async () => {
    lab = await createLab();
    agent = new Agent(lab);
    [browser] = await Promise.all([startBrowser(lab.node.namespace), agent.start(PAGE_FLAGS)]);
  });
  after(async () => {
    await browser?.close();
    await agent?.destroy();
    await lab?.destroy();
  });
  afterEach(async () => {
    for (const page of pages.splice(0)) await page.context().close();
    assert.deepEqual(browser.faults.splice(0).filter(isUnexpected), []);
  });

  const open = async (fragment: string) => {
    const page = await browser.open(`http://${PAGE_ADDRESS}/${fragment}`);
    pages.push(page);
    return page;
  };
  const media = (conditions = { ready: true }): Manifest[] => [
    serviceManifest('media', { annotations: ALL_PORTS, spec: { clusterIPs: [VIP] } }),
    sliceManifest('media', 4, [
      [at(lab, 0), { conditions }],
      [at(lab, 1), { conditions: { ready: true } }],
    ]),
  ];

  it('shows the node, its syncs and the last minutes', async () => {
    await agent.apply(media());
    const page = await open('#/node');
    await page.locator('h1', { hasText: 'Node node' }).waitFor();
    await page.locator('table[aria-label=Syncs] tr', { hasText: 'IPv6' }).waitFor();
    await page.locator('footer', { hasText: 'mode nftables' }).waitFor();
    await page.locator('button', { hasText: 'Check this node' }).click();
    const checks = page.locator('table[aria-label=Checks] tr');
    await checks.locator('td', { hasText: '--cluster-cidr=10.244.0.0/16' }).waitFor();
    await page
      .locator('figure', { hasText: 'Memory of the agent: now' })
      .locator('canvas')
      .waitFor();
  });

  it('shows a Service that changes while the page is open', async () => {
    await agent.apply(media());
    const page = await open('#/services/default/media');
    const [first] = lab.pods;
    const endpoint = page.locator('table[aria-label=Endpoints] tr', { hasText: first?.ipv4 ?? '' });
    const drawn = page.locator('svg .endpoint');
    await endpoint.locator('.state.good').waitFor();
    assert.equal(await drawn.count(), 2);
    await page.locator('a.step', { hasText: 'DNAT' }).click();
    const objects = page.locator('section[aria-label="Objects of the step"] tr');
    await objects
      .locator('td', { hasText: `${VIP} . 0 : ${first?.ipv4}` })
      .first()
      .waitFor();
    await agent.apply(media({ ready: false }));
    await endpoint.locator('td', { hasText: 'not ready' }).waitFor();
    assert.equal(await drawn.count(), 1);
    await page.locator('a.step', { hasText: 'the only endpoint' }).waitFor();
    // The list of changes names the Service.
    await page
      .locator('table[aria-label=Changes] tbody tr', { hasText: 'default/media' })
      .first()
      .waitFor();
    await agent.apply([]);
    await page.locator('.notice', { hasText: 'knows no Service "default/media"' }).waitFor();
  });

  it('shows a change by another program, and that the agent undid it', async () => {
    await agent.apply(media());
    const page = await open('#/changes');
    await page.locator('tbody tr').first().waitFor();
    const rows = (kind: string, text: string) =>
      page
        .locator('tbody tr', { has: page.getByText(kind, { exact: true }) })
        .locator('td', { hasText: text });
    const deleteTable = async () => {
      // A sync that has not ended would fail instead.
      await waitFor('all syncs ended', async () => {
        const { families } = (await page.evaluate(
          "fetch('/api/v1/status').then((response) => response.json())",
        )) as NodeStatus;
        return families.every((family) => family.waitingSince === null && family.watchesChanges);
      });
      await lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide']);
    };
    // The full sync after the start of the watch may be due, and then comes before the check for changes. The repair
    // is always in the list.
    await deleteTable();
    await rows('repair of external changes', 'restored').first().waitFor();
    const before = await rows('external change', 'undone at').count();
    // Now the next full sync is due in an hour: the watch finds the change, and the list names it twice.
    await deleteTable();
    const external = rows('external change', 'undone at');
    await waitFor(
      'the second change is in the list',
      async () => (await external.count()) > before,
    );
    await rows('repair of external changes', 'restored what another program changed: ')
      .first()
      .waitFor();
  });

  it('shows a connection as it opens, its port, and its conntrack entry', async () => {
    const port = 5060;
    await agent.apply(media());
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
    const flows = await open('#/flows');
    const ports = await open('#/top?by=port');
    const service = await open('#/services/default/media');
    // The agent counts and reports from the first request on.
    await flows.locator('p', { hasText: 'Listening since' }).waitFor();
    await ports.locator('p', { hasText: 'Counted since' }).waitFor();
    await service.locator('li', { hasText: 'In use: none' }).waitFor();
    const held = await lab.client.hold(VIP, port);
    const row = { hasText: `${VIP}:${port}` };
    await flows.locator('tr', row).locator('td', { hasText: 'default/media' }).waitFor();
    await ports.locator('td', { hasText: `${port}/TCP` }).waitFor();
    await service.locator('li', { hasText: `In use: ${port}/TCP` }).waitFor();
    await service.locator('table[aria-label=Connections] tr', row).waitFor();
    await service.locator('svg .endpoint', { hasText: '1 connection' }).waitFor();
    await held.close();
  });

  it('shows markup of an annotation as text', async () => {
    const attack = '<img src=x onerror=alert(1)>';
    await agent.apply([
      serviceManifest('bad', {
        annotations: { 'portwide.dev/ports': attack },
        spec: { clusterIPs: [VIP] },
      }),
    ]);
    const page = await open('#/services/default/bad');
    await page.locator('dd', { hasText: attack }).waitFor();
    await page.locator('.problems').waitFor();
    assert.equal(await page.locator('img').count(), 0);
  });

  it(`has few rows of ${MANY} Services in the document, and asks for one page of them`, async () => {
    agent.write(
      'many',
      Array.from({ length: MANY }, (_, index) => manifestOf(index)),
    );
    await agent.apply([]);
    const page = await open('#/services');
    const lists: string[] = [];
    page.on('request', (request) => {
      if (request.url().includes('/api/v1/services')) lists.push(request.url());
    });
    await page.locator('p', { hasText: '10,001 Services found' }).waitFor();
    const rows = page.locator('.rows tbody tr');
    await rows.locator('a').first().waitFor();
    assert.ok((await rows.count()) < 60);
    assert.ok(new Set(lists).size <= 1);

    await page.evaluate("document.querySelector('.rows').scrollTo(0, 1e9)");
    await rows.locator('a', { hasText: 'default/many-9999' }).waitFor();
    assert.ok((await rows.count()) < 60);
    await page.locator('input[type=search]').fill('many-77');
    await page.locator('p', { hasText: '111 Services found' }).waitFor();
    await page.locator('th button', { hasText: 'State' }).click();
    await page.locator('th[aria-sort=ascending]', { hasText: 'State' }).waitFor();
    await rows.locator('a', { hasText: 'default/many-77' }).first().waitFor();

    // While nothing changes, the agent computes no list; a change appears.
    await page.locator('input[type=search]').fill('many-7777');
    await page.locator('p', { hasText: '1 Service found' }).waitFor();
    const answers: number[] = [];
    page.on('response', (response) => {
      if (response.url().includes('/api/v1/services')) answers.push(response.status());
    });
    await waitFor('an answer without a list', async () => answers.at(-1) === 304);
    const [first] = lab.pods;
    assert.ok(first !== undefined);
    agent.write('slice', [sliceManifest('many-7777', 4, [first], { ports: [{ port: 80 }] })]);
    await agent.apply([]);
    await rows.locator('.state', { hasText: 'served' }).waitFor();
    await waitFor('an answer without a list', async () => answers.at(-1) === 304);
    agent.write('slice', []);
    agent.write('many', []);
    await agent.apply([]);
  });

  it('says that the agent does not answer, and recovers when it is back', async () => {
    const page = await open('#/services');
    await page.locator('footer').waitFor();
    await agent.kill();
    const notices = page.locator('[role=status]');
    await notices.locator('.notice', { hasText: 'has not answered since' }).waitFor();
    assert.equal(await page.locator('header .state').textContent(), 'unknown');
    await agent.start(PAGE_FLAGS);
    await notices.locator('.notice', { hasText: 'The agent restarted at' }).waitFor();
    assert.equal(await notices.locator('.notice.bad').count(), 0);
    assert.notEqual(await page.locator('header .state').textContent(), 'unknown');
    await page.locator('p', { hasText: 'found' }).waitFor();
  });
});

function at(lab: Lab, index: number) {
  const pod = lab.pods[index];
  assert.ok(pod !== undefined);
  return pod;
}

function manifestOf(index: number): Manifest {
  const vip = `10.97.${index >> 8}.${index & 255}`;
  return serviceManifest(`many-${index}`, { spec: { clusterIPs: [vip], ports: [{ port: 80 }] } });
}
