import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { emptyAnswer } from '../dns/fake-resolver.ts';
import { queryBytes } from '../dns/messages.ts';
import { waitFor } from '../lab/wait.ts';
import { PORTWIDE } from '../portwide.ts';

const ADDRESS = '127.0.0.1';
/** An address per process, so that this file can run several times at once. */
const SERVER = `127.77.${(process.pid >> 8) & 255}.${process.pid & 255}`;
const PORT = 5300;

/** Preloaded module that logs explicit garbage collections, which need --expose-gc. */
const LOG_COLLECTIONS = `data:text/javascript,${encodeURIComponent(`
  const { gc } = globalThis;
  if (gc) globalThis.gc = (options) => {
    process.stderr.write('collects ' + JSON.stringify(options) + '\\n');
    gc(options);
  };
`)}`;

async function bound(): Promise<Socket> {
  const socket = createSocket('udp4');
  socket.bind(0, ADDRESS);
  await once(socket, 'listening');
  return socket;
}

function start(flags: readonly string[], env: Readonly<Record<string, string>>) {
  const options = { env, reject: false, all: true, forceKillAfterDelay: false } as const;
  return execa(PORTWIDE, ['dns', ...flags], options);
}

describe('dns-process: process of portwide dns', () => {
  let directory: string;
  let resolver: Socket;
  let client: Socket;
  let server: ReturnType<typeof start>;
  let output = '';

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-dns-'));
    [resolver, client] = [await bound(), await bound()];
    const flags = [
      `--manifests=${directory}`,
      `--bind-address=${SERVER}`,
      `--port=${PORT}`,
      `--forward=${ADDRESS}:${resolver.address().port}`,
      '--lameduck=0s',
      '--metrics-bind-address=',
      '--logging-format=text',
    ];
    const env = { NODE_OPTIONS: `--import=${LOG_COLLECTIONS}` };
    server = start(flags, env);
    server.all?.on('data', (chunk) => {
      output += String(chunk);
    });
    await waitFor('it serves', () => output.includes('INFO serving'), 60_000);
  });
  after(async () => {
    server?.kill('SIGKILL');
    await server;
    resolver?.close();
    client?.close();
    rmSync(directory, { recursive: true, force: true });
  });

  it('collects garbage and compacts its heap after the first lists', () => {
    assert.match(output, /^collects {"type":"major","flavor":"last-resort"}$/m);
  });

  it('limits the young generation, because no garbage outlives a query', async () => {
    const { stdout } = await execa('tr', ['\\0', '\\n'], {
      inputFile: `/proc/${server.pid}/cmdline`,
    });
    assert.match(stdout, /^--max-semi-space-size=2$/m);
  });

  it('answers pending upstream queries after SIGTERM and exits with 0', async () => {
    const asked = once(resolver, 'message');
    const answered = once(client, 'message');
    client.send(queryBytes('www.example.com', 'A', { id: 7 }), PORT, SERVER);
    const [query, { port: asker }] = (await asked) as [Buffer, { port: number }];
    server.kill('SIGTERM');
    await waitFor('it stops', () => output.includes('INFO stopping'));
    resolver.send(emptyAnswer(query), asker, ADDRESS);
    const [answer] = await Promise.race([answered, server.then(() => [undefined])]);
    assert.equal(answer?.readUInt16BE(0), 7);
    assert.equal((await server).exitCode, 0);
  });
});
