/**
 * `node scripts/screenshots.ts` writes the pictures of the status page in `docs/images/`: an agent serves a few Services
 * in a network of namespaces, as in the tests. Needs root and Chromium.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { AGENT_FLAGS, Agent } from '../test/e2e/agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from '../test/e2e/manifests.ts';
import {
  adminPolicy,
  namespaceManifest,
  networkPolicy,
  podManifest,
} from '../test/e2e/policy-manifests.ts';
import { createLab, type Lab, waitFor } from '../test/lab/lab.ts';
import { startBrowser } from '../test/status/page/browser.ts';

const IMAGES = fileURLToPath(new URL('../docs/images', import.meta.url));
const ADDRESS = '127.0.0.1:10270';
/** Largest size of a picture in bytes. */
const MAX_SIZE = 100_000;
const VIP = '10.96.0.20';
/** Ports of the VIP that are in use. */
const PORTS = [5060, 30_000, 30_001, 45_678, 61_000] as const;

/** Name, fragment of the address, text that the page shows when it is complete, colours, and height in pixels. */
const SHOTS = [
  ['status-services', '#/services', '5 Services found', 'light', 480],
  ['status-service', '#/services/default/media', '61000/TCP', 'light', 900],
  ['status-step', '#/services/default/media?step=choice', '61000/TCP', 'dark', 760],
  [
    'status-trace',
    '#/trace?from=default/pod-3&to=default/media&port=5060',
    'Or from elsewhere',
    'light',
    985,
  ],
  [
    'status-policy',
    '#/policy?pod=default/pod-1&direction=ingress',
    'All other addresses',
    'light',
    800,
  ],
  ['status-changes', '#/changes', 'undone at', 'dark', 480],
  ['status-node', '#/node', 'Memory of the agent: now', 'light', 1000],
] as const;

const lab = await createLab({ pods: 3, remotePods: 2 });
const agent = new Agent(lab);
const browser = await startBrowser(lab.node.namespace);
let isFirst = true;
try {
  const flags = AGENT_FLAGS.filter((flag) => !flag.startsWith('--status-'));
  const own = ['--status-socket=none', `--status-bind-address=${ADDRESS}`, '--network-policy'];
  await agent.start([...flags, ...own]);
  agent.write('objects', [...manifests(lab), ...policies(lab)]);
  await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
  mkdirSync(IMAGES, { recursive: true });
  for (const [name, fragment, text, colorScheme, height] of SHOTS) {
    const page = await browser.open(`http://${ADDRESS}/${fragment}`, {
      colorScheme,
      viewport: { width: 1200, height },
      timezoneId: 'UTC',
    });
    await page.locator('h1').waitFor();
    if (isFirst) await connect(lab);
    isFirst = false;
    // Another program, as the page will say.
    if (name === 'status-changes') {
      await lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide']);
      await page.locator('td', { hasText: 'restored' }).first().waitFor();
      // After this repair the agent finds changes as they happen.
      await lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide']);
    }
    await page.locator('main', { hasText: text }).waitFor();
    const image = await screenshot(page);
    if (image.length > MAX_SIZE) throw new Error(`${name} has ${image.length} bytes`);
    writeFileSync(join(IMAGES, `${name}.webp`), image);
    await page.context().close();
  }
} finally {
  await browser.close();
  await agent.destroy();
  await lab.destroy();
}

/** Opens connections that stay open. */
async function connect({ client }: Lab): Promise<void> {
  await waitFor('the Service answers', async () => {
    const { outcome } = await client.tcp(VIP, PORTS[0]);
    return outcome === 'answered';
  });
  for (const port of PORTS) await client.hold(VIP, port);
}

/** A picture of the visible part; Playwright itself writes no WebP. */
async function screenshot(page: Page): Promise<Buffer> {
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send('Page.captureScreenshot', { format: 'webp', quality: 80 });
  return Buffer.from(data, 'base64');
}

/** Policies of the pods behind Service media, for phones and for a network outside. */
function policies({ pods, remotePods }: Lab): Manifest[] {
  const media = { labels: { app: 'media' } };
  const [remote, phone] = remotePods;
  if (!remote || !phone) throw new Error('the lab has too few pods');
  return [
    namespaceManifest('default'),
    ...[...pods, remote].map((host) => podManifest(host, media)),
    podManifest(phone, { labels: { app: 'phone' } }),
    adminPolicy('AdminNetworkPolicy', 'no-telnet', {
      priority: 5,
      subject: { namespaces: {} },
      ingress: [
        {
          action: 'Deny',
          from: [{ namespaces: {} }],
          ports: [{ portNumber: { protocol: 'TCP', port: 23 } }],
        },
      ],
    }),
    networkPolicy('media', {
      podSelector: { matchLabels: { app: 'media' } },
      policyTypes: ['Ingress'],
      ingress: [
        {
          from: [{ podSelector: { matchLabels: { app: 'phone' } } }],
          ports: [{ protocol: 'UDP', port: 20_000, endPort: 50_000 }],
        },
        {
          from: [{ ipBlock: { cidr: '203.0.113.0/24', except: ['203.0.113.128/25'] } }],
          ports: [{ protocol: 'TCP', port: 5060 }],
        },
      ],
    }),
  ];
}

function manifests({ pods, remotePods }: Lab): Manifest[] {
  const [first, second, third] = pods;
  const [remote] = remotePods;
  if (!first || !second || !third || !remote) throw new Error('the lab has too few pods');
  return [
    serviceManifest('media', {
      annotations: ALL_PORTS,
      created: '2026-01-05T08:00:00Z',
      ingress: [{ ip: '203.0.113.20' }],
      spec: {
        clusterIPs: [VIP],
        type: 'LoadBalancer',
        allocateLoadBalancerNodePorts: false,
        loadBalancerSourceRanges: ['192.0.2.0/24', '198.51.100.0/24'],
        sessionAffinity: 'ClientIP',
      },
    }),
    sliceManifest('media', 4, [
      first,
      second,
      remote,
      [third, { conditions: { ready: false, serving: false } }],
    ]),
    serviceManifest('media-web', {
      created: '2026-01-05T08:00:00Z',
      ingress: [{ ip: '203.0.113.20' }],
      spec: {
        clusterIPs: ['10.96.0.21'],
        externalIPs: [VIP],
        ports: [{ name: 'https', port: 443 }],
      },
    }),
    sliceManifest('media-web', 4, [first], { ports: [{ name: 'https', port: 8443 }] }),
    serviceManifest('voice', {
      annotations: { 'portwide.dev/ports': '5060/UDP,20000-50000/UDP' },
      created: '2026-02-11T08:00:00Z',
      spec: { clusterIPs: ['10.96.0.30'] },
    }),
    sliceManifest('voice', 4, [first, second]),
    serviceManifest('empty', {
      created: '2026-03-01T08:00:00Z',
      spec: { clusterIPs: ['10.96.0.31'], ports: [{ port: 80 }] },
    }),
    serviceManifest('wrong', {
      annotations: { 'portwide.dev/ports': 'most' },
      created: '2026-03-02T08:00:00Z',
      spec: { clusterIPs: ['10.96.0.32'] },
    }),
  ];
}
