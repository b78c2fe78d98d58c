import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { servingResources } from '../../../sources/kubernetes/resources.ts';
import type { Session } from '../../../sources/kubernetes/session.ts';
import { KubernetesSource, type SourceObserver } from '../../../sources/kubernetes/source.ts';
import type { Source } from '../../../sources/source.ts';
import { waitFor } from '../../lab/wait.ts';
import { RecordingSink } from '../recording-sink.ts';

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

const KINDS: Readonly<Record<string, string>> = {
  services: 'ServiceList',
  endpointslices: 'EndpointSliceList',
  nodes: 'NodeList',
};
const BOOKMARK = { type: 'BOOKMARK', object: { metadata: { resourceVersion: '11' } } };

/** Serves empty lists, and watches that the test controls. */
class Api {
  readonly watches = new Map<string, ServerResponse>();
  /** Handles write requests. */
  onWrite: Answer = (_request, response) => response.writeHead(201).end('{}');
  readonly #server: Server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://localhost');
    if (request.method !== 'GET') this.onWrite(request, response);
    else if (searchParams.get('watch') === 'true') {
      response.writeHead(200).flushHeaders();
      this.watches.set(pathname.split('/').at(-1) ?? '', response);
    } else {
      const kind = KINDS[pathname.split('/').at(-1) ?? ''];
      const list = { kind, metadata: { resourceVersion: '10' }, items: [] };
      response.writeHead(200).end(JSON.stringify(list));
    }
  });

  async listen(): Promise<string> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#server.listen(0, '127.0.0.1', resolve);
    await promise;
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

describe('sessions: sessions with the API server', () => {
  let directory: string;
  let api: Api;
  let url: string;
  let source: Source;
  let observed: string[];
  let open: ((signal: AbortSignal) => Promise<Session>) | undefined;
  const never = new AbortController().signal;

  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-sessions-'));
    api = new Api();
    url = await api.listen();
    observed = [];
    const kubeconfig = join(directory, 'kubeconfig');
    const named = { name: 'x' };
    writeFileSync(
      kubeconfig,
      JSON.stringify({
        apiVersion: 'v1',
        kind: 'Config',
        clusters: [{ ...named, cluster: { server: url } }],
        users: [{ ...named, user: { token: 'secret' } }],
        contexts: [{ ...named, context: { cluster: 'x', user: 'x' } }],
        'current-context': 'x',
      }),
    );
    const observer: SourceObserver = {
      request: ({ method, host, code, seconds }) => {
        assert.equal(host, new URL(url).host);
        assert.ok(seconds >= 0 && seconds < 60);
        observed.push(`${method} ${code}`);
      },
      watchOpen: (resource, isOpen) => observed.push(`${resource} ${isOpen ? 'open' : 'closed'}`),
      upToDate: (resource) => observed.push(`${resource} event`),
      notInstalled: assert.fail,
      watchStalled: assert.fail,
    };
    source = new KubernetesSource({
      kubeconfig,
      resources: servingResources('node-a'),
      sink: new RecordingSink(),
      onProblem: assert.fail,
      log: { info: () => {}, warn: () => {} },
      observer,
      onSessions: (sessions) => {
        open = sessions;
      },
    });
    await source.start();
    await waitFor('all are watched', () => api.watches.size === 3);
  });
  afterEach(async () => {
    await source.stop();
    api.close();
    rmSync(directory, { recursive: true, force: true });
  });

  it('report requests, watches and events to the observer', async () => {
    await waitFor(
      'the watches are reported',
      () => observed.filter((each) => /open/.test(each)).length === 3,
    );
    assert.deepEqual(observed.slice(0, 3).sort(), [
      'EndpointSlice closed',
      'Node closed',
      'Service closed',
    ]);
    assert.equal(observed.filter((each) => each === 'GET 200').length, 6);
    api.watches.get('services')?.write(`${JSON.stringify(BOOKMARK)}\n`);
    await waitFor('the bookmark is reported', () => observed.includes('Service event'));
    observed.length = 0;
    api.watches.get('services')?.destroy();
    await waitFor('the end of the watch is reported', () => observed.includes('Service closed'));
  });

  it('report requests without a response', async () => {
    api.onWrite = (_request, response) => response.destroy();
    const session = await open?.(never);
    await assert.rejects(async () => session?.send('POST', '/x', {}), {
      name: 'ConnectionError',
    });
    assert.ok(observed.includes('POST undefined'));
    await session?.close();
  });

  it('fail when the server switches to another protocol', async () => {
    const switching =
      'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n';
    api.onWrite = (request) => request.socket.end(switching);
    const session = await open?.(never);
    await assert.rejects(async () => session?.send('POST', '/x', {}), {
      name: 'ConnectionError',
      message: 'API server: connection closed without a response',
    });
    await session?.close();
  });

  it('send writes with the same credentials and the right content types', async () => {
    const seen: unknown[] = [];
    api.onWrite = async (request, response) => {
      let body = '';
      for await (const chunk of request) body += String(chunk);
      const { authorization, 'content-type': type } = request.headers;
      seen.push([request.method, request.url, authorization, type, body]);
      const isCreation = request.method === 'POST';
      response.writeHead(isCreation ? 201 : 200).end('{}');
    };
    const session = await open?.(never);
    await session?.send('POST', '/apis/x', { a: 1 });
    await session?.send('PATCH', '/apis/x/y', { a: 2 });
    await session?.close();
    const token = 'Bearer secret';
    assert.deepEqual(seen, [
      ['POST', '/apis/x', token, 'application/json', '{"a":1}'],
      ['PATCH', '/apis/x/y', token, 'application/merge-patch+json', '{"a":2}'],
    ]);
  });

  it('throw the error of the server', async () => {
    api.onWrite = (_request, response) =>
      response
        .writeHead(403)
        .end(JSON.stringify({ code: 403, reason: 'Forbidden', message: 'no' }));
    const session = await open?.(never);
    await assert.rejects(async () => session?.send('POST', '/x', {}), {
      name: 'ApiError',
      code: 403,
      reason: 'Forbidden',
    });
    assert.ok(observed.includes('POST 403'));
    await session?.close();
  });
});
