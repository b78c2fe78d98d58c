import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResultPromise } from 'execa';
import { Agent, PAGE_ADDRESS, PAGE_FLAGS } from '../e2e/agent.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

const OPEN_FILES = 600;
const FLOOD = 1500;
/** Half of the connections of all health servers. */
const MOST_OF_CLIENT = 128;
/** More than the sockets that the agent has without connections of clients. */
const OWN_SOCKETS = 50;
/** More simultaneous probes than connections that one address may keep. */
const PROBES = 30;
const HEALTH_PORT = 10_256;

/** Opens connections that send nothing, says so when each has been accepted, and stays. */
const OPEN_IDLE = `
  const { connect } = require('node:net');
  const [host, count] = [process.argv[1], Number(process.argv[2])];
  let accepted = 0;
  for (let each = 0; each < count; each++) {
    const socket = connect({ host, port: ${HEALTH_PORT} });
    socket.on('error', () => {});
    socket.once('connect', () => { if (++accepted === count) console.log('connected'); });
  }
  setInterval(() => {}, 1000);
`;

/** Sends health probes at once, each on a connection of its own, and prints their outcomes. */
const PROBE_AT_ONCE = `
  const { get } = require('node:http');
  const [host, count] = [process.argv[1], Number(process.argv[2])];
  const probe = () => new Promise((resolve) => {
    const url = 'http://' + host + ':${HEALTH_PORT}/livez';
    get(url, { agent: false }, (response) => {
      response.resume();
      response.once('close', () => resolve(response.statusCode));
    }).on('error', ({ code }) => resolve(code));
  });
  Promise.all(Array.from({ length: count }, probe)).then((all) => console.log(JSON.stringify(all)));
`;

/** Reads the time series over one connection, until a sample has no memory. */
const WATCH_SERIES = `
  const { Agent, get } = require('node:http');
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const ask = (first) => get('http://${PAGE_ADDRESS}/api/v1/series', { agent }, async (response) => {
    const { series } = JSON.parse((await response.toArray()).join(''));
    if (first) console.log('connected');
    const { values } = series.find(({ name }) => name === 'memory');
    if (values.includes(null)) console.log('unknown');
    else setTimeout(ask, 200, false);
  });
  ask(true);
`;

interface Series {
  readonly times: readonly number[];
  readonly series: readonly { readonly name: string; readonly values: readonly unknown[] }[];
}

describe('file descriptors of the agent', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-descriptors-'));
    const launcher = join(directory, 'portwide');
    writeFileSync(launcher, `#!/bin/sh\nulimit -n ${OPEN_FILES}\nexec ${PORTWIDE} "$@"\n`, {
      mode: 0o755,
    });
    lab = await createLab({ pods: 1 });
    agent = new Agent(lab);
    agent.program = launcher;
    // With the status API, whose samples read the size of the process.
    agent.firstFlags = ['--status-socket=none'];
    await agent.start(PAGE_FLAGS);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const isRunning = async () => {
    const { stdout } = await lab.node.exec('cat', [`/proc/${agent.pid}/comm`]);
    return stdout !== '';
  };

  function outputOf(program: ResultPromise): () => string {
    let output = '';
    for (const stream of [program.stdout, program.stderr]) {
      stream?.on('data', (chunk) => {
        output += String(chunk);
      });
    }
    program.catch(() => {});
    return () => output;
  }

  const health = (host: Host) => host.httpGet(`http://${lab.node.ipv4}:${HEALTH_PORT}/healthz`);

  const series = async (): Promise<Series> => {
    const { stdout } = await lab.node.exec('curl', [
      '--silent',
      '--fail',
      '--noproxy',
      '*',
      `http://${PAGE_ADDRESS}/api/v1/series`,
    ]);
    return JSON.parse(stdout) as Series;
  };

  /** Values of memory sampled since a number of seconds since 1970. */
  const memorySince = async (from: number): Promise<readonly unknown[]> => {
    const { times, series: columns } = await series();
    const values = columns.find(({ name }) => name === 'memory')?.values ?? [];
    return values.filter((_, index) => Number(times[index]) > from);
  };

  it(`answers ${PROBES} simultaneous health probes of one load balancer`, async () => {
    const args = ['-e', PROBE_AT_ONCE, lab.node.ipv4, String(PROBES)];
    const { stdout } = await lab.client.exec(process.execPath, args);
    assert.deepEqual(JSON.parse(stdout), Array(PROBES).fill(200));
  });

  it(`answers health checks of others while a neighbour keeps ${FLOOD} connections open`, async () => {
    const flood = lab.client.spawn(process.execPath, [
      '-e',
      OPEN_IDLE,
      lab.node.ipv4,
      String(FLOOD),
    ]);
    const printed = outputOf(flood);
    try {
      await waitFor('connections', () => printed().includes('connected'), 30_000);
      const answer = await health(lab.elsewhere);
      assert.equal('code' in answer && answer.code, 200, JSON.stringify(answer));
      const { stdout } = await lab.node.exec('sh', ['-c', `ls -l /proc/${agent.pid}/fd`]);
      const sockets = stdout.split('\n').filter((line) => line.includes('socket:')).length;
      assert.ok(sockets < MOST_OF_CLIENT + OWN_SOCKETS, `${sockets} sockets`);
      const now = Date.now() / 1000;
      await waitFor('a sample', async () => (await memorySince(now)).length > 0, 30_000);
      assert.ok(await isRunning());
    } finally {
      flood.kill('SIGKILL');
    }
  });

  it('survives that it gets no more file descriptors, and works when it gets some', async () => {
    const limit = (files: number) =>
      lab.node.exec('prlimit', [`--pid=${agent.pid}`, `--nofile=${files}:${OPEN_FILES}`]);
    const watcher = lab.node.spawn(process.execPath, ['-e', WATCH_SERIES]);
    const printed = outputOf(watcher);
    await waitFor('the status API', () => printed().includes('connected'), 30_000);
    await limit(3);
    try {
      const refused = await health(lab.elsewhere);
      assert.ok('error' in refused, JSON.stringify(refused));
      // The agent could not open the file that has the size of the process.
      await waitFor('a sample without memory', () => printed().includes('unknown'), 30_000);
    } finally {
      await limit(OPEN_FILES);
      watcher.kill('SIGKILL');
    }
    assert.ok(await isRunning());
    await waitFor('health', async () => 'code' in (await health(lab.elsewhere)), 30_000);
  });
});
