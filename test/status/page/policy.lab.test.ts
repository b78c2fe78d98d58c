import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { Agent, PAGE_ADDRESS, PAGE_FLAGS } from '../../e2e/agent.ts';
import { serviceManifest } from '../../e2e/manifests.ts';
import {
  namespaceManifest,
  networkPolicy,
  podManifest,
  policyPods,
} from '../../e2e/policy-manifests.ts';
import { createLab, type Host, type Lab, waitFor } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';
import { startBrowser, type TestBrowser } from './browser.ts';

const PROBE = { timeoutMs: 800 };
const VIP = '10.96.7.9';

describe('status page of an agent that enforces network policy', () => {
  let lab: Lab;
  let agent: Agent;
  let browser: TestBrowser;
  let directory: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-policy-page-'));
    lab = await createLab({ pods: 2, remotePods: 1 });
    agent = new Agent(lab);
    agent.write('pods', [
      ...policyPods(lab),
      serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: 80 }] } }),
    ]);
    agent.write('policies', [policy(8080)]);
    [browser] = await Promise.all([
      startBrowser(lab.node.namespace),
      agent.start([...PAGE_FLAGS, `--status-socket=${socket()}`, '--network-policy']),
      ...lab.pods.map((pod) => pod.serveEveryPort()),
    ]);
  });
  after(async () => {
    await browser?.close();
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const socket = () => join(directory, 'p.sock');
  const policy = (port: number) =>
    networkPolicy('web', {
      podSelector: { matchLabels: { pod: 'pod-1' } },
      policyTypes: ['Ingress'],
      ingress: [
        {
          from: [{ podSelector: { matchLabels: { pod: 'pod-2' } } }],
          ports: [{ protocol: 'TCP', port }],
        },
      ],
    });
  const outcome = async (from: Host | undefined, port: number) => {
    const [web] = lab.pods;
    assert.ok(from !== undefined && web !== undefined);
    return (await from.tcp(web.ipv4, port, PROBE)).outcome;
  };
  const explain = (...args: string[]) =>
    execa(PORTWIDE, ['policy', 'explain', '--agent', `--status-socket=${socket()}`, ...args], {
      reject: false,
    });

  it('shows who may connect to a pod, as packets do, and follows a change', async () => {
    const page = await browser.open(`http://${PAGE_ADDRESS}/#/policy?pod=default/pod-1`);
    const row = (title: string) =>
      page.locator('.access > li', { has: page.locator('h4', { hasText: title }) }).first();
    await row('default/pod-2')
      .locator('li', { hasText: /allowed TCP 8080:/ })
      .waitFor();
    await row('default/remote-1')
      .locator('li', { hasText: /denied all ports/ })
      .waitFor();
    const [, second] = lab.pods;
    const [remote] = lab.remotePods;
    await waitFor(
      'the policy is enforced',
      async () => (await outcome(remote, 8080)) === 'timeout',
    );
    assert.deepEqual(
      [await outcome(second, 8080), await outcome(second, 8081), await outcome(remote, 8080)],
      ['answered', 'timeout', 'timeout'],
    );
    agent.write('policies', [policy(8081)]);
    await row('default/pod-2')
      .locator('li', { hasText: /allowed TCP 8081:/ })
      .waitFor();
    await waitFor('the new port is open', async () => (await outcome(second, 8081)) === 'answered');
    assert.equal(await outcome(second, 8080), 'timeout');
    agent.write('policies', [policy(8080)]);
    await row('default/pod-2')
      .locator('li', { hasText: /allowed TCP 8080:/ })
      .waitFor();

    await page.getByLabel('From').fill('default/remote-1');
    await page.getByLabel('To', { exact: true }).fill('default/pod-1');
    await page.getByLabel('Port of the pod').fill('8080');
    await page.keyboard.press('Enter');
    const verdict = page.locator('section[aria-label="Verdict, IPv4"]');
    await verdict
      .locator('li', { hasText: 'isolated by NetworkPolicy default/web' })
      .first()
      .waitFor();
    await page.context().close();
    assert.deepEqual(browser.faults, []);
  });

  it('shows a namespace with 200 pods', async () => {
    const tiers = ['web', 'db'];
    const pods = Array.from({ length: 200 }, (_, index) => {
      const tier = tiers[index % 2] ?? '';
      const host = {
        name: `${tier}-${index}`,
        ipv4: `10.244.9.${index + 1}`,
        ipv6: `fd00:9::${index + 1}`,
      };
      return podManifest(host, { namespace: 'shop', labels: { tier } });
    });
    const onlyWeb = networkPolicy(
      'db',
      {
        podSelector: { matchLabels: { tier: 'db' } },
        policyTypes: ['Ingress'],
        ingress: [{ from: [{ podSelector: { matchLabels: { tier: 'web' } } }] }],
      },
      'shop',
    );
    agent.write('shop', [namespaceManifest('shop'), ...pods, onlyWeb]);
    const page = await browser.open(`http://${PAGE_ADDRESS}/#/policy`);
    const selected = page.getByLabel('Pod of this node');
    await selected
      .locator('option', { hasText: 'all pods of shop' })
      .waitFor({ state: 'attached' });
    await selected.selectOption('namespace=shop');
    const db = page.locator('section[aria-label="Who may connect to shop/db-1 and 99 other pods"]');
    const peers = (title: string) =>
      db.locator('.access > li', { has: page.locator('h4', { hasText: title }) }).first();
    await peers('100 pods: shop/web-0')
      .locator('li', { hasText: /allowed all ports/ })
      .waitFor();
    await peers('All other pods')
      .locator('li', { hasText: /denied all ports/ })
      .waitFor();
    await db.locator('summary').click();
    await db.locator('p', { hasText: 'shop/db-199' }).waitFor();
    await page.locator('section[aria-label^="Who may connect to shop/web-0 and 99"]').waitFor();
    await page.context().close();
    assert.deepEqual(browser.faults, []);
  });

  it('answers portwide policy explain --agent', async () => {
    const to = ['--to', 'default/pod-1', '--port', '8080'];
    const allowed = await explain('--from', 'default/pod-2', ...to);
    assert.equal(allowed.exitCode, 0, allowed.stderr);
    assert.match(
      allowed.stdout,
      /ingress allowed \(NetworkPolicy\): .* spec\.ingress\[0\] allows it/,
    );
    const denied = await explain('--from', 'default/remote-1', ...to, '-o', 'json');
    assert.equal(denied.exitCode, 1);
    assert.equal(JSON.parse(denied.stdout).verdict, 'deny');
    const [web] = lab.pods;
    const vip = await explain('--from', web?.ipv4 ?? '', '--to', VIP, '--port', '80');
    assert.equal(vip.exitCode, 2);
    assert.match(vip.stderr, /belongs to Service default\/web/);
    const both = await explain('--from', 'default/pod-2', ...to, '--manifests', directory);
    assert.equal(both.exitCode, 2);
    assert.match(both.stderr, /cannot be used with/);
  });
});
