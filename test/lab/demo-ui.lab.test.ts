import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { execa } from 'execa';
import type { Page } from '../../status/api/common.ts';
import type { PolicySummary } from '../../status/api/policies.ts';
import type { ServiceList } from '../../status/api/services.ts';
import type { FlowEvent, FlowLine, TopList } from '../../status/api/traffic.ts';
import { waitFor } from './lab.ts';

const DEMO = new URL('demo-ui.ts', import.meta.url).pathname;
const STATUS_PORT = 10_270;
const DEADLINE_MS = 60_000;

describe('demo-ui: a demo that stays', () => {
  it('serves the page of a node with traffic, until Ctrl-C removes everything', async () => {
    await using demo = await startDemo();
    const page = await fetch(demo.url);
    assert.equal(page.status, 200);
    assert.match(await page.text(), /<title>Portwide/);
    const get = async <T>(path: string) =>
      (await (await fetch(`${demo.url}api/v1/${path}`)).json()) as T;

    const { items } = await get<ServiceList>('services');
    assert.deepEqual(
      items.map(({ name, state, portKind, endpoints }) => [
        ...[name, state, portKind],
        endpoints.notReady,
      ]),
      [
        ['all-ports', 'served', 'all', 0],
        ['port-ranges', 'served', 'ranges', 0],
        ['lobby', 'served', 'ports', 0],
        ['search', 'noEndpoints', 'ports', 0],
        ['web', 'served', 'ports', 2],
        ['media', 'served', 'all', 0],
      ],
    );
    const policies = await get<Page<PolicySummary>>('policies');
    assert.deepEqual(
      policies.items.map(({ name, state }) => [name, state]),
      [['media', 'ok']],
    );

    const totals = async () => {
      const top = await get<TopList>('top?by=service');
      return new Map(top.items.map(({ service, total }) => [service, total]));
    };
    const first = await totals();
    const busy = [
      ...['default/all-ports', 'default/port-ranges', 'shop/lobby', 'shop/web', 'voice/media'],
    ];
    await waitFor(
      'connections and bytes of each Service rise',
      async () => {
        const now = await totals();
        return busy.every((service) => {
          const [before, after] = [first.get(service), now.get(service)];
          return (
            after !== undefined &&
            after.connections > (before?.connections ?? 0) &&
            (after.bytes ?? 0) > (before?.bytes ?? 0)
          );
        });
      },
      DEADLINE_MS,
    );
    for (const event of ['opened', 'rejected', 'denied'] as const) {
      await waitForFlow(demo.url, event);
    }

    demo.kill('SIGINT');
    assert.deepEqual(await demo.ended, { exitCode: 0, signal: undefined });
    // The lab kills the agent at the signal.
    assert.doesNotMatch(demo.output(), / ended/);
    assert.deepEqual(demo.left(), []);
    await assert.rejects(fetch(demo.url));
  });

  it('goes on after a fault of the network and the death of the agent', async () => {
    await using demo = await startDemo();
    await execa('ip', ['-n', `${demo.id}-client`, 'route', 'flush', 'table', 'main']);
    await waitFor('the fault is reported', () => demo.output().includes('goes on'), DEADLINE_MS);
    const { stdout } = await execa('ip', ['netns', 'pids', `${demo.id}-node`]);
    const agent = stdout
      .split('\n')
      .find((pid) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('\0run\0'));
    assert.ok(agent !== undefined);
    process.kill(Number(agent), 'SIGKILL');
    const says = () => demo.output().includes('portwide run ended');
    await waitFor('the death is reported', says, DEADLINE_MS);
    await waitFor(
      'another agent answers',
      async () => (await fetch(demo.url).catch(() => undefined))?.status === 200,
      DEADLINE_MS,
    );
    demo.kill('SIGINT');
    assert.deepEqual(await demo.ended, { exitCode: 0, signal: undefined });
  });

  it('uses another port if the preferred one is in use, and a watchdog removes it after kill -9', async () => {
    const server = createServer();
    server.listen(STATUS_PORT, '127.0.0.1');
    // Another program may have the port.
    await Promise.race([once(server, 'listening'), once(server, 'error')]).catch(() => undefined);
    try {
      await using demo = await startDemo();
      assert.notEqual(new URL(demo.url).port, String(STATUS_PORT));
      assert.equal((await fetch(`${demo.url}api/v1/status`)).status, 200);
      demo.kill('SIGKILL');
      assert.equal((await demo.ended).signal, 'SIGKILL');
      await waitFor('everything is removed', () => demo.left().length === 0, DEADLINE_MS);
    } finally {
      server.close();
    }
  });
});

/** Waits until the agent reports a flow with this event. */
async function waitForFlow(url: string, event: FlowEvent['event']): Promise<void> {
  const stop = new AbortController();
  const deadline = setTimeout(() => stop.abort(`no flow was ${event}`), DEADLINE_MS);
  try {
    const response = await fetch(`${url}api/v1/flows?event=${event}`, { signal: stop.signal });
    assert.ok(response.body);
    let text = '';
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      text += chunk;
      const lines = text.split('\n').slice(0, -1);
      if (lines.some((line) => (JSON.parse(line) as FlowLine).event === event)) return;
    }
    assert.fail('the stream ended');
  } finally {
    clearTimeout(deadline);
    stop.abort();
  }
}

/** Starts the demo, and waits until it prints the address of its page. */
async function startDemo() {
  const child = execa(process.execPath, [DEMO], { reject: false, all: true });
  let output = '';
  child.all.setEncoding('utf8').on('data', (chunk: string) => {
    output += chunk;
  });
  const ended = child.then(({ exitCode, signal }) => ({ exitCode, signal }));
  await Promise.race([
    waitFor('the demo runs', () => output.includes('Ctrl-C ends and removes'), DEADLINE_MS),
    ended.then(() => assert.fail(output)),
  ]);
  const find = (pattern: RegExp) => pattern.exec(output)?.[1] ?? assert.fail(output);
  const url = find(/^ *Status page: +(http:\/\/127\.0\.0\.1:\d+\/)$/m);
  const directory = find(/^ *Manifests: +(\S+);/m);
  const id = find(/ip netns exec (\w+)-node /);
  const { stdout } = await execa('ip', ['netns', 'list']);
  const namespaces = stdout.match(new RegExp(`^${id}-\\S+`, 'gm')) ?? [];
  assert.equal(namespaces.length, 10, stdout);
  const { stdout: pids } = await execa('ip', ['netns', 'pids', `${id}-node`]);
  const things = [
    directory,
    ...namespaces.map((namespace) => `/run/netns/${namespace}`),
    ...pids.split('\n').map((pid) => `/proc/${pid}`),
  ];
  return {
    url,
    id,
    output: () => output,
    ended,
    kill: (signal: NodeJS.Signals) => void child.kill(signal),
    /** Files, namespaces and processes of the demo that exist. */
    left: () => things.filter(existsSync),
    [Symbol.asyncDispose]: async () => {
      child.kill('SIGTERM');
      await child;
    },
  };
}
